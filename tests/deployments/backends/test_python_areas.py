"""Shared memory between a replica and the process of a model is used again while a stream of large tensors goes on."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.backends.python.process import area
from deployments.backends.python.process.channel import READ_BYTES, Channel, Writer
from tests.deployments.replica.hosted_models import CONFIG, DECOUPLED, Models, on_a_loop

STREAM = """
import time

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(x_of(request).as_numpy()[0])):
                sender.send(answer(np.full(25_000, number, np.int32)))
                time.sleep(0.002)  # as one that computes something
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNT = 700
"""Responses of 100 kB: 70 MB in all."""
ENOUGH_BYTES = 32 << 20


def process_of(host: Any, name: str) -> Any:
    (instance,) = host.core.resolve(name).pool.instances
    return instance._child


@on_a_loop
async def test_one_stream_of_large_responses_takes_no_more_memory_the_longer_it_is(tmp_path: Path) -> None:
    models = Models(tmp_path, True).add("stream", STREAM, DECOUPLED)
    async with models.hosted() as call:
        numbers = [numbers[0] for numbers in await call.responses("stream", COUNT)]
        assert numbers == list(range(COUNT))
        _, outputs, _ = process_of(call.host, "stream")._descriptors
        assert os.fstat(outputs).st_size <= ENOUGH_BYTES


@on_a_loop
async def test_so_does_one_that_another_model_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models(tmp_path, True).add("stream", STREAM, DECOUPLED)
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                responses = request_to("stream", x_of(requests[0])).exec(decoupled=True)
                errors = [response.error().message() for response in responses if response.has_error()]
                return [answer(np.frombuffer("; ".join(errors).encode(), np.uint8).astype(np.int32))]
        """,
        CONFIG,
    )
    monkeypatch.setattr(area, "MAX_BYTES", ENOUGH_BYTES)
    async with asyncio.timeout(60), models.hosted() as call:
        assert bytes(await call("caller", COUNT)) == b""


def test_a_message_that_cannot_be_sent_leaves_the_areas_as_they_were() -> None:
    sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    files = [os.memfd_create("area") for _ in sockets]
    one, other = (
        Channel(each, area.OwnArea(files[place]), area.PeerArea(files[1 - place])) for place, each in enumerate(sockets)
    )
    large = {"X": np.zeros(100_000, np.uint8)}

    def send(channel: Channel, what: object) -> None:
        writer = Writer()
        channel.send("message", writer, what, writer.describe(large))

    def receive(channel: Channel) -> None:
        channel.read(channel.connection.recv(READ_BYTES))

    try:
        send(one, "text")
        receive(other)
        with pytest.raises(ValueError, match="unmarshallable"):
            send(other, object())
        send(other, "text")
        receive(one)
        send(one, "text")
        receive(other)
        assert [each._own._places.taken_count for each in (one, other)] == [1, 0]
    finally:
        for each in sockets:
            each.close()
        for file in files:
            os.close(file)
