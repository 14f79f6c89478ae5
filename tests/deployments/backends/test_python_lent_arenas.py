"""Tensors in the arena of a lane, and the process of a Python model: named to it both ways, and not copied."""

import asyncio
import errno
import os
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.python.process import area, lent_regions
from deployments.backends.python.process.lent_regions import BorrowedRegions
from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from deployments.core.model_version import ModelVersion
from deployments.lane.arena import Arena, open_arena
from deployments.lane.lendable import lendable_under
from deployments.replica.guarded_mapping import GuardedMapping
from protocol.infer import Array, InferRequest, InferResponse, read_only
from repository_loader.package import InstanceSpec, ModelPackage

SPEC = InstanceSpec("m_0", "CPU", 0, own_process=True)
CONFIG = """
name: "m" backend: "python" max_batch_size: 4
input { name: "X" data_type: TYPE_INT32 dims: -1 }
input { name: "Z" data_type: TYPE_INT32 dims: -1 optional: true }
output { name: "Y" data_type: TYPE_INT32 dims: -1 }
"""
MODEL = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            {execute}
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", output)]))
        return responses
"""
LARGE = 50_000
"""Elements: 200 kB."""


class Lane:
    """Both arenas of a lane, as a replica has them."""

    def __init__(self, model: ModelVersion, room: Callable[[int], memoryview | None] | None = None) -> None:
        self._model = model
        self.submit = model.submit
        self._theirs = Arena(4 << 20)
        self._peer = open_arena(self._theirs.path)
        self._theirs.unlink()
        self.own = Arena(4 << 20)
        self.own.unlink()
        self.room = room or self.own.room

    def arrived(self, *values: int, count: int = LARGE) -> Array:
        """Return a tensor that begins with some values, as it lies where the ingress has put it."""
        content = np.zeros((1, count), np.int32)
        content[0, : len(values)] = values
        offset = self._theirs.put([content.tobytes()], content.nbytes)
        assert offset is not None
        body = np.frombuffer(self._peer[offset : offset + content.nbytes], np.uint8).data
        return np.ndarray(content.shape, content.dtype, body)

    async def ask(self, array: Array, **more: Array) -> Any:
        """Return the output, or the error."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = InferRequest({"X": array, **more}, len(array), lambda _, outcome: answer.set_result(outcome))
        request.room = self.room
        self._model.submit(request)
        outcome = await asyncio.wait_for(answer, 20)
        return outcome.outputs["Y"] if isinstance(outcome, InferResponse) else outcome

    def is_in_room(self, array: Array) -> bool:
        """Whether an output lies in the replica's own arena."""
        return lendable_under(array) is self.own._mapping


@asynccontextmanager
async def served(folder: Path, execute: str, config: str = "") -> AsyncIterator[Lane]:
    (folder / "model.py").write_text(MODEL.format(execute=execute))
    parsed = text_format.Parse(CONFIG + config, ModelConfig())
    package = ModelPackage("m", 1, parsed, str(folder), str(folder), str(folder / "model.py"))
    clock = LoopClock(asyncio.get_running_loop())
    model = await loader.load(package, [SPEC], clock, Core(clock))
    try:
        yield Lane(model)
    finally:
        await model.close(20)


async def until_dead(*references: "weakref.ref[Any]") -> None:
    async with asyncio.timeout(5):
        while any(reference() is not None for reference in references):
            await asyncio.sleep(0.01)


def test_an_input_is_where_the_ingress_has_put_it_and_may_be_written_to(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, "array += 1; output = array[:, :10]") as lane:
            for first in range(3):
                array = lane.arrived(first)
                assert (await lane.ask(array))[0, :2].tolist() == [first + 1, 1]
                assert array[0, :2].tolist() == [first + 1, 1]  # the model's writing is seen, so nothing was copied

    asyncio.run(run())


def test_an_input_that_others_look_at_as_well_is_left_as_it_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, "array += 1; output = array[:, :10]") as lane:
            array = lane.arrived(7)
            assert (await lane.ask(read_only(array)))[0, :2].tolist() == [8, 1]
            assert array[0, :2].tolist() == [7, 0]

    asyncio.run(run())


def test_an_input_is_held_as_long_as_the_model_keeps_it(tmp_path: Path) -> None:
    execute = "self.kept = self.kept * bool(array[0, 1]) + [array]; output = np.hstack([k[:, :1] for k in self.kept])"

    async def run() -> None:
        async with served(tmp_path, execute) as lane:
            references = []
            for number in range(4):
                array = lane.arrived(number, 1)
                references.append(weakref.ref(array))
                assert (await lane.ask(array)).tolist() == [list(range(number + 1))]
                del array
            assert all(reference() is not None for reference in references)
            assert (await lane.ask(lane.arrived(9, 0))).tolist() == [[9]]
            assert (await lane.ask(lane.arrived(9, 0, count=10))).tolist() == [[9]]
            await until_dead(*references)

    asyncio.run(run())


def test_a_model_that_keeps_much_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent_regions, "KEPT_BYTES", 1_000_000)

    async def run() -> None:
        async with served(tmp_path, "self.kept.append(array); output = array[:, :1] * len(self.kept)") as lane:
            references = []
            for number in range(12):
                array = lane.arrived(3)
                references.append(weakref.ref(array))
                assert (await lane.ask(array)).tolist() == [[3 * number + 3]]
                del array
            await until_dead(*references[6:])
            assert all(reference() is not None for reference in references[:6])

    asyncio.run(run())


def test_an_input_goes_back_with_an_output_that_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, "output = array.astype(np.complex64)") as lane:
            array = lane.arrived(1)
            reference = weakref.ref(array)
            assert "no datatype of the protocol" in str(await lane.ask(array))
            del array
            await until_dead(reference)

    asyncio.run(run())


@pytest.mark.parametrize("execute", ["os._exit(3)", "raise ValueError('no')"])
def test_inputs_of_a_batch_that_fails_or_whose_process_dies_are_let_go(tmp_path: Path, execute: str) -> None:
    async def run() -> None:
        async with served(tmp_path, f"if array[0, 0]: {execute}\n            output = array") as lane:
            array = lane.arrived(1)
            reference = weakref.ref(array)
            assert isinstance(await lane.ask(array), Exception)
            del array
            assert (await lane.ask(lane.arrived(0, 5)))[0, 1] == 5  # waits until there is a process again
            await until_dead(reference)

    asyncio.run(run())


def test_inputs_are_let_go_when_there_is_no_shared_memory_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with served(tmp_path, "output = array") as lane:
            with monkeypatch.context() as patched:
                patched.setattr(area, "MAX_BYTES", 0)
                array = lane.arrived(1)
                reference = weakref.ref(array)
                failed = await lane.ask(array, Z=np.zeros((1, LARGE), np.int32))
                assert "no room for" in str(failed)
                del array, failed
            await until_dead(reference)
            assert (await lane.ask(lane.arrived(0, 5)))[0, 1] == 5

    asyncio.run(run())


def test_an_input_that_is_part_of_the_output_goes_back_with_the_answer(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, "output = array") as lane:
            lane.room = lambda size_bytes: None
            array = lane.arrived(3)
            reference = weakref.ref(array)
            assert (await lane.ask(array))[0, 0] == 3
            del array
            await until_dead(reference)

    asyncio.run(run())


def test_a_decoupled_model_gets_copies_which_it_may_keep_in_silence(tmp_path: Path) -> None:
    async def run() -> None:
        execute = "request.get_response_sender().send(flags=1); array += 1; self.kept.append(array); continue"
        async with served(tmp_path, execute, "model_transaction_policy { decoupled: true }") as lane:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            array = lane.arrived(7)
            lane.submit(InferRequest({"X": array}, 1, lambda _, outcome: answer.set_result(outcome)))
            await asyncio.wait_for(answer, 20)
            reference = weakref.ref(array)
            assert array[0, 0] == 7
            del array
            await until_dead(reference)

    asyncio.run(run())


def test_a_process_that_has_no_memory_to_map_an_arena_ends_rather_than_reads_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arena = Arena(1 << 20)
    arena.unlink()
    whole = (1, 0, 1 << 20)

    def without_memory(descriptor: int, *more: Any, **rest: Any) -> GuardedMapping:
        if descriptor >= 0:
            raise OSError(errno.ENOMEM, "no memory")
        return GuardedMapping(descriptor, *more, **rest)

    with monkeypatch.context() as patched:
        patched.setattr(lent_regions, "GuardedMapping", without_memory)
        with pytest.raises(OSError, match="no memory"):
            BorrowedRegions().borrow([arena._mapping.open_again()], [whole])
    borrowed = BorrowedRegions()
    borrowed.borrow([arena._mapping.open_again()], [whole])
    borrowed.view((1, 0, 3))[:] = b"abc"
    assert arena._view[:3] == b"abc"


def test_what_is_forgotten_before_it_is_heard_of_is_not_kept() -> None:
    arena = Arena(1 << 20)
    arena.unlink()
    before = len(os.listdir("/proc/self/fd"))
    borrowed = BorrowedRegions()
    borrowed.forget(None, 1)
    borrowed.borrow([arena._mapping.open_again()], [(1, 0, 1 << 20)])
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_output_is_made_where_the_response_leaves_once_its_size_is_known(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, "output = np.full((1, array[0, 0]), array[0, 1], np.int32)") as lane:
            sizes = {LARGE: [False, True, True], 2 * LARGE: [False, True], LARGE + 1: [True], 40: [False, False]}
            value = 0
            for size, in_room in sizes.items():
                for expected in in_room:
                    value += 1
                    output = await lane.ask(lane.arrived(size, value))
                    assert output.shape == (1, size) and (output == value).all()
                    assert lane.is_in_room(output) is expected, size
                    del output
            assert lane.own.taken_count == 0

    asyncio.run(run())


def test_the_output_comes_all_the_same_where_there_is_no_room(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, "output = array * 2") as lane:
            lane.room = lambda size_bytes: None
            for value in range(3):
                output = await lane.ask(lane.arrived(value))
                assert output[0, 0] == 2 * value and not lane.is_in_room(output)

    asyncio.run(run())


def test_each_request_of_a_batch_has_a_room_of_its_own(tmp_path: Path) -> None:
    async def run() -> None:
        batching = "dynamic_batching { max_queue_delay_microseconds: 20000 }"
        async with served(tmp_path, "output = array + len(requests)", batching) as lane:
            await lane.ask(lane.arrived(0))
            outputs = await asyncio.gather(*[lane.ask(lane.arrived(10 * number)) for number in range(4)])
            assert [output[0, :2].tolist() for output in outputs] == [[10 * n + 4, 4] for n in range(4)]
            assert all(map(lane.is_in_room, outputs))
            assert lane.own.taken_count == 4
            del outputs
            await asyncio.sleep(0.01)
            assert lane.own.taken_count == 0

    asyncio.run(run())


def test_a_batch_without_rows_has_no_room(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, "output = np.zeros((max(1, len(array)), 50000), np.int32)") as lane:
            for rows in (1, 0, 1, 0):
                output = await lane.ask(np.zeros((rows, 3), np.int32))
                assert output.shape == (1, LARGE)
                del output
            assert lane.own.taken_count == 0

    asyncio.run(run())


def test_strings_have_no_room(tmp_path: Path) -> None:
    async def run() -> None:
        execute = "output = np.full((1, 20000), b'text', object)"
        async with served(tmp_path, execute) as lane:
            for value in range(2):
                output = await lane.ask(lane.arrived(value))
                assert output.dtype == object and output[0, 0] == b"text"
            assert lane.own.taken_count == 0

    asyncio.run(run())
