"""Server reflection, as tools like grpcurl use it."""

import asyncio
import queue
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2 as pb  # type: ignore[import-untyped]

from app.grpc.options import GrpcOptions
from tests.app.grpc.server import serving


def ask(channel: grpc.Channel, version: str, *questions: Any) -> list[Any]:
    call = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=pb.ServerReflectionRequest.SerializeToString,
        response_deserializer=pb.ServerReflectionResponse.FromString,
    )
    return list(call(iter(questions)))


def test_a_call_ends_when_the_server_stops() -> None:
    with serving() as server, grpc.insecure_channel(server.url) as channel:
        questions: queue.SimpleQueue[Any] = queue.SimpleQueue()
        questions.put(pb.ServerReflectionRequest(list_services=""))
        call = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=pb.ServerReflectionRequest.SerializeToString,
            response_deserializer=pb.ServerReflectionResponse.FromString,
        )(iter(questions.get, None))
        assert next(call).list_services_response.service
        asyncio.run_coroutine_threadsafe(server.front.close(20.0), server.front.loop).result(5)
        with pytest.raises(grpc.RpcError) as ended:
            next(call)
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        questions.put(None)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_lists_services(channel: grpc.Channel, version: str) -> None:
    (answer,) = ask(channel, version, pb.ServerReflectionRequest(list_services=""))
    names = {service.name for service in answer.list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize(
    "symbol", ["inference.GRPCInferenceService", "inference.GRPCInferenceService.ModelInfer", "grpc.health.v1.Health"]
)
def test_a_client_can_build_the_messages_from_what_it_is_told(channel: grpc.Channel, symbol: str) -> None:
    (answer,) = ask(channel, "v1", pb.ServerReflectionRequest(file_containing_symbol=symbol))
    pool = descriptor_pool.DescriptorPool()
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(each)
        for each in answer.file_descriptor_response.file_descriptor_proto
    ]
    for file in sorted(files, key=lambda file: len(file.dependency)):
        pool.Add(file)
    service = pool.FindServiceByName(".".join(symbol.split(".")[:2]) if "inference" in symbol else symbol)
    assert message_factory.GetMessageClass(service.methods[0].input_type)


def test_does_not_tell_of_files_and_symbols_of_others(channel: grpc.Channel) -> None:
    questions = [
        pb.ServerReflectionRequest(file_by_filename="grpc_service.proto"),
        pb.ServerReflectionRequest(file_by_filename="google/protobuf/descriptor.proto"),
        pb.ServerReflectionRequest(file_by_filename="/etc/passwd"),
        pb.ServerReflectionRequest(file_containing_symbol="nope"),
        pb.ServerReflectionRequest(all_extension_numbers_of_type="nope"),
        pb.ServerReflectionRequest(all_extension_numbers_of_type="google.protobuf.FileDescriptorProto"),
    ]
    answers = ask(channel, "v1alpha", *questions)
    assert [answer.error_response.error_code for answer in answers] == [0, 5, 5, 5, 5, 5]


def test_messages_have_no_extensions(channel: grpc.Channel) -> None:
    name = "inference.ModelInferRequest"
    (answer,) = ask(channel, "v1", pb.ServerReflectionRequest(all_extension_numbers_of_type=name))
    extensions = answer.all_extension_numbers_response
    assert (extensions.base_type_name, list(extensions.extension_number)) == (name, [])


def test_can_be_turned_off() -> None:
    with serving(GrpcOptions(reflection=False)) as server, grpc.insecure_channel(server.url) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            ask(channel, "v1", pb.ServerReflectionRequest(list_services=""))
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
