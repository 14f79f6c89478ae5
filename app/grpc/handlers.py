"""gRPC's methods for loading models, shared memory, trace and log settings, over the same service as HTTP's."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb

from app.grpc.load_message import read_load
from app.grpc.method import Handler
from app.service.model_control import check_repository_name
from app.service.service import Service
from app.service.trace_settings import SINGLE_VALUES
from deployments.lane.frames import Buffer
from protocol.errors import InvalidArgument, Unavailable


def _bytes(message: Any) -> bytes:
    serialised: bytes = message.SerializeToString()
    return serialised


async def _load(service: Service, message: Buffer) -> bytes:
    await service.control.load(await asyncio.to_thread(read_load, message))
    return b""


async def _index(service: Service, message: bytes) -> bytes:
    request = pb.RepositoryIndexRequest.FromString(message)
    check_repository_name(request.repository_name)
    await service.control.list_models()
    return _bytes(pb.RepositoryIndexResponse(models=service.metadata.index(request.ready)))


async def _unload(service: Service, message: bytes) -> bytes:
    request = pb.RepositoryModelUnloadRequest.FromString(message)
    check_repository_name(request.repository_name)
    dependents = request.parameters.get("unload_dependents")
    if dependents is not None and dependents.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidArgument("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    await service.control.unload(request.model_name, dependents is not None and dependents.bool_param)
    return b""


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _value(value) for key, value in parameters.items()}


def _value(value: Any) -> Any:
    chosen = value.WhichOneof("parameter_choice")
    return None if chosen is None else getattr(value, chosen)


def _system_status(service: Service, message: bytes) -> bytes:
    request = pb.SystemSharedMemoryStatusRequest.FromString(message)
    regions = {row["name"]: row for row in service.shared_memory.status(request.name)}
    return _bytes(pb.SystemSharedMemoryStatusResponse(regions=regions))


def _system_register(service: Service, message: bytes) -> bytes:
    request = pb.SystemSharedMemoryRegisterRequest.FromString(message)
    service.shared_memory.register(request.name, request.key, request.offset, request.byte_size)
    return b""


def _system_unregister(service: Service, message: bytes) -> bytes:
    service.shared_memory.unregister(pb.SystemSharedMemoryUnregisterRequest.FromString(message).name)
    return b""


def _cuda_status(service: Service, message: bytes) -> bytes:
    request = pb.CudaSharedMemoryStatusRequest.FromString(message)
    regions = {row["name"]: row for row in service.shared_memory.status(request.name, on_device=True)}
    return _bytes(pb.CudaSharedMemoryStatusResponse(regions=regions))


async def _cuda_register(service: Service, message: bytes) -> bytes:
    request = pb.CudaSharedMemoryRegisterRequest.FromString(message)
    handle, device_id = request.raw_handle, request.device_id
    await service.shared_memory.register_device(request.name, handle, device_id, request.byte_size)
    return b""


def _cuda_unregister(service: Service, message: bytes) -> bytes:
    name = pb.CudaSharedMemoryUnregisterRequest.FromString(message).name
    service.shared_memory.unregister(name, on_device=True)
    return b""


async def _trace_settings(service: Service, message: bytes) -> bytes:
    request = pb.TraceSettingRequest.FromString(message)
    changes: dict[str, Any] = {}
    for key, setting in request.settings.items():
        values = list(setting.value)
        if len(values) > 1 and key in SINGLE_VALUES:
            raise InvalidArgument(f"expect only 1 value for '{key}'")
        changes[key] = None if not values else values if key == "trace_level" else values[0]
    settings = await service.settings.update_trace(changes, request.model_name)
    answer = pb.TraceSettingResponse()
    for key, value in settings.items():
        answer.settings[key].value.extend(value if isinstance(value, list) else [value])
    return _bytes(answer)


async def _log_settings(service: Service, message: bytes) -> bytes:
    request = pb.LogSettingsRequest.FromString(message)
    changes = _parameters(request.settings)
    for name, (kind, told) in _LOG_KINDS.items():
        if type(changes.get(name, kind())) is not kind:
            raise InvalidArgument(f"expect {told} for '{name}'")
    try:
        settings = await service.settings.update_log(changes)
    except Unavailable as error:
        if "--log_format" not in error.message:
            raise
        # Triton's gRPC has another code for it than its HTTP, and names the setting without dashes.
        raise InvalidArgument(error.message.replace("--log_format", "log_format")) from None
    answer = pb.LogSettingsResponse()
    for key, value in settings.items():
        if isinstance(value, bool):
            answer.settings[key].bool_param = value
        elif isinstance(value, int):
            answer.settings[key].uint32_param = value
        else:
            answer.settings[key].string_param = value
    return _bytes(answer)


_LOG_KINDS: Final[dict[str, tuple[type, str]]] = {
    "log_info": (bool, "boolean"),
    "log_warning": (bool, "boolean"),
    "log_error": (bool, "boolean"),
    "log_verbose_level": (int, "int32"),
}

HANDLERS: Final[dict[str, Handler]] = {
    "RepositoryIndex": _index,
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
    "SystemSharedMemoryStatus": _system_status,
    "SystemSharedMemoryRegister": _system_register,
    "SystemSharedMemoryUnregister": _system_unregister,
    "CudaSharedMemoryStatus": _cuda_status,
    "CudaSharedMemoryRegister": _cuda_register,
    "CudaSharedMemoryUnregister": _cuda_unregister,
    "TraceSetting": _trace_settings,
    "LogSettings": _log_settings,
}
