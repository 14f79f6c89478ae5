"""What `--metrics-config` says, in Triton's syntax."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protocol.by_name import ByName

_SETTINGS: Final = ("counter_latencies", "summary_latencies", "histogram_latencies")
_BOOLEANS: Final = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
QUANTILES: Final = ((0.5, 0.05), (0.9, 0.01), (0.95, 0.001), (0.99, 0.001), (0.999, 0.001))
_MAX_QUANTILES: Final = 32


@dataclass(frozen=True, slots=True)
class MetricsOptions(ByName):
    """Which latencies are counted and shown.

    `counters` are Triton's cumulative durations, `summaries` its quantiles of the last minute, `histograms` the time to
    the first response. `interval_s` is how often each process notes its present state.
    """

    counters: bool = True
    summaries: bool = False
    histograms: bool = False
    quantiles: tuple[float, ...] = tuple(quantile for quantile, _ in QUANTILES)
    interval_s: float = 2.0

    @classmethod
    def parse(cls, given: Iterable[str], interval_ms: int = 2000) -> "MetricsOptions":
        """Read settings, each as `<key>=<value>`.

        The error that Triton allows a quantile is read and not needed: what is counted is not sampled.

        Raises:
            ValueError: a setting is unknown or has another form.
        """
        flags: dict[str, bool] = {}
        quantiles = tuple(quantile for quantile, _ in QUANTILES)
        for entry in given:
            key, equals, value = entry.partition("=")
            if not equals:
                raise ValueError(f"has the form <setting>=<value>, got {entry!r}")
            if key == "summary_quantiles":
                quantiles = _quantiles(value)
            elif key not in _SETTINGS:
                raise ValueError(f"knows no setting {key!r}")
            elif value.lower() not in _BOOLEANS:
                raise ValueError(f"{key} is true or false, got {value!r}")
            else:
                flags[key] = _BOOLEANS[value.lower()]
        counters, summaries, histograms = (flags.get(name, name == "counter_latencies") for name in _SETTINGS)
        return cls(counters, summaries, histograms, quantiles, interval_ms / 1000)


DEFAULT_OPTIONS: Final = MetricsOptions()


def _quantiles(value: str) -> tuple[float, ...]:
    found: dict[float, None] = {}
    for pair in value.split(","):
        quantile, colon, error = pair.partition(":")
        try:
            number, allowed = float(quantile), float(error)
        except ValueError:
            number = allowed = -1.0
        if not colon or not 0 <= number <= 1 or not 0 <= allowed <= 1:
            raise ValueError(f"summary_quantiles has the form <quantile>:<error>,..., got {value!r}")
        found[number] = None
    if len(found) > _MAX_QUANTILES:
        raise ValueError(f"summary_quantiles has more than {_MAX_QUANTILES}")
    return tuple(found)
