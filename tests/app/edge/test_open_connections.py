"""Who is let in while a process has hardly any descriptors left; `test_few_descriptors.py` has it with sockets.

And what one connection is to the time limits of the others.
"""

import resource
from typing import Any

import pytest

from app.edge.open_connections import OpenConnections

MOST = 80
LAST = 70
"""The first of the descriptors that clients leave."""


class Connection:
    def __init__(self) -> None:
        self.gave_way = False
        self.swept_s = 0.0
        self.fails = self.aborted = False

    def sweep(self, now_s: float) -> None:
        if self.fails:
            raise ValueError("its buffer is gone")
        self.swept_s = now_s

    def abort(self) -> None:
        self.aborted = True

    def give_way(self) -> bool:
        self.gave_way = True
        return True


class Transport:
    """One whose socket has the given descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def get_extra_info(self, name: str) -> Any:
        return self if name == "socket" else None

    def fileno(self) -> int:
        return self._descriptor


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> OpenConnections[Any]:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (MOST, MOST))
    return OpenConnections(1000)


def add(connections: OpenConnections[Any], descriptor: int) -> Connection | None:
    connection, transport = Connection(), Transport(descriptor)
    return connection if connections.add(connection, transport) else None  # type: ignore[arg-type]


def test_whoever_gets_one_of_the_last_takes_the_place_of_another(connections: OpenConnections[Any]) -> None:
    assert all(add(connections, number) for number in range(10, LAST))
    assert add(connections, LAST) is None, "nobody is idle"
    idle = next(iter(connections))
    connections.note_idle(idle)
    assert add(connections, LAST) and idle.gave_way
    assert add(connections, 10) is None, "which makes room for one of both only"


def test_one_that_keeps_one_of_the_last_keeps_nobody_out_once_there_is_room(connections: OpenConnections[Any]) -> None:
    opened = [add(connections, number) for number in range(10, LAST)]
    connections.note_idle(opened[0])
    assert add(connections, LAST)
    for connection in opened[1:]:
        connections.discard(connection)
    again = [add(connections, number) for number in range(10, LAST)]
    assert sum(each is not None for each in again) == len(opened) - 1, "as many as there were when it came"


def test_where_there_is_no_limit_none_is_among_the_last(
    connections: OpenConnections[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert add(connections, 10) and add(connections, 5000)


def test_the_time_of_a_process_that_stood_still_catches_up_within_a_minute(connections: OpenConnections[Any]) -> None:
    connection = add(connections, 10)
    assert connection is not None

    def swept(now_s: float) -> float:
        connections.sweep(now_s)
        return connection.swept_s

    assert [swept(now_s) for now_s in (100, 101, 111, 112)] == [100, 101, 103, 105]
    assert [swept(now_s) for now_s in range(113, 121)][-2:] == [119, 120]
    assert swept(36120) == 36060
    assert [swept(36120 + now_s) for now_s in range(1, 62)][-1] == 36181


def test_a_connection_that_cannot_look_at_its_time_is_closed_and_all_others_look_at_theirs(
    connections: OpenConnections[Any], caplog: pytest.LogCaptureFixture
) -> None:
    opened = [add(connections, number) for number in range(10, 20)]
    assert opened[3] is not None
    opened[3].fails = True
    connections.sweep(1000.0)
    assert [each is not None and each.aborted for each in opened] == [number == 3 for number in range(10)]
    assert all(each is not None and each.swept_s == 1000.0 for each in opened if each is not opened[3])
    assert "its buffer is gone" in caplog.text
