import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest
from onnx_models import io, load, run, write_model

from deployments.backends import onnxruntime as backend
from deployments.backends.sized_sessions import SizedSessions, _are_close
from deployments.core.instance_pool import InstancePool
from repository_loader.package import InstanceSpec
from tests.deployments.fakes import FakeClock, FakeInstance

DOUBLES = ["Add X,X Y"]
CENTRES = ["ReduceMean X M axes=0 keepdims=1", "Sub X,M Y"]
SUMS = ["ReduceSum X Y keepdims=0"]


class Session:
    """A session of ONNX Runtime that keeps how many rows each of its runs had, and can do without memory for many."""

    def __init__(self, path, fails_above=1000):
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._fails_above = fails_above
        self.rows = []

    @staticmethod
    def has_memory():
        return True

    def run(self, names, feed, options):
        rows = len(feed["X"])
        if not self.has_memory():
            raise RuntimeError(
                "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer"
            )
        self.rows.append(rows)
        if rows > self._fails_above:
            raise RuntimeError("no memory")
        return self._session.run(names, feed, options)


class Sized:
    """A model in sized sessions, asked as the backend does."""

    def __init__(self, path, sizes=(1, 2, 4, 8), fails_above=1000):
        self.opened = [Session(path, fails_above)]
        self._open = lambda: self.opened.append(Session(path, fails_above)) or self.opened[-1]
        self.sessions = SizedSessions("m", self.opened[0], self._open, sizes)

    def run(self, rows):
        numbers = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
        size = self.sessions.size_of(rows)
        filled = np.concatenate([numbers, np.broadcast_to(numbers[-1:], (size - rows, 2))])
        (output,) = self.sessions.run(["Y"], {"X": filled}, rows, size, None)
        return numbers, output


@pytest.fixture
def sized(tmp_path):
    def make(nodes=DOUBLES, output="Y:FLOAT:n,2", **options):
        return Sized(write_model(tmp_path / "model.onnx", nodes, ["X:FLOAT:n,2"], [output]), **options)

    return make


def test_each_size_has_a_session_and_answers_are_those_of_the_batch_alone(sized):
    model = sized()
    for rows in (3, 4, 3, 8, 7, 5, 1, 3):
        numbers, output = model.run(rows)
        assert output.tolist() == (2 * numbers).tolist()
    # The first that was filled up ran alone, too, to be compared.
    assert [session.rows for session in model.opened] == [[4, 3, 4, 4, 4], [8, 8, 8], [1]]


@pytest.mark.parametrize("rows", [4, 3], ids=["of a size", "filled up"])
def test_a_batch_that_finds_no_memory_beside_other_sessions_runs_without_them(sized, monkeypatch, rows):
    model = sized()
    model.run(1), model.run(2)
    monkeypatch.setattr(Session, "has_memory", lambda _: len(model.sessions._sessions) == 1)
    for count in (rows, 8, 3):
        numbers, output = model.run(count)
        assert output.tolist() == (2 * numbers).tolist()
    assert model.sessions.size_of(3) == 3


def test_a_batch_without_memory_fails_where_it_has_all(sized, monkeypatch):
    model = sized()
    model.run(4)
    monkeypatch.setattr(Session, "has_memory", lambda _: False)
    with pytest.raises(RuntimeError, match="allocate"):
        model.run(4)
    assert model.sessions.size_of(3) == 4


def test_a_batch_waits_for_no_session_of_another_size(sized):
    model = sized()
    model.run(4)
    opens, may_end, open_another = threading.Event(), threading.Event(), model.sessions._open_another

    def open_slowly():
        opens.set()
        assert may_end.wait(10)
        return open_another()

    model.sessions._open_another = open_slowly
    with ThreadPoolExecutor(2) as threads:
        waits = threads.submit(model.run, 8)
        try:
            assert opens.wait(10)
            numbers, output = threads.submit(model.run, 4).result(5)
            assert output.tolist() == (2 * numbers).tolist()
            assert not waits.done()
        finally:
            may_end.set()
        numbers, output = waits.result(10)
    assert output.tolist() == (2 * numbers).tolist()


@pytest.mark.parametrize(("nodes", "output"), [(CENTRES, "Y:FLOAT:n,2"), (SUMS, "Y:FLOAT:")], ids=["a mean", "no rows"])
def test_batches_whose_rows_depend_on_each_other_are_not_filled_up(nodes, output, sized, caplog):
    model = sized(nodes, output)
    for rows in (3, 3, 7, 4):
        numbers, answer = model.run(rows)
        expected = numbers - numbers.mean(0) if nodes is CENTRES else numbers.sum()
        np.testing.assert_allclose(answer, expected)
    assert [session.rows for session in model.opened] == [[4, 3, 3, 7, 4]]
    assert "batches are not filled up to sizes that are prepared, as an output depends on other rows" in caplog.text


def test_a_batch_that_only_fails_when_it_is_filled_up_is_answered(sized, caplog):
    model = sized(fails_above=6)
    for rows in (2, 5, 5, 6):
        numbers, output = model.run(rows)
        assert output.tolist() == (2 * numbers).tolist()
    assert "as one that was filled up failed" in caplog.text
    with pytest.raises(RuntimeError, match="no memory"):
        model.run(8)


def test_where_no_session_can_be_opened_the_one_that_there_is_takes_all_sizes(sized, caplog):
    model = sized()
    model.run(4)

    def fail():
        raise RuntimeError("no memory for weights")

    model.sessions._open_another = fail
    for rows in (7, 3, 1):
        numbers, output = model.run(rows)
        assert output.tolist() == (2 * numbers).tolist()
    assert [session.rows for session in model.opened] == [[4, 8, 7, 3, 1]]
    assert "as another session cannot be opened" in caplog.text and "no memory for weights" in caplog.text


@pytest.mark.parametrize(
    ("datatype", "difference", "expected"),
    [
        (np.float32, 0.01, True),
        (np.float32, 0.1, False),
        (np.uint8, 1, True),
        (np.uint8, 9, False),
        (np.int64, 1, False),
    ],
)
def test_only_what_may_be_rounded_may_differ(datatype, difference, expected):
    one = np.array([[100, 1], [2, 3]], datatype)
    scale = 100 if datatype is np.float32 else 1
    assert _are_close(one, (one + np.array(difference * scale, datatype)).astype(datatype)) is expected


def test_several_threads_share_the_sessions(sized):
    model, together = sized(), threading.Barrier(4)

    def ask(number):
        together.wait()
        for rows in range(1, 9):
            numbers, output = model.run((rows + number) % 8 + 1)
            assert output.tolist() == (2 * numbers).tolist()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(4)))
    assert len(model.opened) == 4


@pytest.fixture
def load_filled(tmp_path, monkeypatch):
    """Load a model that doubles, on the CPU as if it were a GPU; whether its batches are filled up is told."""

    def load_instance(fills=True):
        monkeypatch.setattr(backend, "may_fill", lambda *_: fills)
        monkeypatch.setattr(backend, "providers", lambda *_: [("CPUExecutionProvider", {})])
        path = write_model(tmp_path / "model.onnx", DOUBLES, ["X:FLOAT:n,2"], ["Y:FLOAT:n,2"])
        tensors = io("X", "input", "FP32", 2) + io("Y", "output", "FP32", 2)
        (instance,) = load(path, "max_batch_size: 8 dynamic_batching { } " + tensors, [InstanceSpec("m_0", "GPU", 0)])
        return instance

    return load_instance


@pytest.mark.parametrize("fills", [True, False])
def test_no_session_is_opened_on_the_event_loop(fills, load_filled):
    assert load_filled(fills).may_run_inline is not fills


def test_requests_of_a_batch_that_is_filled_up_get_their_rows(load_filled, caplog):
    instance = load_filled()
    for counts in ((0,), (5,), (2, 3), (3, 0), (0, 0), (1, 1, 5), (8,), (6,)):
        inputs = [np.random.default_rng(count).standard_normal((count, 2), np.float32) for count in counts]
        results = run(instance, *({"X": rows} for rows in inputs))
        for rows, result in zip(inputs, results, strict=True):
            np.testing.assert_array_equal(result.outputs["Y"], 2 * rows)
    assert "not filled up" not in caplog.text


@pytest.mark.parametrize(("fills", "rows"), [(True, 8), (False, 5)])
def test_a_model_says_how_many_rows_its_batches_run_as(fills, rows, load_filled):
    instance = load_filled(fills)
    pool = InstancePool([instance], FakeClock())
    assert (pool.filled(1), pool.filled(5)) == (1, rows)
    pool.close()
    assert pool.filled(5) == 5
    assert InstancePool([FakeInstance(FakeClock())], FakeClock()).filled(5) == 5, "others say nothing of it"
