"""How the versions of a model share the requests that name none of them."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MAX_VERSIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Traffic:
    """Weights by version, which need not add up to anything, and the versions that get copies, with percentages.

    Without weights the highest version gets everything. A version that gets copies only has no weight.
    """

    weights: Mapping[int, float] = field(default_factory=dict)
    shadow: Mapping[int, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.weights or self.shadow)

    def among(self, versions: Collection[int]) -> "Traffic":
        """Return what holds for these versions, all that there are.

        Weights are void when none of them has one, and copies when no version is left to answer.
        """
        weights = {version: weight for version, weight in self.weights.items() if version in versions}
        shadow = {version: percent for version, percent in self.shadow.items() if version in versions}
        if any(weights.values()):
            return Traffic(weights, shadow)
        return Traffic({}, shadow if shadow.keys() < set(versions) else {})

    def shares(self, ready: Collection[int]) -> dict[int, float]:
        """Return the part of the requests, from above 0 to 1, that each ready version gets; a request names none.

        An empty answer: no version that is ready may have any.
        """
        if not self.weights:
            best = max((version for version in ready if version not in self.shadow), default=None)
            return {} if best is None else {best: 1.0}
        weights = {version: weight for version, weight in self.weights.items() if weight and version in ready}
        total = math.fsum(weights.values())
        return {version: share for version, weight in weights.items() if (share := weight / total)}

    def unknown(self, versions: Collection[int]) -> list[int]:
        """Return the versions in here that are not among these."""
        return sorted((self.weights.keys() | self.shadow.keys()) - set(versions))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with versions as texts."""
        return {"weights": _texts(self.weights), "shadow": _texts(self.shadow)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Traffic":
        """Read `to_dict`'s form; what is left out is empty."""
        return cls(_by_number(data.get("weights", {})), _by_number(data.get("shadow", {})))


NO_TRAFFIC: Final = Traffic()
"""The highest version gets everything."""


def parse_versions(text: str) -> dict[str, str]:
    """Return what a text says of each version, `1=95,2=5`: commas or spaces between them.

    Raises:
        ValueError: it is none.
    """
    found: dict[str, str] = {}
    for entry in text.replace(",", " ").split():
        version, equals, value = entry.partition("=")
        if not equals or not version or not value:
            raise ValueError(f"'{entry}' is not <version>=<number>")
        if version in found:
            raise ValueError(f"version {version} is there twice")
        found[version] = value
    return found


def read_weights(given: Any) -> dict[int, float]:
    """Return weights by version.

    Raises:
        ValueError: a version or weight is none, or all weights are 0.
    """
    weights = _numbers(given, "weight")
    if weights and not any(weights.values()):
        raise ValueError("one version must have a weight above 0")
    return weights


def read_percentages(given: Any) -> dict[int, float]:
    """Return percentages by version.

    Raises:
        ValueError: a version is none, or a percentage is not above 0 and at most 100.
    """
    percentages = _numbers(given, "percentage")
    for version, percent in percentages.items():
        if not 0 < percent <= 100:
            raise ValueError(f"the percentage of version {version} must be above 0 and at most 100")
    return percentages


def _numbers(given: Any, what: str) -> dict[int, float]:
    if not isinstance(given, Mapping):
        raise ValueError(f"expected a {what} for each version")
    if len(given) > MAX_VERSIONS:
        raise ValueError(f"there are more than {MAX_VERSIONS} versions")
    found: dict[int, float] = {}
    for key, value in given.items():
        version = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20 else -1
        if version < 0 or version in found:
            raise ValueError(f"'{str(key)[:64]}' is no version: a whole number from 0 on, each once")
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 <= number <= 1e9:
            raise ValueError(f"the {what} of version {version} must be a number from 0 to 1e9")
        found[version] = number
    return found


def _by_number(texts: Mapping[str, float]) -> dict[int, float]:
    return {int(version): number for version, number in texts.items()}


def _texts(numbers: Mapping[int, float]) -> dict[str, float]:
    return {str(version): number for version, number in sorted(numbers.items())}
