"""An ingress that has not heard of any model yet says so; it does not deny that a model exists."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from app.service.service import Service
from deployments.control.directory import Directory
from deployments.control.publisher import Publisher
from tests.app.grpc.server import serving
from tests.app.http.served import Served
from tests.app.http.wire import Answer

NOT_READY = "Server not ready"


def starting() -> Served:
    served = Served()
    served.service.models.directory = Directory()
    return served


def ask(method: str, path: str) -> Answer:
    async def run() -> Answer:
        return await starting().request(method, path, b"{}" if method == "POST" else b"")

    return asyncio.run(run())


@contextmanager
def starting_grpc() -> Iterator[grpc.Channel]:
    async def make() -> Service:
        return starting().service

    with serving(service=asyncio.run(make())) as server, grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/models/simple/infer"),
        ("POST", "/v2/models/simple/versions/1/infer"),
        ("POST", "/v2/models/simple/generate"),
        ("POST", "/v2/models/simple/generate_stream"),
        ("GET", "/v2/models/simple"),
        ("GET", "/v2/models/simple/versions/1"),
        ("GET", "/v2/models/simple/config"),
        ("GET", "/v2/models/simple/stats"),
        ("GET", "/v2/models/stats"),
        ("POST", "/v2/repository/index"),
    ],
)
def test_http_answers_503_and_when_to_come_again(method: str, path: str) -> None:
    answer = ask(method, path)
    assert (answer.status, answer.error, answer.headers.get("retry-after")) == (503, NOT_READY, "1")


@pytest.mark.parametrize(
    ("path", "status"), [("/v2/health/live", 200), ("/v2/health/ready", 400), ("/v2/models/simple/ready", 400)]
)
def test_http_is_live_and_not_ready(path: str, status: int) -> None:
    assert ask("GET", path).status == status


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("ModelInfer", pb.ModelInferRequest(model_name="simple")),
        ("ModelMetadata", pb.ModelMetadataRequest(name="simple")),
        ("ModelConfig", pb.ModelConfigRequest(name="simple")),
        ("ModelStatistics", pb.ModelStatisticsRequest()),
        ("RepositoryIndex", pb.RepositoryIndexRequest()),
    ],
)
def test_grpc_answers_unavailable(method: str, message: Message) -> None:
    with starting_grpc() as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        with pytest.raises(grpc.RpcError) as raised:
            call(message.SerializeToString(), timeout=10)
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.UNAVAILABLE, NOT_READY)


def test_it_says_why_no_model_is_known_where_a_repository_cannot_be_read() -> None:
    reason = "model repository '/models' cannot be read: Permission denied"

    async def run() -> list[Answer]:
        served = starting()
        served.service.models.directory.take({"unread": reason})
        infer, index = "/v2/models/simple/infer", "/v2/repository/index"
        answers = [await served.request("POST", path, b"{}") for path in (infer, index)]
        served.service.models.directory.take(await Publisher().news("", -1))
        return [*answers, await served.request("POST", index, b"{}")]

    *before, after = asyncio.run(run())
    assert [(each.status, each.error) for each in before] == [(503, f"{NOT_READY}: {reason}")] * 2
    assert after.status == 200


def test_grpc_is_live_and_not_ready() -> None:
    with starting_grpc() as channel:
        for method, message, answer in (
            ("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse(live=True)),
            ("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse(ready=False)),
            ("ModelReady", pb.ModelReadyRequest(name="simple"), pb.ModelReadyResponse(ready=False)),
        ):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            assert type(answer).FromString(call(message.SerializeToString(), timeout=10)) == answer
