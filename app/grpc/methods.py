"""Every method that is served: its path, its category for restrictions, the call that it makes, and what answers it."""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from app.grpc.call import Call
from app.grpc.handlers import HANDLERS
from app.grpc.head import GrpcHead
from app.grpc.infer_call import InferCall
from app.grpc.method import Method
from app.grpc.reflection import reflection_call
from app.grpc.refused_call import RefusedCall
from app.grpc.stream_infer_call import StreamInferCall
from app.grpc.unary_call import MethodCall
from app.service.service import Service
from protocol.model_version import parse_version

SERVICE: Final = "/inference.GRPCInferenceService/"
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
    config = json_format.Parse(document, ModelConfig(), ignore_unknown_fields=True)
    return _bytes(pb.ModelConfigResponse(config=config))


async def _model_statistics(service: Service, message: bytes) -> bytes:
    request = pb.ModelStatisticsRequest.FromString(message)
    documents = await service.statistics.of(request.name, parse_version(request.version))
    return _bytes(pb.ModelStatisticsResponse(model_stats=documents))


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
    Method("RepositoryIndex", "model-repository", HANDLERS["RepositoryIndex"]),
    Method("RepositoryModelLoad", "model-repository", HANDLERS["RepositoryModelLoad"], large=True),
    Method("RepositoryModelUnload", "model-repository", HANDLERS["RepositoryModelUnload"]),
    Method("SystemSharedMemoryStatus", "shared-memory", HANDLERS["SystemSharedMemoryStatus"]),
    Method("SystemSharedMemoryRegister", "shared-memory", HANDLERS["SystemSharedMemoryRegister"]),
    Method("SystemSharedMemoryUnregister", "shared-memory", HANDLERS["SystemSharedMemoryUnregister"]),
    Method("CudaSharedMemoryStatus", "shared-memory", HANDLERS["CudaSharedMemoryStatus"]),
    Method("CudaSharedMemoryRegister", "shared-memory", HANDLERS["CudaSharedMemoryRegister"]),
    Method("CudaSharedMemoryUnregister", "shared-memory", HANDLERS["CudaSharedMemoryUnregister"]),
    Method("TraceSetting", "trace", HANDLERS["TraceSetting"]),
    Method("LogSettings", "logging", HANDLERS["LogSettings"]),
)


class Methods:
    """The methods of one port by path; `reflection` says whether server reflection is offered."""

    def __init__(self, reflection: bool) -> None:
        table = {(SERVICE + method.name).encode(): method for method in _METHODS}
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
