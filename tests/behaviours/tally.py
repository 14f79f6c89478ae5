"""What was sent to each model, and what the server has counted of it."""

import re
from collections import Counter
from typing import Any

from tests.serving import Server, wait_until

SUCCESS = "success"
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
_SAMPLE = re.compile(
    r'^nv_inference_request_(success|failure)\{model="([^"]*)",(?:reason="(\w+)",)?version="[^"]*"\} (\d+)', re.M
)
_PENDING = re.compile(r'^nv_inference_pending_request_count\{model="([^"]*)",version="[^"]*"\} (\d+)', re.M)

Balance = dict[str, Counter[str]]


class Tally:
    """Requests by model and outcome: `success`, or the reason of a failure; one that counts nowhere is not in it."""

    def __init__(self) -> None:
        self._sent: Balance = {}
        self._unknown: set[str] = set()

    def add(self, model: str, outcome: str, count: int = 1) -> None:
        """Count what a client has got, or what an ensemble has asked of its step."""
        assert outcome in (SUCCESS, *REASONS), outcome
        self._sent.setdefault(model, Counter())[outcome] += count

    def give_up(self, models: set[str]) -> None:
        """Expect nothing of models whose folder failed half-way."""
        self._unknown |= models

    def differences(self, server: Server) -> list[str]:
        """Return where the server's statistics or metrics are not what was sent."""
        metrics, statistics = by_metrics(server.metrics_text()), by_statistics(server.get("/v2/models/stats").json)
        found = []
        for model in sorted({*metrics, *statistics, *self._sent} - self._unknown):
            sent = +self._sent.get(model, Counter())
            if metrics.get(model, Counter()) != sent:
                found.append(f"{model}: sent {dict(sent)}, /metrics {dict(metrics.get(model, {}))}")
            told = statistics.get(model, Counter())
            if told != +Counter(success=sent[SUCCESS], fail=sum(sent[reason] for reason in REASONS)):
                found.append(f"{model}: sent {dict(sent)}, statistics {dict(told)}")
        return found


def by_metrics(text: str) -> Balance:
    """Return the requests that the metrics count, without zeros."""
    found: Balance = {}
    for _, model, reason, count in _SAMPLE.findall(text):
        found.setdefault(model, Counter())[reason or SUCCESS] += int(count)
    return {model: +counts for model, counts in found.items() if +counts}


def by_statistics(document: dict[str, Any]) -> Balance:
    """Return the requests that the statistics count, over all versions, without zeros."""
    found: Balance = {}
    for row in document["model_stats"]:
        for outcome in ("success", "fail"):
            found.setdefault(row["name"], Counter())[outcome] += row["inference_stats"][outcome]["count"]
    return {model: +counts for model, counts in found.items() if +counts}


def pending(server: Server, model: str) -> int:
    """Return how many requests wait for a model."""
    return sum(int(count) for name, count in _PENDING.findall(server.metrics_text()) if name == model)


def assert_balanced(tally: Tally, server: Server) -> None:
    """Wait for the last requests to be counted; then all must be."""
    try:
        wait_until(lambda: not tally.differences(server), "a balance", timeout_s=10)
    except AssertionError:
        raise AssertionError("\n".join(tally.differences(server))) from None
