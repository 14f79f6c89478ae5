"""Counts what clients get of one model version: how many requests are under way, how long they take, what fails.

It is on the way of each request, and costs some 0.4 µs of it (`python -m benchmarks.metrics`).
"""

import weakref
from bisect import bisect_left
from http import HTTPStatus
from time import monotonic_ns
from typing import Any, Final, cast

from deployments.core.counts import CLIENT, CLIENT_ERROR, BucketCount, ClientCounts, IsGone, Label, Rows
from deployments.core.duration_buckets import BOUNDS_NS
from protocol.errors import ServingError
from protocol.grpc_status import GRPC_STATUS_NAMES

INFLIGHT, CANCELLED, FAILED, SUM_NS, FIRST_BUCKET = range(5)
WIRES: Final = ("http", "grpc", "grpc_stream")
_CODES: Final = 1000

Cells = memoryview
"""The integers of a `ClientCounts`, in the order of its fields."""


class RequestMeter:
    """Hands out the cells that a request is counted in, and notes its errors.

    Who sends a request adds it to `begun`, and takes the `cells` of its wire form, or has them opened.
    """

    __slots__ = ("__weakref__", "_label", "_rows", "_sampled", "begun", "cells")

    def __init__(self, name: str, version: int, rows: Rows) -> None:
        self._label = (name, version)
        self._rows = rows
        self.let_go()

    def let_go(self) -> None:
        """Begin anew, in cells that are opened with the next request."""
        self.begun = [0] * len(WIRES)
        self._sampled = [0] * len(WIRES)
        self.cells: list[Cells | None] = [None] * len(WIRES)

    def open(self, wire: int) -> Cells:
        """Return the cells of a wire form."""
        row = cast(ClientCounts, self._rows.row(Label(CLIENT, *self._label, wire)))
        cells = row.cells
        if self.cells[wire] is None:
            self.begun[wire] += _ended(cells)  # before this meter, which another has counted
            self.cells[wire] = cells
        return cells

    def begin(self, wire: int) -> Cells:
        """Count a request that has come."""
        self.begun[wire] += 1
        return self.cells[wire] or self.open(wire)

    def fail(self, wire: int, cells: Cells, error: ServingError) -> None:
        """Count a request that has ended with an error."""
        cells[FAILED] += 1
        code = error.grpc_code if wire else error.http_status
        row: Any = self._rows.row(Label(CLIENT_ERROR, *self._label, wire * _CODES + code))
        assert isinstance(row, BucketCount)
        row.count += 1

    def sample(self) -> None:
        """Note how many requests are under way; costs next to nothing where none has been since the last time."""
        if self.begun == self._sampled:
            return
        for wire, (begun, cells) in enumerate(zip(self.begun, self.cells, strict=True)):
            if cells is not None:
                ended = _ended(cells)
                cells[INFLIGHT] = begun - ended
                self._sampled[wire] = begun if begun == ended else -1

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        pairs = zip(self.begun, self.cells, strict=True)
        return all(begun == (0 if cells is None else _ended(cells)) for begun, cells in pairs)


def _ended(cells: Cells) -> int:
    return cells[CANCELLED] + cells[FAILED] + sum(cells[FIRST_BUCKET:])


def succeed(cells: Cells, began_ns: int) -> None:
    """Count a request whose last response is there."""
    took_ns = monotonic_ns() - began_ns
    cells[SUM_NS] += took_ns
    cells[FIRST_BUCKET + bisect_left(BOUNDS_NS, took_ns)] += 1


def give_up(cells: Cells) -> None:
    """Count a request that its client has cancelled."""
    cells[CANCELLED] += 1


class RequestMeters:
    """The meters of a process, by model version."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._meters: dict[tuple[str, int], RequestMeter] = {}

    def of(self, name: str, version: int) -> RequestMeter:
        """Return the meter of a model version."""
        meter = self._meters.get((name, version))
        if meter is None:
            meter = self._meters[name, version] = RequestMeter(name, version, self._rows)
        return meter

    def let_go(self, is_gone: IsGone) -> None:
        """Have the meters of versions that are gone let go of their cells, unless something is under way to one.

        Those that nobody has are forgotten.
        """
        for key in [key for key, meter in self._meters.items() if meter.idle and is_gone(*key)]:
            self._meters[key].let_go()
            reference = weakref.ref(self._meters.pop(key))
            if (meter := reference()) is not None:
                self._meters[key] = meter

    def refuse(self, wire: int, code: int) -> None:
        """Count an error that a client got without that a model had its request."""
        row: Any = self._rows.row(Label(CLIENT_ERROR, "", 0, wire * _CODES + code))
        assert isinstance(row, BucketCount)
        row.count += 1

    def sample(self) -> None:
        """Note how many requests are under way."""
        for meter in self._meters.values():
            meter.sample()


def code_name(number: int) -> tuple[str, str]:
    """Return protocol and code of the number of a `CLIENT_ERROR` row."""
    wire, code = divmod(number, _CODES)
    if wire:
        return WIRES[wire], GRPC_STATUS_NAMES[code] if code < len(GRPC_STATUS_NAMES) else str(code)
    return WIRES[wire], str(code)


OK: Final = (str(HTTPStatus.OK.value), "OK", "OK")
"""What a request that succeeds is answered with, by wire."""
