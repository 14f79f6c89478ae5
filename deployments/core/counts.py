"""What is counted, as rows of 64-bit integers that can lie in memory which other processes read."""

from __future__ import annotations  # from Python 3.14 on, classes have no `__annotations__` in their bodies without it

import ctypes
import struct
from collections.abc import Callable, Collection, Iterable
from functools import cache
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple, Protocol, cast

from deployments.core.duration_buckets import BOUNDS_NS

MODEL: Final = "model"
BATCH_SIZE: Final = "batch size"
RESPONSE: Final = "response"
SHADOW: Final = "shadow"
FIRST_RESPONSE: Final = "first response"
FIRST_RESPONSE_SUM: Final = "first response sum"
SUMMARY: Final = "summary"
CLIENT: Final = "client"
CLIENT_ERROR: Final = "client error"
QUEUE: Final = "queue"
BATCH_REASON: Final = "batch reason"
STATE: Final = "state"
RETRY: Final = "retry"
LOAD_FAILURE: Final = "load failure"
LANES: Final = "lanes"
SCALING: Final = "scaling"
CPU: Final = "cpu"
GPU: Final = "gpu"
CUSTOM_COUNTER: Final = "custom counter"
CUSTOM_GAUGE: Final = "custom gauge"
CUSTOM_SUM: Final = "custom sum"
CUSTOM_BUCKET: Final = "custom bucket"
CUSTOM_HELD: Final = "custom held"


STATISTICS: Final = frozenset({MODEL, BATCH_SIZE, RESPONSE})
"""What statistics are made of; the others are metrics."""

OF_VERSIONS: Final = STATISTICS.union(
    (FIRST_RESPONSE, FIRST_RESPONSE_SUM, SUMMARY, CLIENT, CLIENT_ERROR),
    (SHADOW, QUEUE, BATCH_REASON, STATE, RETRY, LOAD_FAILURE),
)
"""The rows of one model version each, or of no model."""

LATENCIES: Final = (
    "request",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)
"""What there are summaries of."""
SLOTS: Final = 5
SLOT_NS: Final = 15_000_000_000
SUMMARY_BUCKETS: Final = 112


class Label(NamedTuple):
    """Names a row: its kind, the model version, and the batch size or the response's place in its stream, else 0.

    The name of a custom row is the metric's: JSON of its family, description, labels and bounds of its buckets; its
    number that of the bucket. The number of a first response's row is the upper bound of its bucket in
    microseconds, -1 for the last; that of a summary the place of its latency in `LATENCIES`; that of a client's row
    the wire form, and of an error 1000 times that plus the code, without a name where no model had the request. The
    name of a GPU's row is its UUID, and its number that on its node; the name of a deployment's is
    `<application>/<deployment>`. `gpu_uuid` is the GPU of the instances whose requests a row of kind `MODEL` or
    `SUMMARY` counts, "" where they have none or it is not known.
    """

    kind: str
    name: str
    version: int
    number: int = 0
    gpu_uuid: str = ""


class Counts(ctypes.Structure):
    """One row; of a field in `LARGEST` the larger counts, and one in `PRESENT` is the present state of a process.

    `COPIED` says that a row of zeros to which another is added is a copy of that one.
    """

    COPIED: ClassVar[bool] = True
    LARGEST: ClassVar[frozenset[str]] = frozenset()
    PRESENT: ClassVar[frozenset[str]] = frozenset()

    @property
    def cells(self) -> memoryview:
        """The row's memory as integers of 64 bits, for whoever counts in it often."""
        return memoryview(self).cast("B").cast("q")

    def values(self) -> list[int]:
        """Return the fields in their order, each as an integer of 64 bits."""
        return self.cells.tolist()

    def add(self, values: Iterable[int], *, present: bool = True) -> None:
        """Add another row; without its present state when its process is gone."""
        cells = self.cells
        for place, (field, value) in enumerate(zip(self._fields_, values, strict=True)):
            if value and (present or field[0] not in self.PRESENT):
                cells[place] = max(cells[place], value) if field[0] in self.LARGEST else cells[place] + value


class ModelCounts(Counts):
    """A model version's requests; a batch's durations count once for every request in it."""

    LARGEST = frozenset({"last_inference_ns", "load_duration_ns"})
    PRESENT = frozenset({"load_duration_ns", "pending_count", "cache_count"})

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
    cache_count: int
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


class NanosecondSum(Counts):
    """The sum of a histogram's observations."""

    sum_ns: int
    _fields_ = [("sum_ns", ctypes.c_int64)]


class SummaryCounts(Counts):
    """How long something took: all there was, and by slots of `SLOT_NS` the last minute, each in buckets.

    The n-th slot of time is at the place n modulo `SLOTS`, and is the one that its stamp says.
    """

    count: int
    sum_ns: int
    _fields_ = [
        ("count", ctypes.c_int64),
        ("sum_ns", ctypes.c_int64),
        ("stamps", ctypes.c_int64 * SLOTS),
        ("buckets", ctypes.c_int64 * (SLOTS * SUMMARY_BUCKETS)),
    ]

    def add(self, values: Iterable[int], *, present: bool = True) -> None:
        """Add another row; of two slots at one place the later is kept."""
        mine, others = self.cells, list(values)
        mine[0] += others[0]
        mine[1] += others[1]
        for slot in range(SLOTS):
            stamp, start = others[2 + slot], 2 + SLOTS + slot * SUMMARY_BUCKETS
            if stamp > mine[2 + slot]:
                mine[2 + slot] = stamp
                mine[start : start + SUMMARY_BUCKETS] = _words_of(others[start : start + SUMMARY_BUCKETS])
            elif stamp == mine[2 + slot]:
                for index in range(start, start + SUMMARY_BUCKETS):
                    mine[index] += others[index]


def _buckets() -> list[tuple[str, type[ctypes.c_int64]]]:
    return [(f"bucket_{place}", ctypes.c_int64) for place in range(len(BOUNDS_NS) + 1)]


class ClientCounts(Counts):
    """Requests of clients for a model version in one wire form; the buckets hold those that have succeeded."""

    PRESENT = frozenset({"inflight_count"})

    inflight_count: int
    cancelled_count: int
    failed_count: int
    sum_ns: int
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("inflight_count", "cancelled_count", "failed_count", "sum_ns")),
        *_buckets(),
    ]


class QueueCounts(Counts):
    """How long the requests of a model version have waited for an instance."""

    sum_ns: int
    _fields_ = [("sum_ns", ctypes.c_int64), *_buckets()]


class BatchReasons(Counts):
    """Batches of a dynamic batcher, by why each left when it did."""

    full: int
    preferred: int
    delay: int
    next_differs: int
    none_waits: int
    stopping: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


class ModelState(Counts):
    """What a process knew of a model version when it last looked: requests in it, and its own state."""

    LARGEST = frozenset({"oldest_age_ns"})
    PRESENT = frozenset({"oldest_age_ns", "executing_count", "ready_count", "loading_count", "unavailable_count"})

    oldest_age_ns: int
    executing_count: int
    ready_count: int
    loading_count: int
    unavailable_count: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


class LaneCounts(Counts):
    """What a process has sent over its lanes, and how many of these are open."""

    PRESENT = frozenset({"open_count"})

    socket_bytes: int
    shared_bytes: int
    open_count: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


class ScalingCounts(Counts):
    """Decisions of the autoscaler on one deployment, and how many replicas it wants."""

    PRESENT = frozenset({"wanted_count"})

    up_count: int
    down_count: int
    wanted_count: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


class CpuState(Counts):
    """The processors and the memory of a node; the share in use is in millionths."""

    PRESENT = LARGEST = frozenset({"utilization_ppm", "total_bytes", "used_bytes"})

    utilization_ppm: int
    total_bytes: int
    used_bytes: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


class GpuState(Counts):
    """One GPU of a node; `known` has a bit for each of the others that NVML tells."""

    PRESENT = LARGEST = frozenset(
        {"known", "utilization_ppm", "total_bytes", "used_bytes", "power_mw", "power_limit_mw", "energy_mj"}
    )

    known: int
    utilization_ppm: int
    total_bytes: int
    used_bytes: int
    power_mw: int
    power_limit_mw: int
    energy_mj: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


class CustomNumber(Counts):
    """What a model's own counter has counted, or the sum of a histogram's observations; travels as its 64 bits."""

    value: float
    _fields_ = [("value", ctypes.c_double)]

    def add(self, values: Iterable[int], *, present: bool = True) -> None:
        """Add another row."""
        self.value += CustomNumber.from_buffer_copy(_words(1).pack(*values)).value


class BucketCount(Counts):
    """How many observations of a histogram fell into one bucket, without those below it."""

    count: int
    _fields_ = [("count", ctypes.c_int64)]


class CustomGauge(Counts):
    """A model's own gauge: what it was last set to, and when, and what was added since; present state, all of it.

    `owners` is 0 when the process has nobody left who counts in it.
    """

    COPIED = False

    owners: int
    set_ns: int
    base: float
    added: float
    _fields_ = [
        ("owners", ctypes.c_int64),
        ("set_ns", ctypes.c_int64),
        ("base", ctypes.c_double),
        ("added", ctypes.c_double),
    ]

    def add(self, values: Iterable[int], *, present: bool = True) -> None:
        """Take another process's gauge in: the value that was set last, and what each has added since it set one."""
        other = CustomGauge.from_buffer_copy(_words(4).pack(*values))
        if not present or not other.owners:
            return
        if other.set_ns > self.set_ns:
            self.set_ns, self.base = other.set_ns, other.base
        self.added += other.added
        self.owners += other.owners


@cache
def _words(count: int) -> struct.Struct:
    return struct.Struct(f"={count}q")


def _words_of(values: list[int]) -> memoryview:
    return memoryview(_words(len(values)).pack(*values)).cast("q")


KINDS: Final[dict[str, type[Counts]]] = {
    MODEL: ModelCounts,
    BATCH_SIZE: BatchSizeCounts,
    RESPONSE: ResponseCounts,
    SHADOW: ShadowCounts,
    FIRST_RESPONSE: BucketCount,
    FIRST_RESPONSE_SUM: NanosecondSum,
    SUMMARY: SummaryCounts,
    CLIENT: ClientCounts,
    CLIENT_ERROR: BucketCount,
    QUEUE: QueueCounts,
    BATCH_REASON: BatchReasons,
    STATE: ModelState,
    RETRY: BucketCount,
    LOAD_FAILURE: BucketCount,
    LANES: LaneCounts,
    SCALING: ScalingCounts,
    CPU: CpuState,
    GPU: GpuState,
    CUSTOM_COUNTER: CustomNumber,
    CUSTOM_GAUGE: CustomGauge,
    CUSTOM_SUM: CustomNumber,
    CUSTOM_BUCKET: BucketCount,
    CUSTOM_HELD: CustomGauge,
}

_SIZES_BYTES: Final = {kind: ctypes.sizeof(kind) for kind in KINDS.values()}


IsGone = Callable[[str, int], bool]
"""Whether nobody is told any more what a model version, given by name and number, has counted."""

RowsByKind = dict[str, list[tuple[Label, Any]]]


class Rows(Protocol):
    """Where rows lie; the same label is always the same row."""

    def row(self, label: Label) -> Counts:
        """Return the row of a label, zeros when it is new."""
        ...


_ROWS_AT_ONCE: Final = 256


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

    def models(self) -> dict[tuple[str, int], ModelCounts]:
        """Return what was counted of each model version, on whichever device, by name and version."""
        labels = sorted(label for label in self.rows if label.kind == MODEL)
        return by_version((label, cast(ModelCounts, self.rows[label])) for label in labels)

    def by_kind(self, pause: Callable[[], None]) -> RowsByKind:
        """Return the rows of each kind in the order of their labels; `pause` is called now and then."""
        found: RowsByKind = {}
        for number, each in enumerate(self.rows.items()):
            found.setdefault(each[0].kind, []).append(each)
            if number % _ROWS_AT_ONCE == 0:
                pause()
        for rows in found.values():
            rows.sort(key=itemgetter(0))
            pause()
        return found

    def to_list(self, kinds: Collection[str] = frozenset()) -> list[list[object]]:
        """Return rows as plain data, for JSON: the label's parts and the values; without gauges of nobody's.

        Those of some kinds only, where any are named.
        """
        return [
            [*label, row.values()]
            for label, row in self.rows.items()
            if (not kinds or label.kind in kinds) and not (isinstance(row, CustomGauge) and not row.owners)
        ]

    def add_row(self, label: Label, memory: bytes, *, present: bool = True) -> None:
        """Add a row as it lies in memory; the first one of a label is copied, which is quick."""
        kind = KINDS[label.kind]
        if present and kind.COPIED and len(memory) == _SIZES_BYTES[kind]:
            row = kind.from_buffer_copy(memory)
            if self.rows.setdefault(label, row) is row:
                return
        self.row(label).add(_words(len(memory) // 8).unpack(memory), present=present)

    def add_list(self, rows: Iterable[Iterable[object]], *, present: bool = True) -> None:
        """Add what `to_list` has returned."""
        for *label, values in rows:
            self.row(Label(*label)).add(values, present=present)  # type: ignore[arg-type]

    def remove(self, is_gone: IsGone, pause: Callable[[], None]) -> bool:
        """Remove the rows of versions that are gone; returns whether there were any. `pause` is called now and then."""
        gone = []
        for label in self.rows:
            if label.kind in OF_VERSIONS and is_gone(label.name, label.version):
                gone.append(label)
            pause()
        for label in gone:
            del self.rows[label]
        return bool(gone)

    def add_totals(self, other: Totals) -> None:
        """Add other rows."""
        for label, row in other.rows.items():
            self.row(label).add(row.values())


def by_version(rows: Iterable[tuple[Label, ModelCounts]]) -> dict[tuple[str, int], ModelCounts]:
    """Return the sum of a model version's rows, by name and version in the order of the first ones."""
    found: dict[tuple[str, int], ModelCounts] = {}
    for label, row in rows:
        version = (label.name, label.version)
        other = found.get(version)
        if other is None:
            found[version] = row
        else:
            found[version] = both = ModelCounts()
            both.add(other.values())
            both.add(row.values())
    return found
