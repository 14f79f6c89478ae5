"""What lies between two states of a server: rates, quantiles and mean times of each model version."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rates:
    """One model version between two states; times are in µs, None where nothing says."""

    row: Row
    answered: float
    failed: float
    p50_us: float | None
    p99_us: float | None
    queue_us: float | None
    compute_us: float | None
    batch: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        names = ("id", "name", "version", "state", "reason", "backend", "placement", "device", "replicas")
        counts = ("success", "failed", "in_flight", "pending", "executing")
        return (
            {name: self.row.get(name, "") for name in names}
            | {name: self.row.get(name, 0) for name in counts}
            | {"answered_per_s": self.answered, "failed_per_s": self.failed, "p50_us": self.p50_us}
            | {"p99_us": self.p99_us, "queue_us": self.queue_us, "compute_us": self.compute_us, "batch": self.batch}
        )


def rates_between(first: Mapping[str, Any], last: Mapping[str, Any]) -> list[Rates]:
    """Return the rates of each model version of the later state; those of one and the same state are 0."""
    seconds = max((last["at_ms"] - first["at_ms"]) / 1000, 1e-3)
    before = {(row["id"], row["version"]): row for row in first["models"]}
    return [
        _rates(row, before.get((row["id"], row["version"]), {}), seconds, last["bounds_us"]) for row in last["models"]
    ]


def _rates(row: Row, before: Row, seconds: float, bounds_us: Sequence[int]) -> Rates:
    def grown(name: str) -> int:
        now, past = row.get(name, 0), before.get(name, 0)
        return int(now - past if now >= past else now)  # a counter that fell began anew, with a new server

    answered, computed, batches = grown("success"), grown("computed"), grown("batches")
    past = before.get("latency", ())
    latency = [max(0, count - (past[at] if at < len(past) else 0)) for at, count in enumerate(row.get("latency", ()))]
    return Rates(
        row,
        answered / seconds,
        grown("failed") / seconds,
        quantile(latency, bounds_us, 0.5),
        quantile(latency, bounds_us, 0.99),
        grown("queue_us") / answered if answered else None,
        grown("compute_us") / computed if computed else None,
        grown("inferences") / batches if batches else None,
    )


def quantile(counts: Sequence[int], bounds: Sequence[int], share: float) -> float | None:
    """Return a quantile of counts by bucket, by interpolation; None without any."""
    left = share * sum(counts)
    for place, count in enumerate(counts):
        if count and left <= count:
            low = bounds[place - 1] if place else 0
            high = bounds[place] if place < len(bounds) else 2 * bounds[-1]
            return low + (high - low) * left / count
        left -= count
    return None
