"""How long a replica that Serve ends has for what it has taken."""

import asyncio
import threading

import pytest

from deployments.replica import departure as departure_module
from deployments.replica.departure import Departure

SHORT_S, LONG_S = 10.0, 600.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departure_module, "_LOOK_S", 0.01)


def test_it_is_short_unless_the_end_was_expected_of_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        departure = Departure(loop, "m", SHORT_S, LONG_S, lambda app: False)
        assert departure.begin() == pytest.approx(SHORT_S, abs=1)
        departure.expect()
        assert departure.begin() == pytest.approx(LONG_S, abs=1)
        await asyncio.sleep(0.1)
        assert departure.left_s() == pytest.approx(LONG_S, abs=1)
        assert departure.rest_s() == pytest.approx(SHORT_S, abs=1)
        monkeypatch.setattr(departure_module, "_SOON_S", -1.0)
        departure.expect()
        assert departure.begin() == pytest.approx(SHORT_S, abs=1)

    asyncio.run(scenario())


def test_it_becomes_short_when_the_replica_must_go() -> None:
    must_go = threading.Event()

    async def scenario() -> None:
        departure = Departure(asyncio.get_running_loop(), "m", SHORT_S, LONG_S, lambda app: must_go.is_set())
        departure.expect()
        departure.begin()
        must_go.set()
        async with asyncio.timeout(10):
            while departure.left_s() > SHORT_S:
                await asyncio.sleep(0.01)
        assert departure.left_s() == pytest.approx(SHORT_S, abs=1)

    asyncio.run(scenario())


class Deployment:
    def __init__(self, status: str = "DOWNSCALING", *, lacks_room: bool = False) -> None:
        self.status = status
        self.lacks_room = lacks_room


class Serve:
    status = "RUNNING"
    own = Deployment()
    lacks_room = False
    is_away = False

    def application_status(self, app: str) -> str:
        assert app == "m"
        if self.is_away:
            raise RuntimeError("Serve's controller is away")
        return self.status

    def application_states(self) -> dict[str, dict[str, Deployment]]:
        return {"m": {"v1": self.own}, "other": {"v1": Deployment("UPDATING", lacks_room=self.lacks_room)}}


def test_a_replica_must_go_when_its_application_ends_or_changes_or_others_find_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve = Serve()
    monkeypatch.setattr(departure_module, "application_status", serve.application_status)
    monkeypatch.setattr(departure_module, "application_states", serve.application_states)
    assert not departure_module._must_go("m")
    serve.lacks_room = True
    assert departure_module._must_go("m")
    serve.lacks_room, serve.is_away = False, True
    assert not departure_module._must_go("m")
    serve.is_away, serve.own = False, Deployment("UPDATING")
    assert departure_module._must_go("m")
    serve.own = Deployment()
    assert not departure_module._must_go("m")
    for status in ("DELETING", "NOT_STARTED"):
        serve.status = status
        assert departure_module._must_go("m")
