"""What lies between states of a server: rates, quantiles and mean times of each model version."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

Row = Mapping[str, Any]
State = Mapping[str, Any]

_SUMS: Final = (
    "success",
    "failed",
    "queue_us",
    "compute_us",
    "computed",
    "batches",
    "inferences",
)


@dataclass(frozen=True, slots=True)
class Rates:
    """One model version between two states; times are in µs, None where nothing says.

    `answered` are its requests a second, also those of ensembles; `clients` are those that clients had answered.
    """

    row: Row
    answered: float
    clients: float
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


def rates_between(states: Sequence[State]) -> list[Rates]:
    """Return the rates of each model version of the last state, 0 where none before it can be compared.

    Counters are sums over the nodes that an ingress knows of: states that know of other nodes are not compared, nor
    rows of which a counter fell.
    """
    last = states[-1]
    nodes = _node_ids(last)
    earlier: list[tuple[State, dict[tuple[str, int], Row]]] = []
    for state in reversed(states[:-1]):
        if _node_ids(state) != nodes:
            break
        earlier.append((state, {(row["id"], row["version"]): row for row in state["models"]}))
    return [_rates(row, *_window(row, last, earlier), last) for row in last["models"]]


def _node_ids(state: State) -> set[str]:
    return {node["id"] for node in state["nodes"]}


def _window(row: Row, last: State, earlier: Sequence[tuple[State, Mapping[tuple[str, int], Row]]]) -> tuple[Row, State]:
    """Return the first row, and its state, since which all counters have only grown."""
    found = row, last
    for state, rows in earlier:
        before = rows.get((row["id"], row["version"]))
        if before is None or not _has_grown(found[0], before):
            break
        found = before, state
    return found


def _has_grown(row: Row, before: Row) -> bool:
    latency, past = row.get("latency", ()), before.get("latency", ())
    return (
        all(row.get(name, 0) >= before.get(name, 0) for name in _SUMS)
        and len(latency) >= len(past)
        and all(map(int.__ge__, latency, past))
    )


def _rates(row: Row, before: Row, first: State, last: State) -> Rates:
    seconds = max((last["at_ms"] - first["at_ms"]) / 1000, 1e-3)
    grown = {name: row.get(name, 0) - before.get(name, 0) for name in _SUMS}
    answered, computed, batches = grown["success"], grown["computed"], grown["batches"]
    pairs = zip_longest(row.get("latency", ()), before.get("latency", ()), fillvalue=0)
    latency = [now - past for now, past in pairs]
    return Rates(
        row,
        answered / seconds,
        sum(latency) / seconds,
        grown["failed"] / seconds,
        quantile(latency, last["bounds_us"], 0.5),
        quantile(latency, last["bounds_us"], 0.99),
        grown["queue_us"] / answered if answered else None,
        grown["compute_us"] / computed if computed else None,
        grown["inferences"] / batches if batches else None,
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
