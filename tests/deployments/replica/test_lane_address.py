"""Where a replica's lane listens."""

import socket
import tempfile
from pathlib import Path

import pytest

from deployments.replica.lane_address import LaneAddress


@pytest.mark.parametrize("length", [10, 75, 90, 200])
def test_a_replica_listens_whatever_the_length_of_the_path_of_temporary_files(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "short" if length < len(str(tmp_path)) else Path(f"{tmp_path}/".ljust(length, "x"))
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    address = LaneAddress(None)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address.unix_path)
    for sock in address.sockets:
        sock.close()
    address.remove()
    assert not Path(address.unix_path).exists()
