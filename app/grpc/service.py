"""What gRPC needs of the server; `app.service.service.Service` offers it, tests bring their own."""

from typing import Any, Protocol

from deployments.lane.sink import Target


class GrpcService(Protocol):
    """Errors are ServingErrors with Triton's texts; versions are -1 for the latest."""

    def target(self, name: str, version: int = -1) -> Target:
        """Return where to send a request."""
        ...

    def decoupled(self, name: str) -> bool:
        """Whether a model answers a request with any number of responses; False for an unknown one."""
        ...

    def server_ready(self) -> bool:
        """Whether the server is ready."""
        ...

    def model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model is ready."""
        ...

    def server_metadata(self) -> dict[str, Any]:
        """Return the server's metadata."""
        ...

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        """Return a model's metadata."""
        ...

    def model_config(self, name: str, version: int = -1) -> bytes:
        """Return a model's configuration as JSON."""
        ...

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """Return the repository index."""
        ...

    async def statistics(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Return the statistics of one model or all."""
        ...
