"""Inputs that a GPU fetches, which here are copied to other memory of the process by `tests/cuda.c`."""

import ctypes
import gc
import os
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx_models import io, load, request_of, run, write_model

from deployments.backends import device_inputs
from deployments.backends.device_inputs import DeviceInputs, DeviceRows, first_rows
from deployments.backends.device_session import DeviceSession
from deployments.lane.arena import Arena
from deployments.lane.lendable import address_of, lendable_under
from deployments.replica import cuda_driver
from deployments.replica.node_folder import NodeFolder
from deployments.replica.region_table import RegionTable
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.errors import Internal
from protocol.infer import Array
from tests.gpus import build_driver, forget_driver, use_driver

WIDTH = 32 << 10
ROW_BYTES = 4 * WIDTH
ARENA_BYTES = 16 * ROW_BYTES
MOST_FETCHES = 256
"""How many the stand-in takes before a thread waits."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(autouse=True)
def driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    use_driver(str(library), "0", monkeypatch)
    driver = ctypes.CDLL(str(library))
    gc.collect()
    driver.pinnedBytes.restype = driver.allocatedBytes.restype = ctypes.c_size_t
    yield driver
    forget_driver()


def rows_of(*numbers: int) -> Array:
    return np.repeat(np.array(numbers, np.float32), WIDTH).reshape(-1, WIDTH)


def in_arena(arena: Arena, rows: Array) -> Array:
    room = arena.room(rows.nbytes)
    assert room is not None
    array = np.frombuffer(room, np.float32).reshape(rows.shape)
    array[:] = rows
    assert lendable_under(array) is not None
    return array


def content(fetched: Array | DeviceRows) -> Array:
    assert isinstance(fetched, DeviceRows)
    count = int(np.prod(fetched.shape))
    raw = ctypes.string_at(fetched.address, count * fetched.dtype.itemsize)
    return np.frombuffer(raw, fetched.dtype).reshape(fetched.shape)


@pytest.fixture
def inputs() -> DeviceInputs:
    return DeviceInputs(0, pins=True)


def test_rows_lie_one_after_the_other_and_the_last_stands_for_those_that_are_missing(inputs: DeviceInputs) -> None:
    fetched = inputs.join("X", [rows_of(1, 2), rows_of(3), rows_of()], missing_rows=2)
    assert content(fetched)[:, 0].tolist() == [1, 2, 3, 3, 3]
    assert content(first_rows(fetched, 2))[:, -1].tolist() == [1, 2]


def test_what_does_not_lie_row_by_row_is_brought_in_order(inputs: DeviceInputs) -> None:
    table = np.arange(4 * WIDTH, dtype=np.float32).reshape(WIDTH, 4).T
    assert content(inputs.join("X", [table, rows_of(7)])).tolist() == [*table.tolist(), [7] * WIDTH]
    assert content(inputs.join("X", [table])).tolist() == table.tolist()
    tables = [number * table for number in range(1, 5)]
    assert np.array_equal(content(inputs.join("X", tables)), np.concatenate(tables))


def test_the_only_request_of_a_model_that_does_not_batch_has_its_own_shape(inputs: DeviceInputs) -> None:
    assert content(inputs.join("X", [rows_of(5)[0]])).tolist() == [5] * WIDTH


@pytest.mark.parametrize(
    "arrays",
    [
        [np.ones((1, 8), np.float32)] * 3,
        [np.ones((1, 8), np.float32)] * 20_000,
        [np.array([["text" * 100]] * WIDTH, object)],
        [np.array(3, np.float32)],
    ],
    ids=["small", "many small", "strings", "scalar"],
)
def test_what_is_joined_sooner_or_cannot_be_fetched_stays_an_array(arrays: list[Array], inputs: DeviceInputs) -> None:
    joined = inputs.join("X", arrays)
    assert isinstance(joined, np.ndarray)
    assert np.array_equal(joined, np.concatenate(arrays) if len(arrays) > 1 else arrays[0])


def test_small_ones_are_filled_up_as_well(inputs: DeviceInputs) -> None:
    joined = inputs.join("X", [np.ones((1, 2), np.float32), np.full((1, 2), 7, np.float32)], missing_rows=2)
    assert isinstance(joined, np.ndarray) and joined.tolist() == [[1, 1], [7, 7], [7, 7], [7, 7]]


def test_requests_of_different_shapes_fail(inputs: DeviceInputs) -> None:
    with pytest.raises(ValueError, match="dimension"):
        inputs.join("X", [rows_of(1, 2), rows_of(3)[:, :-1]])


def test_memory_is_used_again_and_grows(inputs: DeviceInputs, driver: Any) -> None:
    before_bytes = driver.allocatedBytes()
    first, second = inputs.join("X", [rows_of(1, 2)]), inputs.join("X", [rows_of(3)])
    assert isinstance(first, DeviceRows) and isinstance(second, DeviceRows)
    assert first.address == second.address
    assert content(inputs.join("Z", [rows_of(9)]))[0, 0] == 9
    assert content(inputs.join("X", [rows_of(4, 5, 6)]))[:, 0].tolist() == [4, 5, 6]
    assert driver.allocatedBytes() - before_bytes == 4 * ROW_BYTES


def test_shared_memory_is_pinned_once_it_was_worth_it_until_it_is_gone(inputs: DeviceInputs, driver: Any) -> None:
    arena = Arena(ARENA_BYTES)
    array = in_arena(arena, rows_of(1, 2, 3, 4))
    for times in range(1, 7):
        array[:] = times
        assert content(inputs.join("X", [array]))[:, 0].tolist() == [times] * 4
        assert driver.pinnedBytes() == (ARENA_BYTES if times >= 4 else 0)
    arena.unlink()
    del array, arena
    gc.collect()
    assert driver.pinnedBytes() == 0


def test_an_object_that_gets_other_memory_is_mapped_anew_and_not_pinned_again(
    inputs: DeviceInputs, driver: Any, tmp_path: Path
) -> None:
    regions = Regions(RegionTable(NodeFolder("node", tmp_path)))
    path = Path("/dev/shm", f"eagleray-test-{secrets.token_hex(8)}")

    def fetched() -> float:
        array = np.frombuffer(regions.view("r", 0, ROW_BYTES), np.float32).reshape(1, WIDTH)
        return content(inputs.join("X", [array]))[0, 0]

    try:
        path.write_bytes(rows_of(1).tobytes())
        regions.register("r", path.name, 0, ROW_BYTES)
        assert fetched() == 1
        assert driver.pinnedBytes() == 0  # it may be written to once more at the same time, as the kernel tells it
        os.utime(path, (0, 0))
        for number in (2, 3):  # a GPU sees what is stored to memory that is pinned
            regions.view("r", 0, ROW_BYTES)[:] = rows_of(number).tobytes()
            assert fetched() == number
            assert driver.pinnedBytes() == ROW_BYTES
        for number in (4, 5):  # but not what is written to memory that has taken its place
            path.write_bytes(rows_of(number).tobytes())
            assert fetched() == number
            assert driver.pinnedBytes() == 0
    finally:
        path.unlink()


def test_memory_stays_pinned_when_its_client_unlinks_it(inputs: DeviceInputs, driver: Any, tmp_path: Path) -> None:
    regions = Regions(OwnTable())
    path = Path("/dev/shm", f"eagleray-test-{secrets.token_hex(8)}")
    path.write_bytes(rows_of(1).tobytes())
    os.utime(path, (0, 0))
    regions.register("r", path.name, 0, ROW_BYTES)
    for unlinks in (True, False):
        array = np.frombuffer(regions.view("r", 0, ROW_BYTES), np.float32).reshape(1, WIDTH)
        assert content(inputs.join("X", [array]))[0, 0] == 1
        assert driver.pinnedBytes() == ROW_BYTES
        if unlinks:
            path.unlink()


def test_the_driver_reads_nothing_itself_that_a_client_can_make_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    regions, inputs, sources = Regions(OwnTable()), DeviceInputs(0, pins=False), []
    path = Path("/dev/shm", f"eagleray-test-{secrets.token_hex(8)}")
    path.write_bytes(rows_of(1).tobytes())
    regions.register("r", path.name, 0, ROW_BYTES)
    path.unlink()
    array = np.frombuffer(regions.view("r", 0, ROW_BYTES), np.float32).reshape(1, WIDTH)

    def call(name: str, *arguments: Any) -> None:
        if name.startswith("cuMemcpyHtoD"):
            sources.append(arguments[1].value)
        cuda_driver.call(name, *arguments)

    monkeypatch.setattr(device_inputs, "call", call)
    assert content(inputs.join("X", [array]))[0, 0] == 1
    assert len(sources) == 1 and not 0 <= sources[0] - address_of(array) < ROW_BYTES


@pytest.mark.parametrize("beside_a_large_one", [False, True])
def test_nor_does_it_so_for_a_session_where_inputs_are_small(inputs: DeviceInputs, beside_a_large_one: bool) -> None:
    class Session:
        """Where a session of ONNX Runtime would read its inputs, by name."""

        def __init__(self) -> None:
            self.read: dict[str, tuple[int, list[float]]] = {}

        def note(self, name: str, address: int, size: int) -> None:
            self.read[name] = address, np.frombuffer(ctypes.string_at(address, 4 * size), np.float32).tolist()

        def run(self, names: list[str], feed: dict[str, Array], options: object) -> list[Array]:
            for name, array in feed.items():
                self.note(name, address_of(array), array.size)
            return []

        def io_binding(self) -> "Session":
            return self

        def bind_input(self, name: str, kind: str, device: int, dtype: object, shape: Any, address: int) -> None:
            self.note(name, address, int(np.prod(shape)))

        def run_with_iobinding(self, binding: object, options: object) -> None: ...

        def get_outputs(self) -> list[Any]:
            return []

    regions, path, session = Regions(OwnTable()), Path("/dev/shm", f"eagleray-test-{secrets.token_hex(8)}"), Session()
    path.write_bytes(np.arange(8, dtype=np.float32).tobytes())
    regions.register("r", path.name, 0, 32)
    path.unlink()
    array = np.frombuffer(regions.view("r", 0, 32), np.float32)
    feed = {name: inputs.join(name, [rows]) for name, rows in (("X", array[:4]), ("T", array.reshape(4, 2).T))}
    if beside_a_large_one:
        feed["L"] = inputs.join("L", [rows_of(1)])
    DeviceSession(session, 0).run([], feed, None)
    assert session.read["X"][1] == [0, 1, 2, 3] and session.read["T"][1] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert not any(0 <= session.read[name][0] - address_of(array) < 32 for name in ("X", "T"))


def test_nor_for_a_model_of_brain_floats(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx", ["Identity X Y"], ["X:BFLOAT16:n"], ["Y:BFLOAT16:n"])
    (instance, *_) = load(path, io("X", "input", "BF16", 4) + io("Y", "output", "BF16", 4))
    model: Any = instance._model
    regions, path = Regions(OwnTable()), Path("/dev/shm", f"eagleray-test-{secrets.token_hex(8)}")
    path.write_bytes(bytes(8))
    regions.register("r", path.name, 0, 8)
    path.unlink()
    array = np.frombuffer(regions.view("r", 0, 8), np.uint16)
    for model.on_gpu in (False, True):
        value = model._to_value("X", array)
        assert (value.data_ptr() == address_of(array)) == (not model.on_gpu)


def test_nothing_is_pinned_that_shall_not_or_cannot_be(
    inputs: DeviceInputs, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(ARENA_BYTES)
    array = in_arena(arena, rows_of(1, 2))
    for refuses in ("told", "driver", "size"):
        if refuses == "driver":
            monkeypatch.setenv("CUDA_TEST_PINS_NOTHING", "1")
        if refuses == "size":
            monkeypatch.delenv("CUDA_TEST_PINS_NOTHING")
            monkeypatch.setattr(device_inputs, "MOST_PINNED_BYTES", ARENA_BYTES - 1)
        chosen = DeviceInputs(0, pins=False) if refuses == "told" else inputs
        for _ in range(20):
            assert content(chosen.join("X", [array]))[:, 0].tolist() == [1, 2]
        assert driver.pinnedBytes() == 0
    arena.unlink()


def test_without_memory_on_the_gpu_rows_are_joined_on_the_cpu(
    inputs: DeviceInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_TEST_MOST_BYTES", str(3 * ROW_BYTES))
    joined = inputs.join("X", [rows_of(1, 2), rows_of(3)], missing_rows=1)
    assert isinstance(joined, np.ndarray) and joined[:, 0].tolist() == [1, 2, 3, 3]
    assert content(inputs.join("X", [rows_of(1, 2)]))[:, 0].tolist() == [1, 2]


def test_what_is_too_small_goes_before_there_is_more(inputs: DeviceInputs, driver: Any, monkeypatch: Any) -> None:
    held_bytes = []

    def call(name: str, *arguments: Any) -> None:
        if name.startswith("cuMemAlloc"):
            held_bytes.append(driver.allocatedBytes())
        cuda_driver.call(name, *arguments)

    monkeypatch.setattr(device_inputs, "call", call)
    for numbers in ((1,), (1, 2)):
        assert content(inputs.join("X", [rows_of(*numbers)]))[:, 0].tolist() == [*numbers]
    assert held_bytes[0] == held_bytes[1]


def test_nothing_is_fetched_any_more_when_the_driver_has_refused_to(inputs: DeviceInputs, driver: Any) -> None:
    many = [np.full((1, WIDTH), number, np.float32) for number in range(MOST_FETCHES + 1)]
    joined = inputs.join("X", many)
    assert isinstance(joined, np.ndarray) and joined[:, 0].tolist() == list(range(MOST_FETCHES + 1))
    assert driver.fetchesUnderWay() == 0


def test_each_thread_has_memory_of_its_own_until_it_ends(inputs: DeviceInputs, driver: Any) -> None:
    together, arena, before_bytes = Barrier(4), Arena(ARENA_BYTES), driver.allocatedBytes()

    def join(number: int) -> None:
        array = in_arena(arena, rows_of(number))
        for _ in range(20):
            together.wait(10)
            fetched = inputs.join("X", [array, rows_of(number + 100)])
            together.wait(10)
            assert content(fetched)[:, 0].tolist() == [number, number + 100]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(join, range(4)))
        assert driver.allocatedBytes() - before_bytes == 4 * 2 * ROW_BYTES
    gc.collect()
    assert driver.allocatedBytes() == before_bytes
    assert driver.pinnedBytes() == ARENA_BYTES
    arena.unlink()


@pytest.mark.parametrize(
    ("datatype", "kind"),
    [
        ("FLOAT", np.float32),
        ("FLOAT16", np.float16),
        ("DOUBLE", np.float64),
        ("BOOL", np.bool_),
        ("UINT8", np.uint8),
        ("INT16", np.int16),
        ("UINT32", np.uint32),
        ("INT64", np.int64),
    ],
)
def test_a_session_takes_inputs_of_a_device_beside_others(datatype: str, kind: type, tmp_path: Path) -> None:
    nodes, tensors = ["Identity X Y", "Add Z,Z W"], [f"X:{datatype}:n,4", "Z:FLOAT:n,1"]
    path = write_model(tmp_path / "model.onnx", nodes, tensors, [f"Y:{datatype}:n,4", "W:FLOAT:n,1"])
    session = DeviceSession(onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]), 0, "cpu")
    array = np.arange(12).reshape(3, 4).astype(kind)
    fetched = DeviceRows(array.__array_interface__["data"][0], array.dtype, array.shape)
    doubled, same = session.run(["W", "Y"], {"X": fetched, "Z": np.ones((3, 1), np.float32)}, None)
    assert doubled.tolist() == [[2]] * 3
    assert same.tolist() == array.tolist() and same.dtype == array.dtype


def test_a_session_takes_another_value_for_an_initializer_beside_an_input_of_a_device(tmp_path: Path) -> None:
    tensors, weights = ["X:FLOAT:n,2", "W:FLOAT:1"], {"W": np.ones(1, np.float32)}
    path = write_model(tmp_path / "model.onnx", ["Add X,W Y"], tensors, ["Y:FLOAT:n,2"], weights)
    session = DeviceSession(onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]), 0, "cpu")
    array = np.zeros((1, 2), np.float32)
    fetched = DeviceRows(array.__array_interface__["data"][0], array.dtype, array.shape)
    for feed, found in (({}, [1, 1]), ({"W": np.full(1, 7, np.float32)}, [7, 7])):
        (answer,) = session.run(["Y"], {"X": fetched, **feed}, None)
        assert answer.tolist() == [found]


def test_a_session_takes_inputs_of_every_order_and_without_elements_beside_those_of_a_device(tmp_path: Path) -> None:
    path = write_model(
        tmp_path / "model.onnx", ["Add X,X Y", "Add Z,Z W"], ["X:FLOAT:n", "Z:FLOAT:m,2"], ["W:FLOAT:m,2"]
    )
    session = DeviceSession(onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]), 0, "cpu")
    array = np.zeros(1, np.float32)
    fetched = DeviceRows(array.__array_interface__["data"][0], array.dtype, array.shape)
    for other in (np.arange(6, dtype=np.float32).reshape(2, 3).T, np.zeros((0, 2), np.float32)):
        (answer,) = session.run(["W"], {"X": fetched, "Z": other}, None)
        assert np.array_equal(answer, 2 * other)


def test_a_model_has_its_large_inputs_fetched(tmp_path: Path) -> None:
    nodes, outputs = ["Add X,X Y", "Add S,S T"], [f"Y:FLOAT:n,{WIDTH}", "T:INT64:n,1"]
    path = write_model(tmp_path / "model.onnx", nodes, [f"X:FLOAT:n,{WIDTH}", "S:INT64:n,1"], outputs)
    tensors = io("X", "input", "FP32", WIDTH) + io("S", "input", "INT64", 1)
    tensors += io("Y", "output", "FP32", WIDTH) + io("T", "output", "INT64", 1)
    (instance, *_) = load(path, "max_batch_size: 8 " + tensors)
    model: Any = instance._model
    model._device_inputs = DeviceInputs(0, pins=True)
    model._session = DeviceSession(model._session, 0, "cpu")
    requests = [request_of(rows=1, X=rows_of(number), S=np.int64([[number]])) for number in (3, 4)]
    for batch in (requests[:1], requests):
        answers = run(instance, *batch)
        assert [answer.outputs["Y"][0, 0] for answer in answers] == [6, 8][: len(batch)]
        assert [answer.outputs["T"].tolist() for answer in answers] == [[[6]], [[8]]][: len(batch)]


@pytest.mark.parametrize("shape", [(1, WIDTH + 1), (1, WIDTH, 1)], ids=["dimension", "rank"])
def test_errors_have_the_words_and_codes_of_those_of_joined_inputs(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx", ["Add X,X Y"], [f"X:FLOAT:n,{WIDTH}"], [f"Y:FLOAT:n,{WIDTH}"])
    (instance, *_) = load(
        path, "max_batch_size: 8 " + io("X", "input", "FP32", WIDTH) + io("Y", "output", "FP32", WIDTH)
    )
    model: Any = instance._model
    request = request_of(rows=1, X=np.ones(shape, np.float32))
    with pytest.raises(Internal) as joined:
        run(instance, request)
    model._device_inputs = DeviceInputs(0, pins=True)
    model._session = DeviceSession(model._session, 0, "cpu")
    with pytest.raises(Internal) as fetched:
        run(instance, request)
    assert joined.value.message.startswith("onnx runtime error 2: ")
    assert fetched.value.message == joined.value.message
