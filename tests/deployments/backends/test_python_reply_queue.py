"""How what a decoupled model sends reaches the event loop."""

import asyncio
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from deployments.backends.python.reply_queue import ReplyQueue
from protocol.errors import Internal
from protocol.infer import InferRequest, StreamedResponse


def response(size: int, *, final: bool = False) -> StreamedResponse:
    return StreamedResponse({"Y": np.zeros(size, np.uint8)}, {}, final, 0)


def test_a_reply_that_fails_holds_up_no_other_response() -> None:
    calls: list[Callable[[], None]] = []
    heard: list[str] = []
    replies = ReplyQueue(calls.append)

    def reply(request: InferRequest, result: object) -> None:
        heard.append(request.id)
        if request.id == "fails":
            raise ValueError("cannot be written")

    for name in ("fails", "other"):
        replies.put(InferRequest({}, 1, reply, id=name), Internal("no"))
    while calls:
        calls.pop()()
    assert heard == ["fails", "other"]


def test_the_loop_replies_to_some_in_each_turn_and_to_all_in_order() -> None:
    calls: list[Callable[[], None]] = []
    heard: list[object] = []
    replies = ReplyQueue(calls.append)
    calls.pop()()
    request = InferRequest({}, 1, lambda _, result: heard.append(result))
    sent = [response(1) for _ in range(150)]
    for each in sent:
        replies.put(request, each)
    turns = 0
    while calls:
        calls.pop()()
        turns += 1
        assert len(calls) <= 1
        if turns == 1:
            replies.put(request, sent[-1])
    assert turns == 3 and heard == [*sent, sent[-1]]


def text_response(size: int) -> StreamedResponse:
    return StreamedResponse({"Y": np.array([b"y" * size], np.object_)}, {}, False, 0)


@pytest.mark.parametrize(
    ("array", "most"),
    [(response(1), 1030), (response(32 << 20), 10), (text_response(32 << 20), 10)],
    ids=["small", "large", "text"],
)
def test_a_model_that_sends_faster_than_the_loop_replies_waits_and_hears_of_a_cancellation(
    array: StreamedResponse, most: int
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        replies = ReplyQueue(loop.call_soon_threadsafe)
        waiting: list[int] = []
        heard = sent = 0

        def reply(_: InferRequest, __: object) -> None:
            nonlocal heard
            heard += 1
            waiting.append(sent - heard)
            end = time.monotonic() + 0.0002
            while time.monotonic() < end:
                pass

        request = InferRequest({}, 1, reply)

        def send() -> None:
            nonlocal sent
            while not request.cancelled:
                sent += 1
                replies.put(request, array)

        sender = threading.Thread(target=send)
        await asyncio.sleep(0)
        sender.start()
        await asyncio.sleep(0.5)  # the loop's own: it must come back from the replies meanwhile
        request.cancelled = True
        async with asyncio.timeout(10):
            while sender.is_alive() or heard < sent:
                await asyncio.sleep(0.001)
        assert max(waiting) <= most

    asyncio.run(run())


def test_a_model_that_waits_for_a_loop_that_is_closed_is_told() -> None:
    loop = asyncio.new_event_loop()
    replies = ReplyQueue(loop.call_soon_threadsafe)
    heard: list[object] = []
    request = InferRequest({}, 1, lambda _, result: heard.append(result))
    replies.put(request, response(1))
    loop.call_later(0.1, loop.stop)
    loop.run_forever()
    told: list[BaseException] = []

    def send() -> None:
        try:
            while True:
                replies.put(request, response(1))
        except RuntimeError as error:
            told.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    sender.join(0.5)
    loop.close()
    sender.join(20)
    assert heard and len(told) == 1
