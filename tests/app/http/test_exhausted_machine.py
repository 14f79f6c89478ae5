"""Requests for which the machine has no more of something."""

import asyncio
import errno
import gzip
import os
import threading
from typing import Any

import numpy as np
import pytest

from app.json_helper.json_helper import LARGE_JSON_BYTES, JsonHelper
from protocol.errors import Unavailable
from tests.app.http.wire import Answer, Wire, infer
from tests.no_more_files import no_more_files


def test_what_the_machine_has_no_more_of_is_told_with_503() -> None:
    async def fails(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/dev/shm/secret")

    async def ask() -> Answer:
        return await Wire(app=fails).request("GET", "/v2/models/stats")

    answer = asyncio.run(ask())
    assert answer.status == 503 and answer.headers["retry-after"] == "1"
    assert answer.error == "the server has no room left, on a disk or in shared memory"


def test_a_large_body_without_memory_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    async def ask() -> Answer:
        wire = Wire()
        monkeypatch.setattr(np, "empty", refuse)
        return await wire.answered(infer(bytes(1 << 20))[:-1])

    answer = asyncio.run(ask())
    assert (answer.status, answer.error) == (503, "the server has no memory left")
    assert answer.headers["connection"] == "close"


def test_a_compressed_request_without_a_thread_for_it_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def ask() -> Answer:
        body = gzip.compress(os.urandom(1 << 20))
        monkeypatch.setattr(threading.Thread, "start", refuse)
        return await Wire().answered(infer(body, extra=b"Content-Encoding: gzip\r\n"))

    answer = asyncio.run(ask())
    assert (answer.status, answer.error) == (503, "the server can start no more threads")


def test_large_json_without_descriptors_for_its_process_may_come_again() -> None:
    async def ask() -> object:
        helper = JsonHelper(asyncio.get_running_loop())
        read: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        with no_more_files():
            helper.submit({}, [bytes(LARGE_JSON_BYTES)], read.set_result)
            failure = await asyncio.wait_for(read, 10)
        helper.close()
        return failure

    failure = asyncio.run(ask())
    assert isinstance(failure, Unavailable)
    assert failure.message == "the server may open no more files"
