"""Files that clients sent, in Ray's own tables: for other nodes, and for those who come after a process has died."""

from collections.abc import Collection
from typing import Final, Protocol
from urllib.parse import quote

_PIECE_BYTES: Final = 4 << 20
"""Whoever keeps the tables does nothing else while it takes a value."""


class PrefixTable(Protocol):
    """Values by key; see `ClusterTable`."""

    def get(self, key: str) -> bytes:
        """Return a value, b"" when there is none."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Keep a value in place of the last."""
        ...

    def forget(self, key: str) -> None:
        """Keep it no longer."""
        ...

    def keys(self, prefix: str) -> Collection[str]:
        """Return the keys that begin so."""
        ...


class KeptFiles:
    """The files of one owner, a Serve application, in pieces; every method blocks, also while there is no head.

    The number of the pieces is written last and forgotten first: what has it is whole.
    """

    def __init__(self, table: PrefixTable, owner: str) -> None:
        self.owner = owner
        self._table = table
        self._prefix = f"files-{quote(owner, safe='')}/"

    def put_files(self, name: str, archive: bytes) -> None:
        """Keep files that a client sent."""
        pieces = [archive[start : start + _PIECE_BYTES] for start in range(0, len(archive), _PIECE_BYTES)]
        for number, piece in enumerate(pieces):
            self._table.put(f"{self._prefix}{name}/{number}", piece)
        self._table.put(f"{self._prefix}{name}", str(len(pieces)).encode())

    def files(self, name: str) -> bytes:
        """Return files that a client sent, b"" when they are not known."""
        count = int(self._table.get(f"{self._prefix}{name}") or 0)
        return b"".join([self._table.get(f"{self._prefix}{name}/{number}") for number in range(count)])

    def keep_files(self, names: Collection[str]) -> None:
        """Forget all files that clients sent but these."""
        for key in sorted(self._table.keys(self._prefix), key=len):
            if key.removeprefix(self._prefix).partition("/")[0] not in names:
                self._table.forget(key)

    def names(self) -> set[str]:
        """Return what there are files under."""
        return {key.removeprefix(self._prefix).partition("/")[0] for key in self._table.keys(self._prefix)}

    def end(self) -> None:
        """Forget everything."""
        self.keep_files(())
