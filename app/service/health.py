"""Whether the server and its models are ready."""

import contextlib
from typing import Final

from app.service.models import Models
from app.service.routing import Routing
from deployments.control.directory import VersionEntry
from protocol.errors import NotFound, Unavailable

UNREADY: Final = "is not ready: its own is_ready says so"


class Health:
    """One ingress's readiness; it is not ready while `draining`."""

    def __init__(self, models: Models, routing: Routing, strict_readiness: bool) -> None:
        self._models = models
        self._routing = routing
        self._strict_readiness = strict_readiness
        self.draining = False

    def server_ready(self) -> bool:
        """Whether every model is ready (strict), else whether the repository has been read."""
        directory = self._models.directory
        if self.draining or not directory.settled:
            return False
        if not self._strict_readiness:
            return True
        return all(
            not entry.reason and all(self._ready_or_left(name, *version) for version in entry.versions.items())
            for name, entry in directory.models.items()
        )

    def _ready_or_left(self, name: str, number: int, version: VersionEntry) -> bool:
        if version.left or version.held:
            return True
        return self._models.version_ready(name, number, version) and self._models.says_ready(name, number)

    def model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model version is ready; one that is unknown is not, as in Triton.

        Raises:
            InvalidArgument: the name is that of two models.
        """
        try:
            target = self._routing.target(name, version)
        except (NotFound, Unavailable):
            return False
        return self._models.says_ready(name, target.version)

    def check_known(self, name: str) -> None:
        """Raise NotFound for an unknown model."""
        with contextlib.suppress(Unavailable):
            self._routing.target(name)
