"""The shared-memory extensions: system shared memory, and the answers for CUDA's, which is not offered."""

from starlette.requests import Request
from starlette.responses import Response

from app.http.endpoint import Endpoint, empty_response, json_object, json_response, path_name
from app.service.client_shared_memory import ClientSharedMemory
from protocol.errors import InvalidArgument, NotFound, Unsupported
from protocol.json_document import as_string, as_unsigned


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
        """There are none."""
        region = path_name(request, "region")
        if region:
            raise NotFound(f"Unable to find cuda shared memory region: '{region}'")
        return json_response([])

    async def cuda_register(self, request: Request) -> Response:
        """Refuse."""
        self._shared_memory.check_allowed()
        region = path_name(request, "region")
        raise Unsupported(f"failed to register CUDA shared memory region: '{region}', GPUs not supported")

    async def cuda_unregister(self, request: Request) -> Response:
        """Succeed, as for any name that is not known."""
        self._shared_memory.check_allowed()
        return empty_response()
