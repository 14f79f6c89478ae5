"""Every method that is served: its path, its category for restrictions, the call that it makes, and what answers it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from app.grpc.call import Call
from app.grpc.head import GrpcHead
from app.grpc.infer_call import InferCall
from app.grpc.method import Handler, Method
from app.grpc.reflection import reflection_call
from app.grpc.refused_call import RefusedCall
from app.grpc.stream_infer_call import StreamInferCall
from app.grpc.unary_call import MethodCall
from app.service.service import Service
from protocol.errors import Unavailable, Unsupported
from protocol.grpc_messages import model_config_response, model_statistics_response, repository_index_response
from protocol.model_version import parse_version

SERVICE: Final = "/inference.GRPCInferenceService/"
NO_CONTROL: Final = "explicit model load / unload is not allowed if polling is enabled"
NO_SHARED_MEMORY: Final = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
_SERVING: Final = b"\x08\x01"
_NOT_SERVING: Final = b"\x08\x02"


def _server_live(service: Service, message: bytes) -> bytes:
    return _bytes(pb.ServerLiveResponse(live=True))


def _server_ready(service: Service, message: bytes) -> bytes:
    return _bytes(pb.ServerReadyResponse(ready=service.health.server_ready()))


def _model_ready(service: Service, message: bytes) -> bytes:
    request = pb.ModelReadyRequest.FromString(message)
    return _bytes(pb.ModelReadyResponse(ready=service.health.model_ready(request.name, parse_version(request.version))))


def _health(service: Service, message: bytes) -> bytes:
    return _SERVING if service.health.server_ready() else _NOT_SERVING


def _server_metadata(service: Service, message: bytes) -> bytes:
    return _bytes(pb.ServerMetadataResponse(**service.metadata.server()))


def _model_metadata(service: Service, message: bytes) -> bytes:
    request = pb.ModelMetadataRequest.FromString(message)
    document = service.metadata.model(request.name, parse_version(request.version))
    return _bytes(pb.ModelMetadataResponse(**document))


def _model_config(service: Service, message: bytes) -> bytes:
    request = pb.ModelConfigRequest.FromString(message)
    document = service.metadata.config(request.name, parse_version(request.version))
    return _bytes(model_config_response(json_format.Parse(document, ModelConfig(), ignore_unknown_fields=True)))


async def _model_statistics(service: Service, message: bytes) -> bytes:
    request = pb.ModelStatisticsRequest.FromString(message)
    return _bytes(model_statistics_response(await service.statistics.of(request.name, parse_version(request.version))))


def _repository_index(service: Service, message: bytes) -> bytes:
    request = pb.RepositoryIndexRequest.FromString(message)
    return _bytes(repository_index_response(service.metadata.index(request.ready)))


def _no_control(service: Service, message: bytes) -> bytes:
    raise Unavailable(NO_CONTROL)


def _no_shared_memory(service: Service, message: bytes) -> bytes:
    raise Unsupported(NO_SHARED_MEMORY)


def _nothing(service: Service, message: bytes) -> bytes:
    return b""


def _not_offered(service: Service, message: bytes) -> bytes:
    raise Unsupported("")


def _bytes(message: Any) -> bytes:
    serialised: bytes = message.SerializeToString()
    return serialised


_METHODS: Final = (
    Method("ServerLive", "health", _server_live),
    Method("ServerReady", "health", _server_ready),
    Method("ModelReady", "health", _model_ready),
    Method("ServerMetadata", "metadata", _server_metadata),
    Method("ModelMetadata", "metadata", _model_metadata),
    Method("ModelInfer", "inference", inference=True),
    Method("ModelStreamInfer", "inference", inference=True),
    Method("ModelConfig", "model-config", _model_config),
    Method("ModelStatistics", "statistics", _model_statistics),
    Method("RepositoryIndex", "model-repository", _repository_index),
    Method("RepositoryModelLoad", "model-repository", _no_control, large=True),
    Method("RepositoryModelUnload", "model-repository", _no_control),
    Method("SystemSharedMemoryStatus", "shared-memory", _nothing),
    Method("SystemSharedMemoryRegister", "shared-memory", _no_shared_memory),
    Method("SystemSharedMemoryUnregister", "shared-memory", _no_shared_memory),
    Method("CudaSharedMemoryStatus", "shared-memory", _nothing),
    Method("CudaSharedMemoryRegister", "shared-memory", _no_shared_memory),
    Method("CudaSharedMemoryUnregister", "shared-memory", _no_shared_memory),
    Method("TraceSetting", "trace", _not_offered),
    Method("LogSettings", "logging", _not_offered),
)


class Methods:
    """The methods of one port by path.

    Args:
        handlers: by method name; they take the place of those here.
        reflection: whether server reflection is offered.
    """

    def __init__(self, handlers: Mapping[str, Handler], reflection: bool) -> None:
        table = {(SERVICE + method.name).encode(): method for method in _METHODS}
        for name, handler in handlers.items():
            path = (SERVICE + name).encode()
            table[path] = replace(table[path], handler=handler)
        table[b"/grpc.health.v1.Health/Check"] = Method("Check", "health", _health)
        self._calls: dict[str, type[Call]] = {"ModelInfer": InferCall, "ModelStreamInfer": StreamInferCall}
        call = reflection_call() if reflection else None
        if call is not None:
            self._calls["ServerReflectionInfo"] = call
            for version in ("v1", "v1alpha"):
                path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo".encode()
                table[path] = Method("ServerReflectionInfo", "reflection")
        self.by_path: Mapping[bytes, Method] = table

    def call(self, head: GrpcHead) -> type[Call] | None:
        """Return the kind of call that a request with this head makes, None for a malformed one."""
        if head.malformed:
            return None
        if head.method is None or head.refusal is not None:
            return RefusedCall
        return self._calls.get(head.method.name, MethodCall)
