"""Triton's own clients, unmodified: sync, with callbacks, on asyncio, streaming."""

import asyncio
import queue
import socket
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.app.grpc.server import Server

VALUES = np.arange(10, dtype=np.float32)


def inputs(module: Any = triton) -> list[Any]:
    tensor = module.InferInput("IN", [10], "FP32")
    tensor.set_data_from_numpy(VALUES)
    return [tensor]


def test_sync(server: Server) -> None:
    with triton.InferenceServerClient(server.url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("identity")
        assert client.get_server_metadata().name == "triton"
        assert client.get_model_metadata("identity", as_json=True)["platform"] == "onnxruntime_onnx"
        assert client.get_model_config("identity").config.name == "identity"
        assert client.get_inference_statistics("identity").model_stats[0].inference_count == 7
        assert len(client.get_model_repository_index().models) == 2
        assert client.get_system_shared_memory_status(as_json=True) == {}
        result = client.infer("identity", inputs(), request_id="7", client_timeout=5.0, headers={"a": "b"})
        assert result.get_response().id == "7"
        assert np.array_equal(result.as_numpy("OUT"), VALUES)
        for algorithm in ("gzip", "deflate"):
            result = client.infer("identity", inputs(), compression_algorithm=algorithm)
            assert np.array_equal(result.as_numpy("OUT"), VALUES)
        with pytest.raises(InferenceServerException) as raised:
            client.infer("nope", inputs())
        assert raised.value.status() == "StatusCode.NOT_FOUND"
        assert raised.value.message() == "Request for unknown model: 'nope' is not found"
        with pytest.raises(InferenceServerException, match="not allowed if polling is enabled"):
            client.load_model("identity")


def test_the_kernel_finds_out_which_clients_have_vanished(server: Server) -> None:
    with triton.InferenceServerClient(server.url) as client:
        assert client.is_server_live()
        (connection,) = server.front.connections
        assert connection.transport is not None
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


def test_keepalive_options(server: Server) -> None:
    options = triton.KeepAliveOptions(keepalive_time_ms=10_000, keepalive_permit_without_calls=True)
    with triton.InferenceServerClient(server.url, keepalive_options=options) as client:
        assert client.is_server_live()


def test_callbacks(server: Server) -> None:
    got: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(server.url) as client:
        for i in range(200):
            client.async_infer("identity", inputs(), lambda result, error: got.put((result, error)), request_id=str(i))
        answers = [got.get(timeout=10) for _ in range(200)]
    assert all(error is None for _, error in answers)
    assert {result.get_response().id for result, _ in answers} == {str(i) for i in range(200)}


def test_a_cancelled_callback(server: Server) -> None:
    got: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(server.url) as client:
        call = client.async_infer("identity", inputs(), lambda result, error: got.put(error), request_id="hold")
        server.wait_arrived()
        call.cancel()
        server.wait_cancelled()
        assert got.get(timeout=10).status() == "StatusCode.CANCELLED"


def test_streaming(server: Server) -> None:
    got: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(server.url) as client:
        client.start_stream(lambda result, error: got.put((result, error)))
        client.async_stream_infer("decoupled", inputs(), request_id="many:3")
        client.async_stream_infer("identity", inputs(), request_id="fail")
        client.async_stream_infer("identity", inputs(), request_id="last")
        answers = [got.get(timeout=10) for _ in range(5)]
        client.stop_stream()
    assert [None if error else result.get_response().id for result, error in answers] == [
        "many:3", "many:3", "many:3", None, "last"
    ]  # fmt: skip
    assert answers[3][1].message() == "räksmörgås: 100 % wrong"


def test_aio(server: Server) -> None:
    async def run() -> None:
        async with triton_aio.InferenceServerClient(server.url) as client:
            assert await client.is_server_live()
            results = await asyncio.gather(*(client.infer("identity", inputs(), request_id=str(i)) for i in range(50)))
            assert [result.get_response().id for result in results] == [str(i) for i in range(50)]
            with pytest.raises(InferenceServerException):
                await client.infer("nope", inputs())

            async def requests() -> Any:
                for i in range(10):
                    yield {"model_name": "identity", "inputs": inputs(), "request_id": str(i)}

            got = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                got.append(result.get_response().id)
            assert got == [str(i) for i in range(10)]

    asyncio.run(run())
