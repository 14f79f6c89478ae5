"""The shared-memory extensions: system shared memory, and CUDA's."""

import base64

from starlette.requests import Request
from starlette.responses import Response

from app.http.endpoint import Endpoint, empty_response, json_object, json_response, path_name
from app.service.client_shared_memory import ClientSharedMemory
from deployments.replica.device_memory import HANDLE_BYTES
from protocol.errors import InvalidArgument
from protocol.json_document import as_string, as_unsigned, member, string_member


class SharedMemoryApi:
    """Status, registration and its end, for both kinds."""

    def __init__(self, shared_memory: ClientSharedMemory) -> None:
        self._shared_memory = shared_memory

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints by the names that the table of routes has for them."""
        return {
            "system_status": self.system_status,
            "system_register": self.system_register,
            "system_unregister": self.system_unregister,
            "cuda_status": self.cuda_status,
            "cuda_register": self.cuda_register,
            "cuda_unregister": self.cuda_unregister,
        }

    async def system_status(self, request: Request) -> Response:
        """Return the registered regions, or one."""
        return json_response(self._shared_memory.status(path_name(request, "region")))

    async def system_register(self, request: Request) -> Response:
        """Register a region."""
        self._shared_memory.check_allowed()
        document = await json_object(request)
        for field in ("key", "byte_size"):
            if field not in document:
                raise InvalidArgument(f"Shared memory register request has no '{field}' field")
        self._shared_memory.register(
            path_name(request, "region"),
            as_string(document["key"], "key"),
            as_unsigned(document.get("offset", 0), "offset"),
            as_unsigned(document["byte_size"], "byte_size"),
        )
        return empty_response()

    async def system_unregister(self, request: Request) -> Response:
        """Forget a region, or all."""
        self._shared_memory.unregister(path_name(request, "region"))
        return empty_response()

    async def cuda_status(self, request: Request) -> Response:
        """Return the registered regions, or one."""
        return json_response(self._shared_memory.status(path_name(request, "region"), on_device=True))

    async def cuda_register(self, request: Request) -> Response:
        """Register a region."""
        region = path_name(request, "region")
        await self._shared_memory.check_devices(region)
        document = await json_object(request)
        if "raw_handle" not in document:
            raise InvalidArgument("Shared memory register request has no 'raw_handle' field")
        handle = string_member(document["raw_handle"], "b64")
        byte_size = as_unsigned(member(document, "byte_size"), "byte_size")
        device_id = as_unsigned(member(document, "device_id"), "device_id")
        await self._shared_memory.register_device(region, _decoded(handle), device_id, byte_size)
        return empty_response()

    async def cuda_unregister(self, request: Request) -> Response:
        """Forget a region, or all."""
        self._shared_memory.unregister(path_name(request, "region"), on_device=True)
        return empty_response()


def _decoded(handle: str) -> bytes:
    try:
        raw = base64.b64decode(handle, validate=True)
    except ValueError:
        raw = b""
    if len(raw) != HANDLE_BYTES:
        raise InvalidArgument("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return raw
