"""The controller's side of the directory: tells each follower what has changed since it last asked."""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any, Final

from deployments.control.directory import TABLES

MAX_GONE_KEYS: Final = 1000


class _Table:
    """Rows of plain data by key, each with the generation in which it last changed, and the keys that have gone."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self._changed: dict[str, int] = {}
        self._oldest = 0

    def replace(self, rows: Mapping[str, Any], generation: int) -> bool:
        """Make the rows be these; returns whether any differs."""
        changed = [key for key, row in rows.items() if key not in self.rows or self.rows[key] != row]
        gone = self.rows.keys() - rows.keys()
        self.rows = dict(rows)
        self._changed.update(dict.fromkeys([*changed, *gone], generation))
        if len(self._changed) - len(self.rows) > MAX_GONE_KEYS:
            self._changed = {key: self._changed[key] for key in self.rows}
            self._oldest = generation
        return bool(changed or gone)

    def remembers(self, generation: int) -> bool:
        """Whether it is known what has gone since then."""
        return generation >= self._oldest

    def since(self, generation: int) -> dict[str, Any]:
        """Return the rows that have changed after a generation; those that have gone are None."""
        return {key: self.rows.get(key) for key, changed in self._changed.items() if changed > generation}


class Publisher:
    """The directory as its followers are told of it; `generation` counts changes and is one controller's, its `epoch`.

    All methods run on the loop's thread.
    """

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(8)
        self.generation = 0
        self.settled = False
        self._tables = {name: _Table() for name in TABLES}
        self._changed = asyncio.Event()

    def publish(self, *, settled: bool | None = None, **tables: Mapping[str, Any]) -> bool:
        """Make the tables named here be these rows of plain data; wakes the followers if anything differs."""
        generation = self.generation + 1
        changed = settled is not None and settled != self.settled
        for name, rows in tables.items():
            changed |= self._tables[name].replace(rows, generation)
        if not changed:
            return False
        self.generation = generation
        self.settled = self.settled if settled is None else settled
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    def rows(self, table: str) -> Mapping[str, Any]:
        """Return a table as it was last published."""
        return self._tables[table].rows

    async def news(self, epoch: str, generation: int) -> dict[str, Any]:
        """Return what changed after a follower's epoch and generation; waits until something has.

        The answer is everything (`full`) for a follower of another epoch, and for one that has slept too long.
        """
        while epoch == self.epoch and generation >= self.generation:
            await self._changed.wait()
        full = epoch != self.epoch or not all(table.remembers(generation) for table in self._tables.values())
        return {
            "epoch": self.epoch,
            "generation": self.generation,
            "settled": self.settled,
            "full": full,
            "tables": {
                name: dict(table.rows) if full else table.since(generation) for name, table in self._tables.items()
            },
        }
