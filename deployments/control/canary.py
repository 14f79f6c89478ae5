"""A version that gets more and more of a model's requests, as long as what they come to is within its limits.

Pure: whoever runs it says what was measured and how much time has passed.
"""

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from repository_loader.traffic import Traffic

RUNNING: Final = "running"
SUCCEEDED: Final = "succeeded"
ROLLED_BACK: Final = "rolled back"
STOPPED: Final = "stopped"

MAX_STEPS: Final = 32
MAX_EVENTS: Final = 64
BUCKETS_PER_OCTAVE: Final = 8


@dataclass(frozen=True, slots=True)
class Rules:
    """What a canary goes by.

    `steps` are percentages of the requests that name no version. Each lasts for `interval_s`, and until `min_requests`
    were answered. `max_error_rate` is a part of the requests, from 0 to 1; `max_p99_ms` 0 is any time.
    """

    version: int
    steps: tuple[float, ...] = (1.0, 5.0, 25.0, 100.0)
    interval_s: float = 60.0
    max_error_rate: float = 0.01
    max_p99_ms: float = 0.0
    min_requests: int = 100

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Rules":
        """Read what a client sends.

        Raises:
            ValueError: with a sentence for the client.
        """
        unknown = sorted(data.keys() - set(cls.__slots__))
        if unknown:
            raise ValueError(f"a canary has no '{unknown[0][:64]}'; it has {', '.join(cls.__slots__)}")
        version = data.get("version")
        if type(version) is not int or version < 0:
            raise ValueError("'version' must be a whole number from 0 on")
        steps = data.get("steps", cls(version).steps)
        if not isinstance(steps, list | tuple) or not 1 <= len(steps) <= MAX_STEPS:
            raise ValueError(f"'steps' must be 1 to {MAX_STEPS} percentages")
        percentages = tuple(_number({"steps": step}, "steps", 0.0, 1e-9, 100.0) for step in steps)
        if list(percentages) != sorted(set(percentages)):
            raise ValueError("'steps' must rise")
        return cls(
            version,
            percentages,
            _number(data, "interval_s", 60.0, 0.1, 86400.0),
            _number(data, "max_error_rate", 0.01, 0.0, 1.0),
            _number(data, "max_p99_ms", 0.0, 0.0, 3.6e6),
            int(_number(data, "min_requests", 100.0, 1.0, 1e9)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in self.__slots__} | {"steps": list(self.steps)}


@dataclass(frozen=True, slots=True)
class Figures:
    """What the requests of one step came to; bucket B holds latencies of up to 2^(B / 8) µs."""

    request_count: int = 0
    error_count: int = 0
    buckets: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def sum(cls, reports: Iterable[Mapping[str, Any]]) -> "Figures":
        """Add up what processes have measured, as `VersionMeter.to_dict` writes it."""
        requests = errors = 0
        buckets: dict[int, int] = {}
        for report in reports:
            requests += report["requests"]
            errors += report["errors"]
            for bucket, count in report["buckets"].items():
                buckets[int(bucket)] = buckets.get(int(bucket), 0) + count
        return cls(requests, errors, buckets)

    @property
    def error_rate(self) -> float:
        """The part of the requests that failed."""
        return self.error_count / self.request_count if self.request_count else 0.0

    @property
    def p99_ms(self) -> float:
        """The time within which 99 of 100 requests were answered, to 9 %; 0 without any."""
        left = math.ceil(sum(self.buckets.values()) * 0.99)
        for bucket, count in sorted(self.buckets.items()):
            left -= count
            if left <= 0:
                return float(2 ** (bucket / BUCKETS_PER_OCTAVE) / 1e3)
        return 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """What was done at a time, in seconds since the epoch, and what the step before had come to."""

    at_s: float
    version: int
    percent: float
    text: str
    figures: Figures = Figures()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        figures = self.figures
        return {
            "at_s": round(self.at_s, 3),
            "version": self.version,
            "percent": self.percent,
            "event": self.text,
            "requests": figures.request_count,
            "error_rate": round(figures.error_rate, 6),
            "p99_ms": round(figures.p99_ms, 3),
        }


@dataclass(frozen=True, slots=True)
class Canary:
    """One at some step of its rules; `rest` are the weights of the other versions, which they get back in the end.

    `events` are the latest of all canaries of the model, oldest first.
    """

    rules: Rules
    rest: Mapping[int, float]
    shadow: Mapping[int, float]
    id: str
    state: str = RUNNING
    step: int = 0
    events: tuple[Event, ...] = ()

    @classmethod
    def begun(
        cls, rules: Rules, before: Traffic, versions: Iterable[int], past: "Canary | None", at_s: float
    ) -> "Canary":
        """Return a canary at its first step.

        Args:
            before: how the model's requests are shared, which concerns `versions`, those that there are.
            past: the model's last canary.

        Raises:
            ValueError: there is no other version that the requests could go to.
        """
        shares = before.shares([version for version in versions if version != rules.version])
        if not shares and before.weights:
            shares = Traffic(shadow=before.shadow).shares([each for each in versions if each != rules.version])
        if not shares:
            raise ValueError(f"the model has no version beside {rules.version} that has requests")
        shadow = {version: percent for version, percent in before.shadow.items() if version != rules.version}
        new = cls(rules, shares, shadow, secrets.token_hex(4), events=past.events if past is not None else ())
        return new._noted(at_s, "begun", Figures())

    @property
    def measured(self) -> str:
        """What ingresses measure by: other with each step; "" once it is over."""
        return f"{self.id}/{self.step}" if self.state == RUNNING else ""

    @property
    def percent(self) -> float:
        """The percentage of the requests that the version has."""
        return 0.0 if self.state == ROLLED_BACK else self.rules.steps[self.step]

    @property
    def traffic(self) -> Traffic:
        """How the model's requests are shared."""
        share = self.percent
        weights = {version: part * (100 - share) for version, part in self.rest.items() if share < 100}
        return Traffic(weights | {self.rules.version: share}, self.shadow)

    def verdict(self, figures: Figures, waited_s: float, *, ready: bool) -> str | None:
        """Return why it must be rolled back, "" when the next step is due, None while there is nothing to do."""
        rules = self.rules
        if not ready:
            return f"version {rules.version} is not ready"
        if figures.request_count < rules.min_requests:
            return None
        if figures.error_rate > rules.max_error_rate:
            return f"{figures.error_rate:.2%} of the requests failed, the limit is {rules.max_error_rate:.2%}"
        if rules.max_p99_ms and figures.p99_ms > rules.max_p99_ms:
            return f"the p99 is {float(f'{figures.p99_ms:.3g}'):g} ms, the limit {rules.max_p99_ms:g} ms"
        return "" if waited_s >= rules.interval_s else None

    def advanced(self, figures: Figures, at_s: float) -> "Canary":
        """Return it at its next step, or at its end."""
        if self.step + 1 == len(self.rules.steps):
            return replace(self, state=SUCCEEDED)._noted(at_s, SUCCEEDED, figures)
        return replace(self, step=self.step + 1)._noted(at_s, "next step", figures)

    def rolled_back(self, reason: str, figures: Figures, at_s: float) -> "Canary":
        """Return it with all requests back at the other versions."""
        return replace(self, state=ROLLED_BACK)._noted(at_s, f"{ROLLED_BACK}: {reason}", figures)

    def stopped(self, at_s: float) -> "Canary":
        """Return it as it is after a command has changed the model's traffic."""
        return replace(self, state=STOPPED)._noted(at_s, STOPPED, Figures()) if self.state == RUNNING else self

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for whoever wants to know how it does."""
        return {
            **self.rules.to_dict(),
            "state": self.state,
            "percent": self.percent,
            "history": [event.to_dict() for event in self.events],
        }

    def _noted(self, at_s: float, text: str, figures: Figures) -> "Canary":
        event = Event(at_s, self.rules.version, self.percent, text, figures)
        return replace(self, events=(*self.events, event)[-MAX_EVENTS:])


def _number(data: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    value = data.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"'{name}' must be a number from {least:g} to {most:g}")
    return float(value)
