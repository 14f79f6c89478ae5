"""What is done before Serve is told to keep fewer replicas, and undone after that."""

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import pytest

from deployments.control import scale_down as scale_down_module
from deployments.control.scale_down import ScaleDown
from deployments.control.scaler import Scaler
from deployments.core.counts import Totals
from deployments.serve_internals import DeploymentState
from repository_loader.autoscaling import Autoscaling
from repository_loader.deployment_plan import Place
from tests.deployments.control.test_autoscaler import KEY, deployment

OTHER = ("other", "v1")
LONG_S = 605.0
RUNNING: set[asyncio.Task[None]] = set()
"""Held, as a loop does not hold its tasks."""
RULES = Autoscaling(1, 6, target_ongoing_requests=4, downscale_delay_s=0.0)


class Serve:
    """What Serve is told, in order; it takes a change when it has been asked for it twice."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.given: Collection[Place] = ()
        self.unheard = 2
        self.is_away = False
        self.never_hears = False
        self.status = "HEALTHY"
        self.is_deploying = False
        self.go_on = threading.Event()
        self.go_on.set()

    def states(self) -> dict[str, dict[str, DeploymentState]]:
        return {KEY[0]: {KEY[1]: DeploymentState(self.status, "")}}

    def give_time(self, keys: Collection[Place]) -> float:
        if self.is_away:
            raise RuntimeError("Serve's controller is away")
        self.is_deploying = True
        assert self.go_on.wait(10)
        self.told.append(set(keys))
        self.given = keys
        self.unheard = 2
        return LONG_S

    def waits_s(self, app: str, name: str) -> float | None:
        self.unheard -= 1
        return None if self.unheard > 0 or self.never_hears else (LONG_S if (app, name) in self.given else 15.0)

    def set_target(self, app: str, name: str, count: int) -> None:
        self.told.append(((app, name), count))

    def handle_of(self, name: str, app: str) -> Any:
        serve = self

        class Handle:
            def broadcast(self, method: str) -> str:
                assert serve.unheard <= 0 or serve.is_away
                serve.told.append((app, name, method))
                return method

        return Handle()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    async def answers_by(asked: str, until_s: float) -> list[Any]:
        return [None]

    found = Serve()
    monkeypatch.setattr(scale_down_module, "handle_of", found.handle_of)
    monkeypatch.setattr(scale_down_module, "answers_by", answers_by)
    monkeypatch.setattr(scale_down_module, "let_go_of", lambda app, name: found.told.append((app, name, "let go")))
    monkeypatch.setattr(scale_down_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(scale_down_module, "_LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(scale_down_module, "_ENDS_S", 0.05)
    return found


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_replicas_expect_their_end_once_serve_would_wait_for_them_and_it_does_so_no_more_then(serve: Serve) -> None:
    async def scenario() -> None:
        scale_down = ScaleDown(asyncio.get_running_loop(), serve.give_time, serve.waits_s, serve.states)
        await scale_down.prepare(KEY)
        assert serve.told == [{KEY}, (*KEY, "expect_end")]
        assert not await scale_down.end_due()
        await asyncio.sleep(0.05)
        serve.status = "DOWNSCALING"
        assert not await scale_down.end_due()
        assert serve.told[2:] == []
        serve.status = "HEALTHY"
        assert await scale_down.end_due()
        assert serve.told[2:] == [set(), (*KEY, "let go")]
        assert not await scale_down.end_due()

    play(scenario)


def test_the_time_of_one_ends_while_another_is_prepared(serve: Serve) -> None:
    async def scenario() -> None:
        scale_down = ScaleDown(asyncio.get_running_loop(), serve.give_time, serve.waits_s, serve.states)
        await scale_down.prepare(KEY)
        await asyncio.sleep(0.05)
        await asyncio.gather(scale_down.end_due(), scale_down.prepare(OTHER))
        assert serve.given == (OTHER,)
        assert (*OTHER, "expect_end") in serve.told

    play(scenario)


def test_what_is_prepared_again_while_its_time_ends_has_time_again(serve: Serve) -> None:
    async def scenario() -> None:
        scale_down = ScaleDown(asyncio.get_running_loop(), serve.give_time, serve.waits_s, serve.states)
        await scale_down.prepare(KEY)
        await asyncio.sleep(0.05)
        serve.is_deploying = False
        serve.go_on.clear()
        ending = asyncio.create_task(scale_down.end_due())
        await until(lambda: serve.is_deploying)
        preparing = asyncio.create_task(scale_down.prepare(KEY))
        await asyncio.sleep(0.05)
        serve.go_on.set()
        await asyncio.gather(ending, preparing)
        assert serve.told == [{KEY}, (*KEY, "expect_end"), set(), {KEY}, (*KEY, "expect_end")]
        assert serve.given == (KEY,)

    play(scenario)


def test_fewer_will_do_also_while_serve_does_not_answer(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        scale_down = ScaleDown(asyncio.get_running_loop(), serve.give_time, serve.waits_s, serve.states)
        serve.is_away = True
        await scale_down.prepare(KEY)
        assert "have less time for what they have taken: Serve's controller is away" in caplog.text

    play(scenario)


async def with_three(serve: Serve) -> Scaler:
    """Return a scaler that runs as long as the loop, and that has told Serve of three replicas."""
    loop = asyncio.get_running_loop()
    scaler = Scaler(loop, Totals(), dict, serve.set_target)
    scaler.scale_down = ScaleDown(loop, serve.give_time, serve.waits_s, serve.states)
    RUNNING.add(loop.create_task(scaler.run()))
    await scaler.follow([deployment(RULES)])
    scaler.take("ingress", {"m/1": (12.0, 0.0)})
    await until(lambda: (KEY, 3) in serve.told)
    return scaler


def test_serve_keeps_as_many_until_busy_ones_are_prepared(serve: Serve) -> None:
    async def scenario() -> None:
        scaler = await with_three(serve)
        serve.told.clear()
        scaler.take("ingress", {"m/1": (3.0, 0.0)})
        await until(lambda: serve.told)
        assert scaler.count(*KEY) == 3, "who deploys meanwhile keeps the number"
        await until(lambda: (KEY, 1) in serve.told)
        assert serve.told[:3] == [{KEY}, (*KEY, "expect_end"), (KEY, 1)]
        assert scaler.count(*KEY) == 1
        await until(lambda: (*KEY, "let go") in serve.told)

    play(scenario)


def test_idle_ones_end_at_once_and_more_are_wanted_at_once(serve: Serve) -> None:
    async def scenario() -> None:
        scaler = await with_three(serve)
        scaler.take("ingress", {"m/1": (0.0, 0.0)})
        await until(lambda: (KEY, 1) in serve.told)
        assert serve.told == [(KEY, 3), (KEY, 1)]
        scaler.take("ingress", {"m/1": (12.0, 0.0)})
        await until(lambda: serve.told[-1] == (KEY, 3))
        serve.told.clear()
        serve.never_hears = True
        scaler.take("ingress", {"m/1": (3.0, 0.0)})
        await until(lambda: serve.told)
        scaler.take("ingress", {"m/1": (20.0, 0.0)})
        await until(lambda: (KEY, 5) in serve.told)
        assert serve.told == [{KEY}, (KEY, 5)]

    play(scenario)
