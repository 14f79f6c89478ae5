"""The ports that a node's ingresses share."""

import asyncio
import os
from pathlib import Path

import pytest

from app.ingress.node_ports import NodePorts
from deployments.replica.node_folder import NodeFolder
from tests.full_disk import full_disk


def test_ports_are_chosen_once_and_no_ingress_is_kept_by_what_one_without_room_has_left(tmp_path: Path) -> None:
    ports = NodePorts(NodeFolder("node", tmp_path))

    async def listen(port: int) -> int:
        return port or 1234

    def chosen(name: str) -> int:
        return asyncio.run(ports.listen(name, 0, listen))

    for name in ("http", "grpc"):
        with full_disk(), pytest.raises(OSError):
            chosen(name)
        assert chosen(name) == 1234
    (tmp_path / f"eagleray-nodes-{os.getuid()}/node/ports").write_text('{"http": 99}')
    assert chosen("http") == 99
