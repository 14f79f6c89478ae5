"""A batch's rows in parts, a thread for each, where that is quicker than all threads on one operator after the other.

With threads inside operators each operator waits for the slowest thread, so whatever else runs on the machine stops all
of them. Threads that each take rows through the whole model wait for each other once.
"""

import itertools
import logging
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any, Final

import numpy as np

from deployments.available_cores import available_cores
from protocol.infer import Array

log = logging.getLogger(__name__)

LARGEST_WEIGHTS_BYTES: Final = 256 << 20
"""The second session holds the weights again."""
SLOW_RUN_NS: Final = 2_000_000
SLOW_RUNS: Final = 16
COMPARED_RUNS: Final = 12
# Of batches that take long, fewer tell as much.
WATCHED_NS: Final = 500_000_000
COMPARED_NS: Final = 1_500_000_000
FEWEST_COMPARED_RUNS: Final = 3
LARGEST_DIFFERENCE: Final = 1e-3
"""Between the outputs of the two ways, as a share of the largest value."""

Feed = Mapping[str, Array]
_Way = Callable[["RowSplit", Sequence[str], Feed, int, Any], list[Array]]


class RowSplit:
    """Runs batches of a model whose rows do not depend on each other, in the way that has been measured as quicker.

    After 16 batches of at least a row for each core that took 2 ms or more, or half a second of them, a thread opens a
    second session, which uses only the thread that calls it. The next 12 such batches, or 1.5 s of them, but 3, run
    both on all threads and in parts. If parts were quicker, batches are divided from then on between the cores that no
    other batch of the model uses; those with fewer rows than cores run on all threads. Else the second session is
    dropped, and so it is where parts fail or give other outputs than the whole batch, or turn out later not to fit
    together.
    """

    def __init__(
        self,
        model_name: str,
        session: Any,
        open_single: Callable[[], Any],
        core_count: int,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._model_name = model_name
        self._session = session
        self._single: Any = None
        self._open_single = open_single
        self._core_count = core_count
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._under_way = 0
        self._slow_run_count = 0
        self._watched_ns = 0
        self._compared_ns = 0
        self._whole_ns: list[float] = []
        self._parts_ns: list[float] = []
        # Not a bound method: the session is to go with its last user, and not with a collection of cycles.
        self._way: _Way = RowSplit._watch

    def run(self, names: Sequence[str], feed: Feed, rows: int, options: Any) -> list[Array]:
        """Return the outputs `names` for `rows` rows; may be called on several threads at once."""
        return self._way(self, names, feed, rows, options)

    def _whole(self, names: Sequence[str], feed: Feed, rows: int, options: Any) -> list[Array]:
        del rows
        outputs: list[Array] = self._session.run(names, feed, options)
        return outputs

    def _watch(self, names: Sequence[str], feed: Feed, rows: int, options: Any) -> list[Array]:
        if rows < self._core_count:
            return self._whole(names, feed, rows, options)
        start_ns = self._clock_ns()
        outputs = self._whole(names, feed, rows, options)
        elapsed_ns = self._clock_ns() - start_ns
        if elapsed_ns < SLOW_RUN_NS:
            return outputs
        with self._lock:
            self._slow_run_count += 1
            self._watched_ns += elapsed_ns
            enough = self._slow_run_count >= SLOW_RUNS or self._watched_ns >= WATCHED_NS
            enough = enough and self._way is RowSplit._watch
            if enough:
                self._way = RowSplit._whole
        if enough:
            by_rows = all(array.ndim and len(array) == rows for array in outputs)
            if by_rows and all(len(array) == rows for array in feed.values()):
                try:
                    threading.Thread(target=self._open, name="open-session", daemon=True).start()
                except RuntimeError:  # the system has no more: the next slow batch tries again
                    self._way = RowSplit._watch
        return outputs

    def _open(self) -> None:
        try:
            self._single = self._open_single()
        except Exception:
            log.warning(
                "model '%s': batches are not divided between cores, a second session cannot be opened",
                self._model_name,
                exc_info=True,
            )
            return
        self._way = RowSplit._compare

    def _compare(self, names: Sequence[str], feed: Feed, rows: int, options: Any) -> list[Array]:
        if rows < self._core_count:
            return self._whole(names, feed, rows, options)
        start_ns = self._clock_ns()
        outputs = self._whole(names, feed, rows, options)
        middle_ns = self._clock_ns()
        parts = self._divided(names, feed, rows, options)
        end_ns = self._clock_ns()
        if not all(map(_are_close, outputs, parts)):
            self._stay_whole("an output depends on other rows of the batch")
            return outputs
        with self._lock:
            self._whole_ns.append((middle_ns - start_ns) / rows)
            self._parts_ns.append((end_ns - middle_ns) / rows)
            self._compared_ns += end_ns - start_ns
            fewest = FEWEST_COMPARED_RUNS if self._compared_ns >= COMPARED_NS else COMPARED_RUNS
            if len(self._parts_ns) >= fewest and self._way is RowSplit._compare:
                self._decide()
        return outputs

    def _decide(self) -> None:
        parts_us, whole_us = (statistics.median(times_ns) / 1000 for times_ns in (self._parts_ns, self._whole_ns))
        log.info(
            "model '%s': a row takes %.0f us in batches divided between cores and %.0f us in whole ones",
            self._model_name,
            parts_us,
            whole_us,
        )
        if parts_us < whole_us:
            self._way = RowSplit._divided
        else:
            self._way = RowSplit._whole
            self._single = None

    def _divided(self, names: Sequence[str], feed: Feed, rows: int, options: Any) -> list[Array]:
        single = self._single
        with self._lock:
            self._under_way += 1
            part_count = max(1, self._core_count // self._under_way)
        try:
            if rows < part_count or single is None:
                return self._whole(names, feed, rows, options)
            if part_count == 1:
                outputs: list[Array] = single.run(names, feed, options)
                return outputs
            parts = _in_parts(single, names, feed, rows, part_count, options)
        finally:
            with self._lock:
                self._under_way -= 1
        if parts is None:
            outputs = self._whole(names, feed, rows, options)  # which raises where the batch itself is to blame
            self._stay_whole("parts of one fail, or the size of an output depends on all rows")
            return outputs
        return parts

    def _stay_whole(self, reason: str) -> None:
        log.info("model '%s': batches stay whole, as %s", self._model_name, reason)
        self._way = RowSplit._whole
        self._single = None


def _in_parts(
    session: Any, names: Sequence[str], feed: Feed, rows: int, part_count: int, options: Any
) -> list[Array] | None:
    """Return the outputs.

    None when a part fails, as where a model has the size of its batches built in or the system has no more threads, and
    when parts of an output differ in size, as where rows are padded to the longest of them.
    """
    bounds = [rows * part // part_count for part in range(part_count + 1)]
    parts = [{name: array[start:end] for name, array in feed.items()} for start, end in itertools.pairwise(bounds)]
    others: list[Future[list[Array]]] = []
    try:
        others += (_threads().submit(session.run, names, part, options) for part in parts[1:])
        results = [session.run(names, parts[0], options), *(other.result() for other in others)]
    except Exception:
        wait(others)  # whose cores the whole batch is to have
        return None
    outputs = list(zip(*results, strict=True))
    if any(len({array.shape[1:] for array in arrays}) > 1 for arrays in outputs):
        return None
    return [np.concatenate(arrays) for arrays in outputs]


def _are_close(whole: Array, parts: Array) -> bool:
    """Whether the outputs of two ways are equal, but for the order in which floats were added up."""
    if whole.shape != parts.shape or whole.dtype.kind != "f":
        return np.array_equal(whole, parts)
    tolerance = max(LARGEST_DIFFERENCE, 8 * float(np.finfo(whole.dtype).eps))
    largest = np.abs(whole[np.isfinite(whole)]).max(initial=0)
    return np.allclose(whole, parts, rtol=tolerance, atol=tolerance * float(largest), equal_nan=True)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(available_cores(), "rows")
