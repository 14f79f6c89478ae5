"""Whether another ingress of the node listens."""

import os
from pathlib import Path

import pytest

from app.ingress.listening_mark import ListeningMark
from deployments.replica.node_folder import NodeFolder


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    made = NodeFolder("node", tmp_path)
    made.path.mkdir()
    return made


def test_each_that_listens_is_seen_by_those_that_start_until_it_stops(folder: NodeFolder) -> None:
    first, second, third = (ListeningMark(folder) for _ in range(3))
    assert not first.others_listen() and not second.others_listen()
    first.set()
    second.set()
    assert third.others_listen()
    first.clear()
    assert third.others_listen()
    second.clear()
    assert not third.others_listen()


def test_one_that_dies_listens_no_longer(folder: NodeFolder) -> None:
    mark = ListeningMark(folder)
    if not (child := os.fork()):
        ListeningMark(folder).set()
        os._exit(0)
    os.waitpid(child, 0)
    assert not mark.others_listen()
