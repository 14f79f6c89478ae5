"""An answer leaves whole, past all queues, only where every window has room for it."""

import asyncio
from typing import cast

import pytest

from app.http2.frames import DEFAULT_WINDOW_BYTES
from app.http2.sender import Sender, SendState
from tests.app.http2.wire import FakeLoop, Transport


def fits(size: int, **limits: int | bool) -> bool:
    sender = Sender(cast(asyncio.Transport, Transport()), cast(asyncio.AbstractEventLoop, FakeLoop()))
    sender.max_frame_bytes = 1 << 20
    state = SendState(1)
    for name, value in limits.items():
        setattr(state if hasattr(state, name) else sender, name, value)
    return sender.send_whole(state, b"head", [bytes(size)], size, b"trailers")


@pytest.mark.parametrize("window", ["window", "initial_window", "max_frame_bytes"])
def test_an_answer_that_is_larger_than_a_window_is_not_sent_whole(window: str) -> None:
    assert fits(1000, **{window: 1000})
    assert not fits(1001, **{window: 1000})


def test_a_window_that_the_client_has_moved_counts_as_it_is() -> None:
    assert fits(DEFAULT_WINDOW_BYTES)
    assert not fits(DEFAULT_WINDOW_BYTES, window_change=-1)
    assert not fits(DEFAULT_WINDOW_BYTES + 1, window=1 << 20)
    assert fits(DEFAULT_WINDOW_BYTES + 1, window=1 << 20, window_change=1)


def test_nothing_is_sent_whole_to_a_client_that_reads_slowly() -> None:
    assert not fits(1, paused=True)
