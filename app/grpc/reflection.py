"""Server reflection, v1 and v1alpha, whose messages are the same on the wire.

The messages come from the `grpcio-reflection` package; without it there is no reflection.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from app.grpc.call import Call
from app.grpc.status import INVALID_ARGUMENT, OK, STOPPING, UNAVAILABLE
from deployments.lane.frames import Buffer

_NOT_FOUND = 5
_HEALTH_FILE = "grpc/health/v1/health.proto"
_SERVICES = (
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
)


def reflection_call() -> type[Call] | None:
    """Return the call of ServerReflectionInfo, None where `grpcio-reflection` is not installed."""
    try:
        from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]
    except ImportError:
        return None
    answers = Reflection(reflection_pb2)

    class ReflectionCall(Call):
        """A call of ServerReflectionInfo: one answer to each question."""

        __slots__ = ()

        def message(self, message: Buffer) -> None:
            """Answer."""
            try:
                answer = answers.answer(bytes(message))
            except DecodeError:
                self.finish(INVALID_ARGUMENT, "failed to parse the request of ServerReflectionInfo")
                return
            self.send_message((answer,), len(answer))

        def caught_up(self) -> None:
            """Let the client ask more."""
            if self.credit_bytes <= self.connection.initial_credit_bytes // 2 and not (self.peer_ended or self.done):
                self.grant(self.connection.initial_credit_bytes - self.credit_bytes)

        def half_closed(self) -> None:
            """End."""
            self.finish(OK, "")

        def server_stops(self) -> None:
            """End: what was asked is answered."""
            self.finish(UNAVAILABLE, STOPPING)

    return ReflectionCall


class Reflection:
    """Answers questions about the services of this port, from protobuf's descriptors."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages
        self._pool = descriptor_pool.Default()
        self._health = _health_file()
        self._offered = {service_pb2.DESCRIPTOR.name, messages.DESCRIPTOR.name}
        for dependency in service_pb2.DESCRIPTOR.dependencies:
            self._offered.add(dependency.name)

    def answer(self, message: bytes) -> bytes:
        """Return the serialised answer to a serialised question; raises DecodeError."""
        question = self._messages.ServerReflectionRequest.FromString(message)
        answer = self._messages.ServerReflectionResponse(valid_host=question.host, original_request=question)
        kind = question.WhichOneof("message_request")
        try:
            if kind == "list_services":
                answer.list_services_response.service.extend(
                    [self._messages.ServiceResponse(name=name) for name in _SERVICES]
                )
            elif kind == "file_by_filename":
                self._add_file(answer, question.file_by_filename, self._pool.FindFileByName)
            elif kind == "file_containing_symbol":
                self._add_file(answer, question.file_containing_symbol, self._file_containing)
            elif kind == "all_extension_numbers_of_type":
                found = self._pool.FindMessageTypeByName(question.all_extension_numbers_of_type)
                self._check_offered(found.file)
                answer.all_extension_numbers_response.base_type_name = found.full_name  # proto3 has no extensions
            else:
                raise KeyError(kind)
        except KeyError:
            answer.error_response.error_code = _NOT_FOUND
            answer.error_response.error_message = "not found"
        serialised: bytes = answer.SerializeToString()
        return serialised

    def _add_file(self, answer: Any, name: str, find: Callable[[str], FileDescriptor]) -> None:
        if name == _HEALTH_FILE or name.startswith("grpc.health.v1."):
            answer.file_descriptor_response.file_descriptor_proto.append(self._health)
            return
        found = find(name)
        self._check_offered(found)
        for file in (found, *found.dependencies):
            answer.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)

    def _check_offered(self, file: FileDescriptor) -> None:
        if file.name not in self._offered:
            raise KeyError(file.name)

    def _file_containing(self, symbol: str) -> FileDescriptor:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:  # the pool does not know methods
            return self._pool.FindFileContainingSymbol(symbol.rpartition(".")[0])


def _health_file() -> bytes:
    """Return the descriptor of the standard health service, as far as it is served."""
    file = descriptor_pb2.FileDescriptorProto(name=_HEALTH_FILE, package="grpc.health.v1", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="service", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    response = file.message_type.add(name="HealthCheckResponse")
    states = response.enum_type.add(name="ServingStatus")
    for number, state in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        states.value.add(name=state, number=number)
    prefix = ".grpc.health.v1."
    response.field.add(
        name="status",
        number=1,
        type=field.TYPE_ENUM,
        label=field.LABEL_OPTIONAL,
        type_name=prefix + "HealthCheckResponse.ServingStatus",
    )
    service = file.service.add(name="Health")
    service.method.add(
        name="Check", input_type=prefix + "HealthCheckRequest", output_type=prefix + "HealthCheckResponse"
    )
    serialised: bytes = file.SerializeToString()
    return serialised
