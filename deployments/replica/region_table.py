"""The regions of system shared memory that clients registered on this node: one table for all processes."""

import contextlib
import itertools
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson

from deployments.replica.node_folder import NodeFolder
from deployments.replica.region_mapping import object_path
from deployments.replica.region_row import Row

_ROWS: Final = "regions"
_GENERATION: Final = "regions-generation"
_LOCK: Final = "regions-lock"
_ROOM: Final = "regions-room"
_OBJECT: Final = "region-object-"
_WORD_BYTES: Final = 8

Rows = list[list[Any]]


class RegionTable:
    """Rows of name, key, offset, size and serial; `generation` changes with them, and is quick to read.

    The word that is shared is odd while the rows are being replaced, and stays so if who does that dies. Memory for the
    rows is kept in reserve, so that a region can be taken out, and its memory become free, where there is no more.
    """

    def __init__(self, folder: NodeFolder) -> None:
        """Open the table.

        Raises:
            OSError: there is no room.
        """
        self._folder = folder
        self._unsettled = itertools.count(-2, -1)
        with folder.locked(_LOCK):
            descriptor = os.open(folder.path / _GENERATION, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, _WORD_BYTES)
                self._generation = memoryview(mmap.mmap(descriptor, _WORD_BYTES)).cast("q")
            finally:
                os.close(descriptor)

    @property
    def generation(self) -> int:
        """Differs from all before when the rows may."""
        generation = self._generation[0]
        return next(self._unsettled) if generation & 1 else generation

    def rows(self) -> Rows:
        """Read the rows."""
        try:
            rows: Rows = orjson.loads((self._folder.path / _ROWS).read_bytes())
        except FileNotFoundError:
            return []
        return rows

    def change(self, edit: Callable[[Rows], Rows]) -> None:
        """Replace the rows by what `edit` makes of them; every process finds the new ones from the return on.

        Raises:
            TimeoutError: another process has kept the table for seconds.
            OSError: there is no room for more rows, and nothing is changed.
            Exception: what `edit` raises, and nothing is changed.
        """
        with self._folder.locked(_LOCK):
            rows = self.rows()
            try:
                changed = edit(rows)
                self._replace(changed, grows=len(changed) > len(rows))
                rows = changed
            finally:
                self._let_go_of_all_but(rows)

    def _replace(self, rows: Rows, *, grows: bool) -> None:
        content = orjson.dumps(rows)
        beside = self._folder.path / f"{_ROWS}.new"
        if grows:
            self._reserve(len(content))
        try:
            beside.write_bytes(content)
        except OSError:
            if grows:
                raise
            (self._folder.path / _ROOM).unlink(missing_ok=True)
            beside.write_bytes(content)
        self._generation[0] |= 1
        beside.rename(self._folder.path / _ROWS)
        self._generation[0] += 1
        with contextlib.suppress(OSError):
            self._reserve(len(content))

    def _reserve(self, size_bytes: int) -> None:
        """Keep room for so many bytes of rows; raises OSError where there is none."""
        descriptor = os.open(self._folder.path / _ROOM, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        finally:
            os.close(descriptor)

    def keep(self, name: str, serial: str) -> None:
        """Give an object another name, by which it is found until the row with that serial is no more.

        Its client may unlink it, or make another of its name, before every process has mapped it. Where the folder is
        on another file system than the objects, they are found by their own names.
        """
        with contextlib.suppress(OSError):
            os.link(object_path(name), self._kept(serial), follow_symlinks=False)

    def path(self, name: str, serial: str) -> str:
        """Return where the object is found that was named in a row with that serial."""
        kept = self._kept(serial)
        return str(kept) if os.path.lexists(kept) else object_path(name)

    def _kept(self, serial: str) -> Path:
        return self._folder.path / f"{_OBJECT}{serial}"

    def _let_go_of_all_but(self, rows: Rows) -> None:
        registered = {self._kept(Row(*row).serial) for row in rows}
        for kept in self._folder.path.glob(f"{_OBJECT}*"):
            if kept not in registered:
                kept.unlink()
