"""When processes load again what had been loaded, and failed in one that started later: without a disk, or memory."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.control.former_places import Version
from repository_loader.deployment_plan import Place

_FIRST_S = 5.0
_LONGEST_S = 60.0
_FORGOTTEN_S = 3600.0
_REMEMBERED = 2


@dataclass(slots=True)
class _Failure:
    """`due_s` is when to try again, infinite while the process has been told and has not yet said what came of it."""

    wait_s: float
    due_s: float
    told_s: float = math.inf


class SecondTries:
    """Remembers what has been loaded, and plans a second try, later each time, for what then fails.

    A place is a packed group's application and deployment, or an ingress: "" and the name of its actor. What has never
    been loaded as it is, with these files and this configuration, is none of its business.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loaded: dict[Version, tuple[str, ...]] = {}
        """The digests with which each version was loaded last."""
        self._failures: dict[tuple[Place, Version], _Failure] = {}

    def take(self, place: Place, rows: Iterable[Sequence[Any]]) -> None:
        """Take what the processes of a place host: `[[name, version, reason, seconds, digest]]`."""
        failed: set[Version] = set()
        for name, version, reason, _, digest in rows:
            if reason:
                if self.has_loaded(name, version, digest):
                    failed.add((name, version))
            else:
                known = self._loaded.get((name, version), ())
                self._loaded[name, version] = (digest, *(each for each in known if each != digest))[:_REMEMBERED]
        now_s = self._clock()
        for key in [key for key in self._failures if key[0] == place and key[1] not in failed]:
            del self._failures[key]
        for version in failed:
            failure = self._failures.setdefault((place, version), _Failure(_FIRST_S, now_s + _FIRST_S))
            if failure.due_s == math.inf:
                failure.due_s = now_s + failure.wait_s

    def has_loaded(self, name: str, version: int, digest: str) -> bool:
        """Return whether a version has been loaded with this digest, wherever."""
        return digest in self._loaded.get((name, version), ())

    @property
    def failed(self) -> set[Version]:
        """What had been loaded and has failed, somewhere."""
        return {version for _, version in self._failures}

    def due(self) -> dict[Place, list[Version]]:
        """Return what is to be tried again now, each once until its place tells what came of it."""
        now_s = self._clock()
        due: dict[Place, list[Version]] = {}
        for (place, version), failure in list(self._failures.items()):
            if failure.due_s <= now_s:
                due.setdefault(place, []).append(version)
                failure.wait_s = min(2 * failure.wait_s, _LONGEST_S)
                failure.due_s, failure.told_s = math.inf, now_s
            elif failure.due_s == math.inf and now_s - failure.told_s > _FORGOTTEN_S:
                del self._failures[place, version]  # the process has died
        return due

    def forget_all_but(self, names: Collection[str]) -> None:
        """Forget the models that there are no longer."""
        for version in [version for version in self._loaded if version[0] not in names]:
            del self._loaded[version]
