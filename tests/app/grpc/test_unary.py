"""Unary calls by grpcio's client: answers, codes and texts, deadlines, cancellation, sizes, compression."""

import errno
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from app.edge.restricted_api import RestrictedApis
from app.grpc.options import GrpcOptions
from app.http2.limits import Http2Limits
from app.service.refusal_log import RefusalLog
from deployments.lane.wire import GRPC_STREAM
from tests.app.grpc.server import Server, request, serving
from tests.hostile.grpc_cases import STREAM
from tests.hostile.grpc_wire import block, data, headers, prefixed, talk
from tests.hostile.watch import INFER

SERVICE = "/inference.GRPCInferenceService/"


def raw(channel: grpc.Channel, method: str) -> Any:
    return channel.unary_unary(SERVICE + method if "/" not in method else method)


def failure(call: Any, *arguments: Any, **keywords: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        call(*arguments, **keywords)
    return raised.value.code(), raised.value.details()


ANSWERS: dict[str, tuple[Message, Message]] = {
    "ServerLive": (pb.ServerLiveRequest(), pb.ServerLiveResponse(live=True)),
    "ServerReady": (pb.ServerReadyRequest(), pb.ServerReadyResponse(ready=True)),
    "ModelReady": (pb.ModelReadyRequest(name="identity"), pb.ModelReadyResponse(ready=True)),
    "ServerMetadata": (
        pb.ServerMetadataRequest(),
        pb.ServerMetadataResponse(name="triton", version="1", extensions=["statistics"]),
    ),
    "ModelStatistics": (
        pb.ModelStatisticsRequest(name="identity"),
        pb.ModelStatisticsResponse(model_stats=[{"name": "identity", "version": "1", "inference_count": 7}]),
    ),
    "RepositoryIndex": (
        pb.RepositoryIndexRequest(),
        pb.RepositoryIndexResponse(models=[{"name": "identity", "version": "1", "state": "READY"}, {"name": "other"}]),
    ),
    "SystemSharedMemoryStatus": (pb.SystemSharedMemoryStatusRequest(), pb.SystemSharedMemoryStatusResponse()),
    "CudaSharedMemoryStatus": (pb.CudaSharedMemoryStatusRequest(), pb.CudaSharedMemoryStatusResponse()),
}


@pytest.mark.parametrize("method", ANSWERS)
def test_answers(stub: service_pb2_grpc.GRPCInferenceServiceStub, method: str) -> None:
    asked, expected = ANSWERS[method]
    assert getattr(stub, method)(asked) == expected


def test_answers_with_metadata_and_configuration(stub: Any) -> None:
    metadata = stub.ModelMetadata(pb.ModelMetadataRequest(name="identity", version="1"))
    assert (metadata.name, list(metadata.versions), metadata.inputs[0].name) == ("identity", ["1"], "IN")
    assert stub.ModelConfig(pb.ModelConfigRequest(name="identity")).config.max_batch_size == 8
    assert len(stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True)).models) == 1


FAILURES: dict[str, tuple[str, Message, grpc.StatusCode, str]] = {
    "unknown model": (
        "ModelInfer",
        pb.ModelInferRequest(model_name="nope"),
        grpc.StatusCode.NOT_FOUND,
        "Request for unknown model: 'nope' is not found",
    ),
    "unknown version": (
        "ModelInfer",
        request(version="3"),
        grpc.StatusCode.NOT_FOUND,
        "Request for unknown model: 'identity' version 3 is not found",
    ),
    "not ready": (
        "ModelInfer",
        request("loading"),
        grpc.StatusCode.UNAVAILABLE,
        "Request for unknown model: 'loading' version 1 is not at ready state",
    ),
    "version is no number": (
        "ModelInfer",
        request(version="abc"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "failed to get model version from specified version string 'abc' (details: stol), "
        "version should be an integral value > 0",
    ),
    "negative version": (
        "ModelMetadata",
        pb.ModelMetadataRequest(name="identity", version="-2"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "invalid model version specified '-2' , version should be an integral value > 0",
    ),
    "the model fails": (
        "ModelInfer",
        request(request_id="fail"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "räksmörgås: 100 % wrong",
    ),
    "decoupled": (
        "ModelInfer",
        request("decoupled"),
        grpc.StatusCode.UNIMPLEMENTED,
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
    ),
    "statistics of an unknown model": (
        "ModelStatistics",
        pb.ModelStatisticsRequest(name="nope"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "requested model 'nope' is not available",
    ),
    "load": (
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(model_name="identity"),
        grpc.StatusCode.UNAVAILABLE,
        "explicit model load / unload is not allowed if polling is enabled",
    ),
    "unload": (
        "RepositoryModelUnload",
        pb.RepositoryModelUnloadRequest(model_name="identity"),
        grpc.StatusCode.UNAVAILABLE,
        "explicit model load / unload is not allowed if polling is enabled",
    ),
    "register shared memory": (
        "SystemSharedMemoryRegister",
        pb.SystemSharedMemoryRegisterRequest(name="a", key="/a", byte_size=1),
        grpc.StatusCode.UNIMPLEMENTED,
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
    ),
}


@pytest.mark.parametrize(("method", "asked", "code", "text"), FAILURES.values(), ids=FAILURES)
def test_fails_with_code_and_text(stub: Any, method: str, asked: Message, code: grpc.StatusCode, text: str) -> None:
    assert failure(getattr(stub, method), asked) == (code, text)
    assert stub.ServerLive(pb.ServerLiveRequest()).live


def test_every_method_of_the_service_is_known(server: Server) -> None:
    paths = {SERVICE + method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    assert {path.encode() for path in paths} <= server.front.methods.by_path.keys()


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex"])
def test_a_message_that_is_none(channel: grpc.Channel, method: str) -> None:
    code, text = failure(raw(channel, method), b"\xff\xff")
    assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, f"failed to parse the request of {method}")


def test_an_inference_request_that_is_none(channel: grpc.Channel) -> None:
    assert failure(raw(channel, "ModelInfer"), b"\xff\xff")[0] == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("path", ["Nope", "/grpc.health.v1.Health/Watch", "/nope/nope", "/inference"])
def test_unknown_methods(channel: grpc.Channel, path: str) -> None:
    assert failure(raw(channel, path), b"")[0] == grpc.StatusCode.UNIMPLEMENTED


def test_health_follows_readiness(server: Server, channel: grpc.Channel) -> None:
    check = raw(channel, "/grpc.health.v1.Health/Check")
    assert check(b"\x0a\x03any") == b"\x08\x01"
    server.service.ready = False
    assert check(b"") == b"\x08\x02"


def test_infers(stub: Any) -> None:
    answer = stub.ModelInfer(request(values=[3.0, 4.0], request_id="mine"))
    assert (answer.model_name, answer.id, answer.outputs[0].name) == ("identity", "mine", "OUT")
    assert answer.raw_output_contents[0] == request(values=[3.0, 4.0]).raw_input_contents[0]


def test_asks_the_service_for_a_model_once_until_routes_change(server: Server, stub: Any) -> None:
    for _ in range(3):
        stub.ModelInfer(request(request_id="a"))
    assert server.service.resolved == 1
    stub.ModelInfer(request(version="1"))
    assert server.service.resolved == 2
    server.call(server.front.routes_changed)
    stub.ModelInfer(request())
    assert server.service.resolved == 3


@pytest.mark.parametrize("elements", [0, 1, 10_000, 65_536, 1_000_000, 4_000_000])
def test_messages_of_any_size_come_back_whole(stub: Any, elements: int) -> None:
    import numpy as np

    asked = request(values=np.arange(elements, dtype="<f4"))  # type: ignore[arg-type]
    for _ in range(2):
        answer = stub.ModelInfer(asked)
        assert answer.raw_output_contents[0] == asked.raw_input_contents[0]


@pytest.mark.parametrize("over", [0, 1])
def test_the_largest_message(over: int) -> None:
    size = request(values=[0.0] * 5000).ByteSize()
    with serving(GrpcOptions(max_message_bytes=size - over)) as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        if over:
            code, text = failure(stub.ModelInfer, request(values=[0.0] * 5000))
            assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert text == f"SERVER: Received message larger than max ({size} vs. {size - 1})"
        else:
            stub.ModelInfer(request(values=[0.0] * 5000))
        assert stub.ServerLive(pb.ServerLiveRequest()).live


def test_many_large_messages_at_once_share_little_memory() -> None:
    options = GrpcOptions(http2=Http2Limits(max_buffered_bytes=6 << 20, initial_window_bytes=65_535))
    with serving(options) as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        asked = [request(values=[float(i)] * 1_000_000) for i in range(8)]
        calls = [stub.ModelInfer.future(each) for each in asked]
        for each, call in zip(asked, calls, strict=True):
            assert call.result().raw_output_contents[0] == each.raw_input_contents[0]


def test_more_calls_at_once_than_the_connection_takes() -> None:
    options = GrpcOptions(http2=Http2Limits(max_concurrent_streams=4))
    with serving(options) as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = [stub.ModelInfer.future(request(request_id=str(i))) for i in range(100)]
        assert [call.result().id for call in calls] == [str(i) for i in range(100)]


def test_a_deadline_ends_the_call_and_cancels_the_request(server: Server, stub: Any) -> None:
    code, _ = failure(stub.ModelInfer, request(request_id="hold"), timeout=0.2)
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    server.wait_cancelled()
    assert server.service.cancelled == ["hold"]


@pytest.mark.parametrize(("path", "had"), [(INFER, True), (STREAM, True), (STREAM, False)])
def test_a_deadline_is_told_and_counted_as_the_models_that_has_the_request(
    path: str, had: bool, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[tuple[int, int]] = []
    meters = SimpleNamespace(refuse=lambda wire, code: counted.append((wire, code)))
    log = RefusalLog(lambda *_: None, meters)  # type: ignore[arg-type]
    opened = headers(1, block(("grpc-timeout", "100m"), p_path=path))
    asked = data(1, prefixed(request(request_id="hold").SerializeToString()), end=path == INFER) if had else b""
    with caplog.at_level("INFO"), serving(refusals=log) as server:
        assert talk(server.url, [opened, asked], 1, 10.0).statuses[1][0] == 4
    (line,) = [each for each in caplog.records if "refusal_log" in each.name]
    assert line.getMessage().endswith("Deadline Exceeded")
    assert getattr(line, "model", None) == ("identity" if had else None)
    assert counted == ([] if had else [(GRPC_STREAM, 4)])


def test_cancelling_a_call_cancels_the_request(server: Server, stub: Any) -> None:
    call = stub.ModelInfer.future(request(request_id="hold"))
    server.wait_arrived()
    call.cancel()
    server.wait_cancelled()
    assert server.service.cancelled == ["hold"]
    assert stub.ServerLive(pb.ServerLiveRequest()).live


def test_a_client_that_goes_away_cancels_its_requests(server: Server) -> None:
    with grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = [stub.ModelInfer.future(request(request_id=f"hold{i}")) for i in range(3)]
        server.wait_arrived(3)
    server.wait_cancelled(3)
    assert sorted(server.service.cancelled) == ["hold0", "hold1", "hold2"]
    assert all(call.cancelled() or call.exception() for call in calls)


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize("elements", [10, 100_000, 3_000_000])
def test_compressed_requests(stub: Any, algorithm: grpc.Compression, elements: int) -> None:
    import numpy as np

    asked = request(values=np.arange(elements, dtype="<f4"))  # type: ignore[arg-type]
    answer = stub.ModelInfer(asked, compression=algorithm)
    assert answer.raw_output_contents[0] == asked.raw_input_contents[0]


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("elements", [100_000, 5_000_000])
def test_a_compressed_message_may_not_become_larger_than_the_largest(over: int, elements: int) -> None:
    asked = request(values=[0.0] * elements)
    options = GrpcOptions(max_message_bytes=asked.ByteSize() - over, max_decompression_ratio=2000)
    unlimited = [("grpc.max_receive_message_length", -1)]
    with serving(options) as server, grpc.insecure_channel(server.url, unlimited) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        if over:
            code, _ = failure(stub.ModelInfer, asked, compression=grpc.Compression.Gzip)
            assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        else:
            answer = stub.ModelInfer(asked, compression=grpc.Compression.Gzip)
            assert len(answer.raw_output_contents[0]) == 4 * elements


@pytest.mark.parametrize(("size", "refused"), [((1 << 20) - 100, False), (1 << 20, True)])
def test_a_small_message_may_become_a_mebibyte_and_no_more(stub: Any, size: int, refused: bool) -> None:
    asked = request(values=[0.0] * (size // 4))
    if refused:
        code, text = failure(stub.ModelInfer, asked, compression=grpc.Compression.Gzip)
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert text == (
            "Decompressed message more than 100 times as large as its compressed form. "
            "Use --grpc-max-decompression-ratio to increase the limit."
        )
    else:
        assert stub.ModelInfer(asked, compression=grpc.Compression.Gzip).raw_output_contents == asked.raw_input_contents


def test_messages_other_than_of_inference_are_small(stub: Any) -> None:
    code, _ = failure(stub.ModelReady, pb.ModelReadyRequest(name="n" * (1 << 18)))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stub.ModelReady(pb.ModelReadyRequest(name="identity")).ready
    assert not stub.ModelReady(pb.ModelReadyRequest(name="nope")).ready


@pytest.mark.parametrize("level", ["low", "medium", "high"])
def test_compressed_responses(level: Any) -> None:
    options = GrpcOptions(infer_response_compression_level=level)
    with serving(options) as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for count in (1000, 100_000):
            assert stub.ModelInfer(request(values=[0.0] * count)).raw_output_contents[0] == bytes(4 * count)
        assert stub.ServerLive(pb.ServerLiveRequest()).live


def test_metadata_too_large(stub: Any, server: Server) -> None:
    code, _ = failure(stub.ServerLive, pb.ServerLiveRequest(), metadata=[("x-large", "v" * 100_000)])
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    # Far too large ends the connection; the client opens another.
    code, _ = failure(stub.ServerLive, pb.ServerLiveRequest(), metadata=[("x-large", "v" * 1_000_000)])
    assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    assert stub.ServerLive(pb.ServerLiveRequest(), metadata=[("x-large", "v" * 8000)]).live


def test_restricted_methods_want_their_key() -> None:
    options = GrpcOptions(restricted=RestrictedApis.of_grpc(["inference:Admin=secret"]))
    with serving(options) as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        text = "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'"
        assert failure(stub.ModelInfer, request()) == (grpc.StatusCode.UNAVAILABLE, text)
        wrong = [("triton-grpc-protocol-admin", "guess")]
        assert failure(stub.ModelInfer, request(), metadata=wrong) == (grpc.StatusCode.UNAVAILABLE, text)
        twice = [("triton-grpc-protocol-admin", "guess"), ("triton-grpc-protocol-admin", "secret")]
        assert failure(stub.ModelInfer, request(), metadata=twice) == (grpc.StatusCode.UNAVAILABLE, text)
        stub.ModelInfer(request(), metadata=[("triton-grpc-protocol-admin", "secret")])
        assert stub.ServerLive(pb.ServerLiveRequest()).live


def test_what_the_machine_has_no_more_of_is_told(server: Server, stub: Any) -> None:
    def broken() -> bool:
        raise OSError(errno.EMFILE, "Too many open files", "/secret/path")

    server.service.server_ready = broken  # type: ignore[method-assign]
    told = failure(stub.ServerReady, pb.ServerReadyRequest())
    assert told == (grpc.StatusCode.UNAVAILABLE, "the server may open no more files")


@pytest.mark.parametrize("size", [600_000, 4_000_000], ids=["at once", "reserved"])
def test_a_message_without_memory_ends_its_own_call(
    server: Server, stub: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    assert stub.ServerLive(pb.ServerLiveRequest()).live
    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", refuse)
        told = failure(stub.ModelInfer, pb.ModelInferRequest(model_name="x" * size))
    assert told == (grpc.StatusCode.UNAVAILABLE, "the server has no memory left")
    assert stub.ServerLive(pb.ServerLiveRequest()).live


def test_an_exception_stays_inside(server: Server, stub: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bool:
        raise RuntimeError("/secret/path")

    server.service.server_ready = broken  # type: ignore[method-assign]
    assert failure(stub.ServerReady, pb.ServerReadyRequest()) == (grpc.StatusCode.INTERNAL, "internal server error")
    assert "ServerReady failed" in caplog.text


def test_what_is_under_way_is_answered_when_the_server_stops(server: Server, stub: Any) -> None:
    import asyncio

    call = stub.ModelInfer.future(request(request_id="hold"))
    server.wait_arrived()
    closing = asyncio.run_coroutine_threadsafe(server.front.close(10.0), server.front.loop)
    server.release("hold")
    assert call.result().id == "hold"
    closing.result(10)
    assert failure(stub.ServerLive, pb.ServerLiveRequest())[0] == grpc.StatusCode.UNAVAILABLE
