import threading

import numpy as np
import onnxruntime
import pytest
from onnx_models import io, load, write_model

from deployments.backends import row_split
from deployments.backends.row_split import (
    COMPARED_NS,
    COMPARED_RUNS,
    FEWEST_COMPARED_RUNS,
    SLOW_RUN_NS,
    SLOW_RUNS,
    WATCHED_NS,
    RowSplit,
)
from tests.serving import wait_until

CORES = 2


class Timed:
    """A session of ONNX Runtime of which each row takes a time that the test says; keeps how many rows each run had."""

    def __init__(self, path, clock, row_ns):
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._clock = clock
        self.row_ns = row_ns
        self.rows = []
        self.meanwhile = lambda: None

    def run(self, names, feed, options):
        rows = len(next(iter(feed.values())))
        self.rows.append(rows)
        self._clock.now_ns += rows * self.row_ns
        self.meanwhile()
        return self._session.run(names, feed, options)


class Clock:
    now_ns = 0

    def __call__(self):
        return self.now_ns


class Split:
    """A model that doubles its rows, in the two ways."""

    def __init__(self, path, whole_row_ns, part_row_ns):
        clock = Clock()
        self.whole, self.single = Timed(path, clock, whole_row_ns), Timed(path, clock, part_row_ns)
        self.opened = 0
        self._split = RowSplit("m", self.whole, self._open, CORES, clock)

    def _open(self):
        self.opened += 1
        return self.single

    def run(self, rows):
        tensor = np.random.default_rng(rows).random((rows, 2), np.float32)
        (doubled,) = self._split.run(["Y"], {"X": tensor}, rows, None)
        np.testing.assert_array_equal(doubled, 2 * tensor)

    def watch_and_compare(self, rows=4):
        for _ in range(SLOW_RUNS):
            self.run(rows)
        wait_until(lambda: self._split._way is RowSplit._compare, "a second session")
        for _ in range(COMPARED_RUNS):
            self.run(rows)
        self.whole.rows.clear()
        self.single.rows.clear()


@pytest.fixture
def path(tmp_path):
    return write_model(tmp_path / "model.onnx", ["Add X,X Y"], ["X:FLOAT:n,2"], ["Y:FLOAT:n,2"])


def test_rows_run_in_parts_once_that_is_measured_as_quicker(path):
    split = Split(path, whole_row_ns=SLOW_RUN_NS, part_row_ns=SLOW_RUN_NS // 2)
    split.watch_and_compare()
    split.run(5)
    assert (split.whole.rows, sorted(split.single.rows)) == ([], [2, 3])


def test_few_batches_that_take_long_are_enough(path):
    row_ns = COMPARED_NS // 4
    split = Split(path, whole_row_ns=row_ns, part_row_ns=row_ns // 2)
    for _ in range(WATCHED_NS // (2 * row_ns) + 1):
        split.run(2)
    wait_until(lambda: split._split._way is RowSplit._compare, "a second session")
    for _ in range(FEWEST_COMPARED_RUNS):
        split.run(2)
    split.whole.rows.clear()
    split.single.rows.clear()
    split.run(2)
    assert (split.whole.rows, split.single.rows) == ([], [1, 1])


def test_fewer_rows_than_cores_run_on_all_threads(path):
    split = Split(path, whole_row_ns=SLOW_RUN_NS, part_row_ns=SLOW_RUN_NS // 2)
    split.watch_and_compare()
    split.run(1)
    assert (split.whole.rows, split.single.rows) == ([1], [])


def test_two_batches_at_a_time_have_a_core_each(path):
    split = Split(path, whole_row_ns=SLOW_RUN_NS, part_row_ns=SLOW_RUN_NS // 2)
    split.watch_and_compare()
    busy, go_on = threading.Event(), threading.Event()

    def wait():
        busy.set()
        assert go_on.wait(20)

    split.single.meanwhile = wait
    first = threading.Thread(target=split.run, args=(6,))
    first.start()
    assert busy.wait(20)
    split.single.meanwhile = lambda: None
    split.run(4)
    go_on.set()
    first.join()
    assert split.single.rows.count(3) == 2
    assert split.single.rows.count(4) == 1


def test_the_second_session_goes_when_parts_are_slower(path):
    split = Split(path, whole_row_ns=SLOW_RUN_NS, part_row_ns=2 * SLOW_RUN_NS)
    split.watch_and_compare()
    split.run(4)
    assert (split.whole.rows, split.single.rows) == ([4], [])
    assert split._split._single is None


def test_quick_batches_and_single_rows_open_no_second_session(path):
    split = Split(path, whole_row_ns=SLOW_RUN_NS // 8, part_row_ns=1)
    for _ in range(4 * SLOW_RUNS):
        split.run(4)
        split.run(1)
    assert not split.opened


def test_a_second_session_that_cannot_be_opened_leaves_all_as_it_was(path, caplog):
    split = Split(path, whole_row_ns=SLOW_RUN_NS, part_row_ns=1)
    del split.single
    for _ in range(SLOW_RUNS):
        split.run(4)
    wait_until(lambda: "a second session cannot be opened" in caplog.text, "the warning")
    split.run(4)
    assert split.whole.rows == [4] * (SLOW_RUNS + 1)


def test_outputs_that_are_not_by_rows_are_never_divided(tmp_path):
    path = write_model(tmp_path / "model.onnx", ["ReduceSum X Y keepdims=1"], ["X:FLOAT:n,2"], ["Y:FLOAT:1,1"])
    split = Split(path, whole_row_ns=SLOW_RUN_NS, part_row_ns=1)
    for _ in range(2 * SLOW_RUNS):
        split._split.run(["Y"], {"X": np.ones((4, 2), np.float32)}, 4, None)
    assert not split.opened


@pytest.mark.parametrize(
    ("nodes", "width"),
    [
        (["Transpose X T perm=1,0", "MatMul X,T Y"], "n"),
        (["ReduceMean X M axes=0", "Sub X,M Y"], 2),
        (["Size X N", "Cast N F to=1", "Add X,F Y"], 2),
    ],
    ids=["rows by rows", "without the mean", "the number of rows"],
)
def test_outputs_that_depend_on_other_rows_are_never_divided(tmp_path, nodes, width):
    path = write_model(tmp_path / "model.onnx", nodes, ["X:FLOAT:n,2"], [f"Y:FLOAT:n,{width}"])
    clock = Clock()
    whole, single = Timed(path, clock, SLOW_RUN_NS), Timed(path, clock, SLOW_RUN_NS // 2)
    split = RowSplit("m", whole, lambda: single, CORES, clock)
    feed = {"X": np.random.default_rng(1).random((4, 2), np.float32)}
    (expected,) = whole.run(["Y"], feed, None)
    for _ in range(SLOW_RUNS):
        split.run(["Y"], feed, 4, None)
    wait_until(lambda: split._way is RowSplit._compare, "a second session")
    for _ in range(2 * COMPARED_RUNS):
        np.testing.assert_array_equal(split.run(["Y"], feed, 4, None)[0], expected)
    assert split._way is RowSplit._whole and split._single is None


def test_a_model_that_takes_only_whole_batches_stays_whole(tmp_path):
    path = write_model(
        tmp_path / "model.onnx", ["Reshape X,S Y"], ["X:FLOAT:n,2"], ["Y:FLOAT:n,2"], {"S": np.array([4, 2])}
    )
    clock = Clock()
    whole, single = Timed(path, clock, SLOW_RUN_NS), Timed(path, clock, SLOW_RUN_NS // 2)
    split = RowSplit("m", whole, lambda: single, CORES, clock)
    feed = {"X": np.ones((4, 2), np.float32)}
    for _ in range(SLOW_RUNS):
        split.run(["Y"], feed, 4, None)
    wait_until(lambda: split._way is RowSplit._compare, "a second session")
    for _ in range(2):
        np.testing.assert_array_equal(split.run(["Y"], feed, 4, None)[0], feed["X"])
    assert split._way is RowSplit._whole and split._single is None


def test_a_batch_that_fails_as_a_whole_too_changes_nothing(path):
    split = Split(path, whole_row_ns=SLOW_RUN_NS, part_row_ns=SLOW_RUN_NS // 2)
    split.watch_and_compare()

    def fail():
        raise RuntimeError("of the batch")

    split.whole.meanwhile = split.single.meanwhile = fail
    with pytest.raises(RuntimeError, match="of the batch"):
        split.run(4)
    split.single.meanwhile = lambda: None
    split.single.rows.clear()
    split.run(4)
    assert split.single.rows == [2, 2]


DYNAMIC = "dynamic_batching { } "
INTRA = 'parameters { key: "intra_op_thread_count" value { string_value: "2" } }'
SIDE_BY_SIDE = 'parameters { key: "execution_mode" value { string_value: "1" } }'


@pytest.mark.parametrize(
    ("batch", "dims", "more", "largest_bytes", "divided"),
    [
        (8, "2", DYNAMIC, 1 << 20, True),
        (8, "2", "", 1 << 20, False),
        (8, "2", DYNAMIC, 10, False),
        (0, "-1, 2", "", 1 << 20, False),
        (8, "2", DYNAMIC + INTRA, 1 << 20, False),
        (8, "2", DYNAMIC + SIDE_BY_SIDE, 1 << 20, False),
    ],
)
def test_only_some_models_are_measured(path, monkeypatch, batch, dims, more, largest_bytes, divided):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr("deployments.backends.onnxruntime.LARGEST_WEIGHTS_BYTES", largest_bytes)
    config = f"max_batch_size: {batch} " + io("X", "input", "FP32", dims) + io("Y", "output", "FP32", dims) + more
    assert (load(path, config)[0]._model._row_split is not None) == divided


def test_a_batch_whose_outputs_are_as_wide_as_its_largest_row_says_runs_whole(tmp_path):
    path = write_model(
        tmp_path / "model.onnx",
        ["ReduceMax X M keepdims=0", "Cast M I to=7", "Range zero,I,one R", "Cast R F to=1", "Less F,X Y"],
        ["X:FLOAT:n,1"],
        ["Y:BOOL:n,m"],
        {"zero": np.int64(0), "one": np.int64(1)},
    )
    clock = Clock()
    whole, single = Timed(path, clock, SLOW_RUN_NS), Timed(path, clock, SLOW_RUN_NS // 2)
    split = RowSplit("m", whole, lambda: single, CORES, clock)

    def run(*lengths):
        feed = {"X": np.array(lengths, np.float32).reshape(-1, 1)}
        (mask,) = split.run(["Y"], feed, len(lengths), None)
        assert mask.tolist() == [[place < length for place in range(max(lengths))] for length in lengths]

    for _ in range(SLOW_RUNS):
        run(3, 1, 1, 3)
    wait_until(lambda: split._way is RowSplit._compare, "a second session")
    for _ in range(COMPARED_RUNS):
        run(3, 1, 1, 3)
    assert split._way is RowSplit._divided
    run(1, 2, 5, 6)
    single.rows.clear()
    run(3, 1, 1, 3)
    assert not single.rows


def test_batches_are_answered_though_the_system_has_no_more_threads(path, monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    split = Split(path, whole_row_ns=SLOW_RUN_NS, part_row_ns=SLOW_RUN_NS // 2)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(SLOW_RUNS):
        split.run(4)
    assert not split.opened
    monkeypatch.setattr(threading.Thread, "start", start)
    split.run(4)
    wait_until(lambda: split._split._way is RowSplit._compare, "a second session")
    row_split._threads.cache_clear()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    split.run(4)
    assert split.whole.rows[-1] == 4
    row_split._threads.cache_clear()
