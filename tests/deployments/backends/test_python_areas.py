"""Shared memory between a replica and the process of a model is used again while a stream of large tensors goes on."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from deployments.backends.python.process import area
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
