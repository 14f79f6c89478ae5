"""One call over gRPC and what Triton answers to it."""

from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from tests.conformance.http_case import contains

SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for service in (SERVICE, reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"])
    for method in service.methods
}
CALL_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class GrpcCase:
    """`section` is that of the catalog of Triton's behaviour from which the case comes.

    `path` is that of an RPC, or the name of one of the inference service's. `requests` are sent one after the other on
    an RPC that streams. `error` is the whole text of an error, or with `part` a part of it; `has` a part of the answers
    as JSON, one for each; `sent` the bytes of the only answer. `deviates` says why the answer is not Triton's.
    """

    id: str
    section: str
    path: str
    requests: tuple[Message | bytes, ...]
    code: int = 0
    error: str | None = None
    part: bool = False
    has: tuple[Any, ...] | None = None
    sent: bytes | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    deviates: str = ""

    @property
    def full_path(self) -> str:
        return self.path if "/" in self.path else f"/{SERVICE.full_name}/{self.path}"

    @property
    def streams(self) -> bool:
        return self.path == "ModelStreamInfer" or "reflection" in self.path

    def check(self, channel: grpc.Channel) -> None:
        """Make the call and assert the answers and the status."""
        answers, code, text = self._call(channel)
        assert code == self.code, text
        if self.error is not None:
            assert self.error in text if self.part else self.error == text
            assert len(text.encode()) <= 1024
        if self.sent is not None:
            assert answers == [self.sent]
        if self.has is not None:
            found = [self._as_json(answer) for answer in answers]
            assert contains(found, list(self.has)), found

    def _call(self, channel: grpc.Channel) -> tuple[list[bytes], int, str]:
        bodies = [each if isinstance(each, bytes) else each.SerializeToString() for each in self.requests]
        answers: list[bytes] = []
        try:
            if self.streams:
                call = channel.stream_stream(self.full_path)
                for answer in call(iter(bodies), timeout=CALL_TIMEOUT_S, metadata=self.metadata):
                    answers.append(answer)
            else:
                (body,) = bodies
                answers.append(
                    channel.unary_unary(self.full_path)(body, timeout=CALL_TIMEOUT_S, metadata=self.metadata)
                )
        except grpc.RpcError as error:
            return answers, error.code().value[0], error.details()
        return answers, 0, ""

    def _as_json(self, answer: bytes) -> Any:
        # The messages of both versions of the reflection service are the same.
        method = METHODS[self.full_path.replace("reflection.v1.", "reflection.v1alpha.")]
        message = GetMessageClass(method.output_type).FromString(answer)
        return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
