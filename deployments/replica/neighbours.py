"""How a process finds models of other processes that its own models call, and who loads models for them."""

from collections.abc import Callable, Mapping
from typing import Protocol

from protocol.errors import Unavailable
from protocol.signature import Signature

Found = Callable[[Signature | None], None]


class Neighbours(Protocol):
    """The models of other processes; all on the loop's thread."""

    def find(self, name: str, version: int, found: Found) -> None:
        """Tell the signature of a model version (-1: any) that a lane leads to, now or when one does.

        So of one whose last replica died: calls wait for the next. None when there is none.
        """
        ...

    def left(self, name: str, version: int) -> bool:
        """Whether a model version (-1: any) is known to take no requests any more, though it may still be here."""
        ...

    def unloaded(self, name: str, version: int) -> bool:
        """Whether a model version (-1: all) is known to have been unloaded; not of one that nothing is known of yet."""
        ...

    def sharing(self, name: str) -> int:
        """Return how many models are known that share a name, and so have identifiers in its place."""
        ...

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model; returns when it is ready.

        Raises:
            ServingError: with Triton's text.
        """
        ...

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Unload a model; raises as `load`."""
        ...


class NoNeighbours:
    """A process that is alone."""

    def find(self, name: str, version: int, found: Found) -> None:
        """Find nothing."""
        found(None)

    def left(self, name: str, version: int) -> bool:
        """Know nothing."""
        return False

    def unloaded(self, name: str, version: int) -> bool:
        """Know nothing."""
        return False

    def sharing(self, name: str) -> int:
        """Know nothing."""
        return 0

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Refuse."""
        raise Unavailable("models cannot be loaded or unloaded here")

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Refuse."""
        raise Unavailable("models cannot be loaded or unloaded here")
