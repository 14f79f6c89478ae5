"""When an ingress that Serve ends may stop to listen."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from app.ingress.listening_mark import ListeningMark
from app.ingress.successor import until_succeeded
from deployments.replica.node_folder import NodeFolder
from deployments.serve_internals import DELETING, DEPLOYING

LONG_S = 30.0


def node_folder(root: Path) -> NodeFolder:
    folder = NodeFolder("node", root)
    folder.path.mkdir(parents=True, exist_ok=True)
    return folder


def waited_s(mark: ListeningMark, status: Callable[[], str], timeout_s: float = LONG_S) -> float:
    began_s = time.monotonic()
    asyncio.run(until_succeeded(mark, status, timeout_s))
    return time.monotonic() - began_s


def test_an_ingress_that_is_deployed_anew_ends_when_its_successor_listens(tmp_path: Path) -> None:
    folder = node_folder(tmp_path)
    old, new = ListeningMark(folder), ListeningMark(folder)
    old.set()
    asked = []

    def status() -> str:
        asked.append(new.others_listen())
        if len(asked) == 3:
            new.set()
        return DEPLOYING

    assert waited_s(old, status) < LONG_S / 2
    assert asked == [True] * 3, "the new one sees meanwhile that another listens"


def test_an_ingress_that_nothing_replaces_waits_for_nobody(tmp_path: Path) -> None:
    mark = ListeningMark(node_folder(tmp_path))
    mark.set()

    def fails() -> str:
        raise OSError("Serve's controller does not answer")

    for status in (lambda: DELETING, lambda: "RUNNING", fails):
        assert waited_s(mark, status) < LONG_S / 2
    assert waited_s(mark, lambda: DEPLOYING, 0.2) < LONG_S / 2, "its successor does not start"
