import asyncio

from deployments.lane.target import LaneTarget
from tests.deployments.lane.harness import EchoModel, Lanes, Sink


def echo(interface: str) -> EchoModel:
    model = EchoModel()
    model.interface = interface
    model.hold = True
    return model


def asked(target: LaneTarget | None) -> Sink:
    assert target is not None
    target.submit((b"x",), None, sink := Sink())
    return sink


def test_what_had_another_interface_is_asked_by_that_until_it_is_let_go_of() -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            fleet, server = lanes.fleet, lanes.replicas[0].server
            before, after = echo("before"), echo("after")
            server.set_model("m", 1, before)
            await lanes.until(lambda: fleet.target("m", 1, "before") is not None)
            assert fleet.target("m", -1, "before") is fleet.target("m") and fleet.target("m", -1, "after") is None
            asked(fleet.target("m"))  # is on its way when the model changes
            server.set_model("m", 1, after)
            await lanes.until(lambda: len(before.held) == 1 and fleet.target("m", 1, "after") is not None)
            for interface in ("before", "after", ""):
                asked(fleet.target("m", -1, interface))
            await lanes.until(lambda: (len(before.held), len(after.held)) == (2, 2))
            server.forget_former(before)
            await lanes.until(lambda: fleet.target("m", -1, "before") is None)
            assert fleet.target("m", -1, "after") is fleet.target("m")

    asyncio.run(run())


def test_an_interface_that_comes_back_is_that_of_what_serves() -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            fleet, server = lanes.fleet, lanes.replicas[0].server
            first, second, third = echo("a"), echo("b"), echo("a")
            for model in (first, second, third):
                server.set_model("m", 1, model)
            await lanes.until(lambda: fleet.target("m", 1, "b") is not None)
            asked(fleet.target("m", 1, "a"))
            asked(fleet.target("m", 1, "b"))
            await lanes.until(lambda: (len(first.held), len(second.held), len(third.held)) == (0, 1, 1))

    asyncio.run(run())


def test_what_serves_again_as_before_answers_what_was_on_its_way_to_it() -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            fleet, server = lanes.fleet, lanes.replicas[0].server
            before, tried = echo("before"), echo("tried")
            server.set_model("m", 1, before)
            await lanes.until(lambda: fleet.target("m", 1, "before") is not None)
            sinks = [asked(fleet.target("m"))]  # are on their way when the model changes
            server.set_model("m", 1, tried)
            await lanes.until(lambda: fleet.target("m", 1, "tried") is not None)
            sinks += [asked(fleet.target("m", 1, interface)) for interface in ("before", "tried")]
            server.set_model("m", 1, before)
            server.forget_former(before)  # is not what serves
            await lanes.until(lambda: (len(before.held), len(tried.held)) == (2, 1))
            await lanes.until(lambda: fleet.target("m", 1, "before") is fleet.target("m"))
            assert [*server.models.values()].count(before) == 1 and not any(sink.done.is_set() for sink in sinks)
            server.forget_former(tried)
            await lanes.until(lambda: fleet.target("m", 1, "tried") is None)
            assert before in server.models.values() and tried not in server.models.values()

    asyncio.run(run())


def test_what_serves_again_in_place_of_what_has_died_is_kept_once() -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            fleet, server = lanes.fleet, lanes.replicas[0].server
            before, tried, after = echo("before"), echo("tried"), echo("before")
            server.set_model("m", 1, before)
            server.set_model("m", 1, tried)
            server.set_model("m", 1, None, "its process has died")
            server.set_model("m", 1, before)
            await lanes.until(lambda: fleet.target("m", 1, "before") is not None)
            asked(fleet.target("m"))
            await lanes.until(lambda: len(before.held) == 1)
            server.set_model("m", 1, after)
            assert after in server.models.values() and before not in server.models.values()
            asked(fleet.target("m", 1, "before"))
            await lanes.until(lambda: len(after.held) == 1)

    asyncio.run(run())


def test_of_two_replicas_those_are_asked_that_have_changed_or_have_not() -> None:
    async def run() -> None:
        async with Lanes(2) as lanes:
            fleet, (one, other) = lanes.fleet, lanes.replicas
            old, older, new = echo("old"), echo("old"), echo("new")
            one.server.set_model("m", 1, old)
            other.server.set_model("m", 1, older)
            await lanes.until(lambda: (target := fleet.target("m")) is not None and len(target.choice.lanes) == 2)
            one.server.set_model("m", 1, new)
            one.server.forget_former(old)
            await lanes.until(lambda: fleet.target("m", 1, "new") is not None)
            for interface in ("old", "new") * 8:
                asked(fleet.target("m", 1, interface))
            await lanes.until(lambda: (len(older.held), len(new.held), len(old.held)) == (8, 8, 0))
            other.die()
            await lanes.until(lambda: fleet.target("m", 1, "old") is None)
            assert fleet.target("m", 1, "new") is fleet.target("m")

    asyncio.run(run())
