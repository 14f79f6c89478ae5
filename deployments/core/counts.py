"""What is counted of a model version, as rows of 64-bit integers that can lie in memory which other processes read."""

import ctypes
from collections.abc import Iterable
from typing import ClassVar, Final, NamedTuple

MODEL: Final = "model"
BATCH_SIZE: Final = "batch size"
RESPONSE: Final = "response"
SHADOW: Final = "shadow"


class Label(NamedTuple):
    """Names a row: its kind, the model version, and the batch size or the response's place in its stream, else 0."""

    kind: str
    name: str
    version: int
    number: int = 0


class Counts(ctypes.Structure):
    """One row; of a field in `LARGEST` the larger counts, and one in `PRESENT` is the present state of a process."""

    LARGEST: ClassVar[frozenset[str]] = frozenset()
    PRESENT: ClassVar[frozenset[str]] = frozenset()

    def values(self) -> list[int]:
        """Return the fields in their order."""
        return [getattr(self, field[0]) for field in self._fields_]

    def add(self, values: Iterable[int], *, present: bool = True) -> None:
        """Add another row; without its present state when its process is gone."""
        for (name, _), value in zip(self._fields_, values, strict=True):  # type: ignore[misc]
            if name in self.PRESENT and not present:
                continue
            mine = getattr(self, name)
            setattr(self, name, max(mine, value) if name in self.LARGEST else mine + value)


class ModelCounts(Counts):
    """A model version's requests; a batch's durations count once for every request in it."""

    LARGEST = frozenset({"last_inference_ns", "load_duration_ns"})
    PRESENT = frozenset({"load_duration_ns", "pending_count"})

    success_count: int
    success_ns: int
    queue_ns: int
    compute_count: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    cache_hit_count: int
    cache_hit_ns: int
    cache_miss_count: int
    cache_miss_ns: int
    inference_count: int
    execution_count: int
    last_inference_ns: int
    load_duration_ns: int
    pending_count: int
    rejected_count: int
    canceled_count: int
    backend_count: int
    other_count: int
    failures_ns: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


class BatchSizeCounts(Counts):
    """What the batches of one size cost: how many there were, and nanoseconds by phase."""

    count: int
    input_ns: int
    infer_ns: int
    output_ns: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


class ResponseCounts(Counts):
    """What the n-th responses to requests of a decoupled model cost: how often there was one, and nanoseconds."""

    success_count: int
    infer_ns: int
    output_ns: int
    fail_count: int
    fail_ns: int
    empty_count: int
    empty_ns: int
    cancel_count: int
    cancel_ns: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


class ShadowCounts(Counts):
    """Copies of requests that a model version got, by what came of them; a dropped one was never made."""

    success_count: int
    failure_count: int
    dropped_count: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


KINDS: Final[dict[str, type[Counts]]] = {
    MODEL: ModelCounts,
    BATCH_SIZE: BatchSizeCounts,
    RESPONSE: ResponseCounts,
    SHADOW: ShadowCounts,
}


class Totals:
    """Rows of any number of processes, summed by their labels."""

    def __init__(self) -> None:
        self.rows: dict[Label, Counts] = {}

    def row(self, label: Label) -> Counts:
        """Return the row of a label, zeros when it is new."""
        row = self.rows.get(label)
        if row is None:
            row = self.rows[label] = KINDS[label.kind]()
        return row

    def to_list(self) -> list[list[object]]:
        """Return the rows as plain data, for JSON: the label's parts and the values."""
        return [[*label, row.values()] for label, row in self.rows.items()]

    def add_list(self, rows: Iterable[Iterable[object]], *, present: bool = True) -> None:
        """Add what `to_list` has returned."""
        for *label, values in rows:
            self.row(Label(*label)).add(values, present=present)  # type: ignore[arg-type]
