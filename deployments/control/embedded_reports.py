"""What the ingresses tell of the models that they host, and what that comes to for each version."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deployments.control.former_places import Version

WAIT_S: Final = 30.0
"""How much longer than the first an ingress may take to load a model before it is waited for no more."""

Row = Sequence[Any]
"""Name, version, reason ("" when loaded), seconds and digest; see `ModelHost.report`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The row of an ingress that serves a version, or else of one that failed to load it.

    `beside` says where a version that is served failed to load, and why; "" for nowhere.
    """

    row: Row
    beside: str = ""


class EmbeddedReports:
    """The latest report of each ingress; in which order they came makes no difference."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, tuple[str, Sequence[Row]]] = {}
        self._first_s: dict[tuple[Version, str], float] = {}
        """When an ingress first told of a version with a digest."""

    def __contains__(self, ingress: str) -> bool:
        """Whether an ingress has reported."""
        return ingress in self._told

    def take(self, ingress: str, node: str, rows: Collection[Row]) -> None:
        """Take a report in place of the last of the same ingress."""
        self._told[ingress] = node, tuple(rows)
        for row in rows:
            self._first_s.setdefault(_key(row), self._clock())

    def keep(self, alive: Collection[str]) -> list[str]:
        """Forget all ingresses but these, and return those that were forgotten."""
        gone = [ingress for ingress in self._told if ingress not in alive]
        for ingress in gone:
            del self._told[ingress]
        return gone

    def forget_all_but(self, versions: Collection[Version]) -> None:
        """Forget what was told of versions that no ingress is to host any more."""
        for ingress, (node, rows) in self._told.items():
            self._told[ingress] = node, tuple(row for row in rows if (row[0], row[1]) in versions)
        told = {_key(row) for _, rows in self._told.values() for row in rows}
        self._first_s = {key: first_s for key, first_s in self._first_s.items() if key in told}

    @property
    def failed(self) -> dict[str, Sequence[Row]]:
        """The rows of each ingress in which something failed to load."""
        return {ingress: rows for ingress, (_, rows) in self._told.items() if any(row[2] for row in rows)}

    def reason(self, version: Version, digest: str, ingresses: Collection[str] = ()) -> str | None:
        """Return "" when an ingress has loaded what has this digest, else why one has not.

        None until all of these `ingresses` have told of it; one that takes long is not waited for.
        """
        said = {
            ingress: row[2]
            for ingress, (_, rows) in self._told.items()
            for row in rows
            if _key(row) == (version, digest)
        }
        if not said:
            return None
        waited = self._clock() - self._first_s[version, digest] > WAIT_S
        return min(said.values()) if waited or said.keys() >= {*ingresses} else None

    def outcomes(self, wanted: Mapping[Version, str]) -> dict[Version, Outcome]:
        """Return what became of each version; `wanted` are the digests of what the ingresses are to host.

        What serves in place of what failed to load, or loads, counts as served.
        """
        served: dict[Version, Row] = {}
        failed: dict[Version, list[tuple[str, str, Row]]] = {}
        for node, rows in self._told.values():
            for row in rows:
                version, reason, seconds = (row[0], row[1]), row[2], row[3]
                if not reason:
                    slower = version not in served or served[version][3] < seconds
                    served[version] = row if slower else served[version]
                elif row[4] == wanted.get(version):
                    failed.setdefault(version, []).append((reason, node, row))
        outcomes = {version: Outcome(row) for version, row in served.items()}
        for version, rows_failed in failed.items():
            reason, node, row = min(rows_failed, key=lambda each: each[:2])
            where = f"in {len(rows_failed)} of {len(self._told)} ingresses, on node {node}"
            beside = f"it failed to load {where}: {reason}"
            outcomes[version] = Outcome(served[version], beside) if version in served else Outcome(row)
        return outcomes


def _key(row: Row) -> tuple[Version, str]:
    return (row[0], row[1]), row[4]
