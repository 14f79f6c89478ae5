"""Steps with many strings are written and read beside the loop, whatever becomes of them, and in their order."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.core.clock import LoopClock
from deployments.lane.work_queue import WorkQueue
from deployments.replica.remote_step import RemoteStep, StepCodec
from protocol.errors import Cancelled, Internal, ServingError, Unavailable
from protocol.http_infer import HttpInferCodec
from protocol.infer import COPIED, InferRequest, InferResponse
from protocol.limits import DEFAULT_LIMITS
from protocol.signature import Signature
from tests.deployments.fakes import slow_queue
from tests.deployments.lane.harness import on_loop

SIGNATURE = Signature.from_config(
    text_format.Parse(
        'name: "m" input { name: "X" data_type: TYPE_STRING dims: -1 } output { name: "Y" data_type: TYPE_STRING dims: -1 }',
        ModelConfig(),
    )
)
MANY = 70_000


def strings(count: int) -> Any:
    array = np.empty(count, np.object_)
    array[:] = [b"%d" % number for number in range(count)]
    return array


class Replica:
    """The target of steps; a test answers them as it likes."""

    def __init__(self) -> None:
        self.codec = HttpInferCodec(SIGNATURE, "1", DEFAULT_LIMITS, {})
        self.sent: list[InferRequest] = []
        self.cancelled: list[Any] = []
        self.copies: list[bool] = []

    def submit(self, parts: Sequence[Any], json_length: int, sink: Any, *, copied: bool, **more: Any) -> int:
        self.copies.append(copied)
        self.sent.append(self.codec.decode(b"".join(parts), json_length, lambda *_: None))
        return len(self.sent)

    def cancel(self, token: Any) -> None:
        self.cancelled.append(token)

    def tell_cancelled(self, token: Any) -> bool:
        self.cancelled.append(token)
        return False

    def answer(self, step: RemoteStep, count: int, *, final: bool = True) -> None:
        response = InferResponse({"Y": strings(count)}, final=final)
        json_length, parts = self.codec.encode(self.sent[0], response)
        step.on_response(json_length, parts, final)


class Steps:
    """Steps whose slow work waits until `go_on`; `heard` is what came of them, by their ids."""

    def __init__(self, queue: WorkQueue) -> None:
        self.queue = queue
        self.gate = threading.Event()
        self.replica = Replica()
        self.codec = StepCodec(SIGNATURE, queue)
        self.heard: list[tuple[str, Any]] = []
        self._clock = LoopClock(asyncio.get_running_loop())
        queue.submit(self.gate.wait, lambda *_: None)

    def begin(self, id: str, count: int, sequence_id: int = 0, flags: int = 0) -> RemoteStep:
        request = InferRequest({"X": strings(count)}, 1, self._reply, id=id, sequence_id=sequence_id, flags=flags)
        step = RemoteStep(request, self.codec, self.replica, self._clock)  # type: ignore[arg-type]
        step.begin()
        return step

    def _reply(self, request: InferRequest, result: InferResponse | ServingError) -> None:
        what = result if isinstance(result, ServingError) else (len(result.outputs["Y"]), result.final)
        self.heard.append((request.id, what))

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.heard) < count:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def steps() -> AsyncIterator[Steps]:
    queue = slow_queue()
    given = Steps(queue)
    try:
        yield given
    finally:
        given.gate.set()
        queue.close()


async def sent(given: Steps, count: int) -> None:
    async with asyncio.timeout(10):
        while len(given.replica.sent) < count:
            await asyncio.sleep(0.001)


@on_loop
async def test_a_step_of_a_copied_sequence_is_one_too() -> None:
    async with steps() as given:
        for flags in (0, COPIED):
            given.begin("r", 1, sequence_id=7, flags=flags)
        assert given.replica.copies == [False, True]


@on_loop
async def test_what_takes_long_is_written_and_read_beside_the_loop_and_others_pass_it() -> None:
    async with steps() as given:
        large, small = given.begin("large", MANY), given.begin("small", 3)
        assert [request.id for request in given.replica.sent] == ["small"]
        given.replica.answer(large, MANY)  # as if it had been sent
        given.replica.answer(small, 3)
        assert given.heard == [("small", (3, True))]
        given.codec.here = None  # type: ignore[assignment]
        given.gate.set()
        await given.until(2)
        assert given.heard[1] == ("large", (MANY, True))
        assert given.replica.sent[1].inputs["X"].tolist() == strings(MANY).tolist()


@on_loop
async def test_a_sequence_keeps_its_order() -> None:
    async with steps() as given:
        given.begin("first", MANY, sequence_id=7)
        given.begin("second", 3, sequence_id=7)
        assert not given.replica.sent
        given.gate.set()
        await sent(given, 2)
        assert [request.id for request in given.replica.sent] == ["first", "second"]
        assert not given.codec.writing


@on_loop
async def test_responses_and_the_error_after_them_come_in_their_order() -> None:
    async with steps() as given:
        step = given.begin("r", 3)
        given.replica.answer(step, MANY, final=False)
        given.replica.answer(step, 1, final=False)
        step.on_error(Unavailable("gone"))
        await asyncio.sleep(0)
        assert not given.heard
        given.gate.set()
        await given.until(3)
        assert given.heard[:2] == [("r", (MANY, False)), ("r", (1, False))]
        assert type(given.heard[2][1]) is Unavailable


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("when", ["writing", "reading"])
@on_loop
async def test_one_that_is_given_up_meanwhile_ends_once(when: str, listens: bool) -> None:
    async with steps() as given:
        if when == "writing":
            step = given.begin("r", MANY)
        else:
            step = given.begin("r", 3)
            given.replica.answer(step, MANY)
        step.cancel(listens=listens)
        assert given.replica.cancelled
        given.gate.set()
        await given.until(1)
        over = asyncio.get_running_loop().create_future()
        given.queue.submit(lambda: None, lambda *_: over.set_result(None))
        await over
        ((_, result),) = given.heard
        assert result == (MANY, True) if when == "reading" and listens else type(result) is Cancelled
        assert len(given.replica.sent) == (when == "reading")
        assert not given.codec.writing


@on_loop
async def test_a_stream_of_which_a_response_cannot_be_read_is_given_up() -> None:
    async with steps() as given:
        step = given.begin("r", 3)
        step.on_response(None, [b"{}"], False)
        await given.until(1)
        assert type(given.heard[0][1]) is Internal
        assert given.replica.cancelled == [1]


@pytest.mark.parametrize("ending", ["answer", "error", "cancel"])
@on_loop
async def test_a_step_that_has_ended_is_free_at_once(ending: str) -> None:
    class Token:
        def __init__(self, sink: Any) -> None:
            self.sink = sink

    async with steps() as given:
        kept: list[weakref.ref[Token]] = []
        submit = given.replica.submit

        def submitted(parts: Any, json_length: int, sink: Any, **more: Any) -> Token:
            submit(parts, json_length, sink, **more)
            token = Token(sink)
            kept.append(weakref.ref(token))
            return token

        given.replica.submit = submitted  # type: ignore[method-assign,assignment]
        given.replica.cancel = lambda token: None  # type: ignore[method-assign]
        gc.collect()
        gc.disable()
        try:
            step = given.begin("r", 1)
            assert kept[0]() is not None
            if ending == "answer":
                given.replica.answer(step, 1)
            elif ending == "error":
                step.on_error(Unavailable("gone"))
            else:
                step.cancel(listens=False)
            await given.until(1)
            del step
            assert kept[0]() is None, "it has the request's bytes, and leads back to the step"
        finally:
            gc.enable()
