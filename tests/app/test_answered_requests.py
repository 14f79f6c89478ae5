"""What an answered request took is free at once: nothing waits for the collector of garbage, which comes rarely.

A target gives a token for each request, which has its bytes and leads back to who asked.
"""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from deployments.lane.frames import Buffer
from protocol.errors import InvalidArgument
from tests.app.grpc.server import request, serving
from tests.app.http.test_generate_exchange import STREAM, generate_wire, response


class Token:
    def __init__(self, given: Any, sink: Any) -> None:
        self.given = given
        self.sink = sink


class Tokens:
    """Has a target give tokens, whatever it gives otherwise."""

    def __init__(self, target: Any) -> None:
        self.kept: list[weakref.ref[Token]] = []
        self._submit, self._cancel = target.submit, target.cancel
        target.submit, target.cancel = self.submit, self.cancel

    def submit(self, parts: Any, json_length: int | None, sink: Any, *more: Any, **named: Any) -> Token:
        token = Token(self._submit(parts, json_length, sink, *more, **named), sink)
        self.kept.append(weakref.ref(token))
        return token

    def cancel(self, token: Token) -> None:
        self._cancel(token.given)

    @property
    def left(self) -> int:
        return sum(token() is not None for token in self.kept)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_calls_of_grpc() -> None:
    with serving() as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        tokens = Tokens(server.service.targets["identity"])

        def released(id: str, call: Any) -> None:
            server.wait_arrived()
            server.release(id)
            call()

        for id in ("", "fail"):
            try:
                stub.ModelInfer(request(request_id=id))
            except grpc.RpcError as error:
                assert id and error.code() is grpc.StatusCode.INVALID_ARGUMENT
        later = stub.ModelInfer.future(request(request_id="hold1"))
        released("hold1", later.result)
        gone = stub.ModelInfer.future(request(request_id="hold2"))
        server.wait_arrived()
        gone.cancel()
        server.wait_cancelled()
        assert len(tokens.kept) == 4
        assert server.call(lambda: tokens.left) == 0

        answers = stub.ModelStreamInfer(
            iter([request(request_id="1"), request(request_id="fail"), request(request_id="hold3")])
        )
        assert next(answers).infer_response.id == "1"
        assert next(answers).error_message
        released("hold3", lambda: next(answers))
        assert len(tokens.kept) == 7
        assert server.call(lambda: tokens.left) == 0, "while the stream is open"
        assert list(answers) == []


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("path", [STREAM, STREAM.removesuffix("_stream")])
@pytest.mark.parametrize("ending", ["answer", "error", "leaves"])
def test_requests_of_generate(path: str, at_once: bool, ending: str) -> None:
    async def run() -> None:
        wire = generate_wire()
        wire.target.hold = True
        tokens = Tokens(wire.target)

        def end() -> None:
            sink = wire.target.sinks.pop()
            wire.target._held.clear()
            if ending == "answer":
                sink.on_response(None, (response("a"),), True)
            elif ending == "error":
                sink.on_error(InvalidArgument("wrong"))
            else:
                wire.connection.connection_lost(None)

        if at_once and ending != "leaves":
            submit = wire.target.submit

            def submit_and_end(parts: tuple[Buffer, ...], json_length: int | None, sink: Any) -> Any:
                token = submit(parts, json_length, sink)
                end()
                return token

            wire.target.submit = submit_and_end  # type: ignore[method-assign]
            await wire.send(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        else:
            await wire.send(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            assert tokens.left == 1
            end()
        assert (len(tokens.kept), tokens.left) == (1, 0)
        wire.context.json_helper.close()

    asyncio.run(run())
