"""The free ports that the first of a node's ingresses chose: the others listen on the same."""

from collections.abc import Awaitable, Callable
from typing import Final

import orjson

from deployments.replica.node_folder import NodeFolder

_PORTS: Final = "ports"
_LOCK: Final = "ports-lock"


class NodePorts:
    """Chosen ports by name; an ingress that takes the place of a dead one gets them, too."""

    def __init__(self, folder: NodeFolder) -> None:
        self._folder = folder

    async def listen(self, name: str, port: int, listen: Callable[[int], Awaitable[int]]) -> int:
        """Have `listen` open a port and return which: for 0 the one that was chosen before, or else a free one.

        Raises:
            OSError: the port is taken.
        """
        if port:
            return await listen(port)
        with self._folder.locked(_LOCK):
            path = self._folder.path / _PORTS
            ports: dict[str, int] = orjson.loads(path.read_bytes()) if path.exists() else {}
            try:
                chosen = await listen(ports.get(name, 0))
            except OSError:
                if name not in ports:
                    raise
                chosen = await listen(0)  # somebody else has taken it meanwhile
            beside = path.with_name(f"{_PORTS}.new")  # half a file would keep every ingress from starting
            beside.write_bytes(orjson.dumps(ports | {name: chosen}))
            beside.rename(path)
        return chosen
