"""Which of several versions gets the next request that names none, by their shares."""

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from random import random
from typing import Final

from repository_loader.traffic import Traffic

MAX_SEQUENCES: Final = 65_536
"""Sequences whose version a process remembers; of others the ids alone decide."""
_STEP: Final = (math.sqrt(5) - 1) / 2

Holds = Callable[[int, int | str], bool]
"""Whether a version is known to hold a sequence, by its id."""


def _holds_none(version: int, sequence_id: int | str) -> bool:
    del version, sequence_id
    return False


class Turns:
    """Points from 0 up to 1 that are spread evenly: of any n in a row, a share s of it has n * s, to a few.

    They are multiples of the golden ratio, so that clients who ask in turns of any length get their shares too.
    """

    __slots__ = ("_point",)

    def __init__(self, point: float | None = None) -> None:
        self._point = random() if point is None else point

    def next(self) -> float:
        """Return the next point."""
        self._point = point = (self._point + _STEP) % 1.0
        return point


class SequenceVersions:
    """Keeps each sequence at one version, whatever becomes of the shares.

    Its id decides, by weighted rendezvous hashing, so that all processes agree. Those that a process has seen stay
    where they are until they end or start anew, and so do those that a version holds from before there were shares.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[int | str, int] = OrderedDict()

    def choose(
        self,
        sequence_id: int | str,
        shares: Mapping[int, float],
        ready: Collection[int],
        *,
        starts: bool,
        ends: bool,
        holds: Holds = _holds_none,
    ) -> int:
        """Return the version of a request in a sequence; one that is not `ready` gets no more."""
        version = self._known.pop(sequence_id, None)
        if starts:
            version = None
        elif version is None:
            version = next((each for each in ready if holds(each, sequence_id)), None)
        if version is None or version not in ready:
            version = max(shares, key=lambda each: math.log(chance(sequence_id, str(each))) / shares[each])
        if not ends:
            self._remember(sequence_id, version)
        return version

    def refused(self, sequence_id: int | str, version: int) -> None:
        """Note that the last request of a sequence was refused by its version: the sequence does not end by that."""
        if sequence_id not in self._known:
            self._remember(sequence_id, version)

    def _remember(self, sequence_id: int | str, version: int) -> None:
        self._known[sequence_id] = version
        if len(self._known) > MAX_SEQUENCES:
            self._known.popitem(last=False)


def expected(name: str, versions: Collection[int], taken: Collection[tuple[str, int]]) -> Collection[int]:
    """Return those of a model's versions that are among the `taken`, which take requests; all where none of them is."""
    if len(versions) == 1:
        return versions
    return [version for version in versions if (name, version) in taken] or versions


class VersionChoice:
    """The choice for one model, where the versions that are ready are found anew for each request.

    `traffic` may change.
    """

    def __init__(self, traffic: Traffic, point: float | None = None) -> None:
        self.traffic = traffic
        self._turns = Turns(point)
        self._sequences = SequenceVersions()

    def choose(
        self,
        ready: Collection[int],
        sequence_id: int | str,
        *,
        starts: bool,
        ends: bool,
        holds: Holds = _holds_none,
    ) -> int | None:
        """Return the version for a request (`sequence_id` 0 or "": not in a sequence), None when none may have it."""
        shares = self.traffic.shares(ready)
        if not shares:
            return None
        if sequence_id:
            return self._sequences.choose(sequence_id, shares, ready, starts=starts, ends=ends, holds=holds)
        point = self._turns.next()
        *others, last = shares.items()
        for version, share in others:
            if point < share:
                return version
            point -= share
        return last[0]


def chance(sequence_id: int | str, salt: str) -> float:
    """Return a number between 0 and 1 that is always the same for an id and a salt."""
    kind = "text" if isinstance(sequence_id, str) else "number"
    text = f"{salt}\0{kind}\0{sequence_id}".encode("utf-8", "surrogatepass")
    return (int.from_bytes(blake2b(text, digest_size=7).digest()) + 0.5) / 2**56
