"""Models with an opinion of their own on whether they are ready."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import orjson
import pytest

from deployments.lane.server import LaneServer
from deployments.replica import readiness
from deployments.replica.readiness import Readiness
from deployments.replica.served_model import ServedModel
from tests.deployments.replica.hosted_models import ADD_ONE, Models, on_a_loop

MOODY = """
import os
from pathlib import Path

class TritonPythonModel:
    def is_ready(self):
        return not Path(__file__).with_name("moody").exists()
    def execute(self, requests):
        return [answer(x_of(r).as_numpy() + 1) for r in requests]
"""
STUCK = MOODY.replace('return not Path(__file__).with_name("moody").exists()', "threading.Event().wait()")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(readiness, "ASK_S", 0.01)
    monkeypatch.setattr("deployments.backends.python.instance._READY_TIMEOUT_S", 0.05)
    monkeypatch.setattr("deployments.backends.python.process.process_instance._READY_TIMEOUT_S", 0.5)
    yield
    gc.unfreeze()


@pytest.fixture(params=[False, True], ids=["here", "processes"])
def models(tmp_path: Path, request: pytest.FixtureRequest) -> Models:
    return Models(tmp_path, request.param)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@on_a_loop
async def test_what_a_model_says_is_known_and_it_serves_on(models: Models) -> None:
    models.add("moody", MOODY).add("add_one", ADD_ONE)
    mood = models.root / "moody" / "1" / "moody"
    async with models.hosted() as call:
        lane = LaneServer("secret", asyncio.get_running_loop())
        served = call.host.served[("moody", 1)]
        lane.set_model("moody", 1, served)
        assert orjson.loads(lane.table())[0][7] is True
        mood.touch()
        await until(lambda: not call.host.says_ready("moody", 1))
        assert orjson.loads(lane.table())[0][7] is False
        assert await call("moody", 1) == [2]
        assert call.host.says_ready("add_one", 1)
        mood.unlink()
        await until(lambda: call.host.says_ready("moody", 1))


@on_a_loop
async def test_a_model_is_ready_when_all_its_instances_say_so(models: Models) -> None:
    one_moody = MOODY.replace("return not", "return self.first or not").replace(
        "    def is_ready",
        "    def initialize(self, args):\n"
        '        self.first = args["model_instance_name"].endswith("_0")\n'
        "    def is_ready",
    )
    models.add("moody", one_moody, more="instance_group { kind: KIND_CPU count: 2 }")
    async with models.hosted() as call:
        (models.root / "moody" / "1" / "moody").touch()
        await until(lambda: not call.host.says_ready("moody", 1))


@on_a_loop
async def test_a_model_that_does_not_answer_is_not_ready_and_holds_nobody_up(models: Models) -> None:
    async with models.add("stuck", STUCK).hosted() as call:
        await until(lambda: not call.host.says_ready("stuck", 1))
        assert await call("stuck", 1) == [2]


@pytest.mark.parametrize("error", ["SystemExit(1)", "asyncio.CancelledError()"])
@on_a_loop
async def test_a_model_that_raises_whatever_is_not_ready_and_ends_nothing(models: Models, error: str) -> None:
    raises = MOODY.replace('return not Path(__file__).with_name("moody").exists()', f"raise {error}")
    async with models.add("raises", raises).hosted() as call:
        await until(lambda: not call.host.says_ready("raises", 1))
        assert await call("raises", 1) == [2]


THREADLESS = """
import os

class TritonPythonModel:
    def initialize(self, args):
        self.start, self.refused, threading.Thread.start = threading.Thread.start, 0, self.refuse
    def refuse(self):
        threading.Thread.start = self.start
        self.refused += 1
        raise RuntimeError("can't start new thread")
    def is_ready(self):
        return True
    def execute(self, requests):
        return [answer(np.array([os.getpid(), self.refused], np.int32)) for r in requests]
"""


@on_a_loop
async def test_a_process_that_cannot_start_a_thread_to_answer_on_lives_on(tmp_path: Path) -> None:
    async with Models(tmp_path, True).add("threadless", THREADLESS).hosted() as call:
        served, said = call.host.served[("threadless", 1)], [True]
        call.host._changed = lambda name, version, served: said.append(served is not None and served.says_ready)
        before, _ = await call("threadless", 1)
        await until(lambda: said[-2:] == [False, True])
        assert await call("threadless", 1) == [before, 1]
        assert served.ready


MORTAL = """
import os
from pathlib import Path

class TritonPythonModel:
    def initialize(self, args):
        if Path(__file__).with_name("down").exists():
            os._exit(1)
    def is_ready(self):
        return True
    def execute(self, requests):
        if x_of(requests[0]).as_numpy()[0] == 99:
            os._exit(1)
        return [answer(x_of(r).as_numpy() + 1) for r in requests]
"""


@on_a_loop
async def test_a_model_without_a_process_is_not_offered_whatever_it_says(tmp_path: Path) -> None:
    async with Models(tmp_path, True).add("mortal", MORTAL).hosted() as call:
        key, offered = ("mortal", 1), [True]
        call.host._changed = lambda name, version, served: offered.append(served is not None)
        served = call.host.served[key]
        assert await call("mortal", 1) == [2]
        down = tmp_path / "mortal" / "1" / "down"
        down.touch()
        await call.error("mortal", 99)
        await until(lambda: not served.ready and not served.says_ready)
        assert not offered[-1]
        down.unlink()
        await until(lambda: served.ready and served.says_ready)
        assert offered[-1]
        assert await call("mortal", 1) == [2]


class Scarce:
    """An instance for which there is a thread now and then."""

    has_own_readiness = True

    def __init__(self) -> None:
        self.answers = [True, RuntimeError("can't start new thread"), False]

    def is_ready(self) -> bool:
        answer = self.answers.pop() if self.answers else True
        if isinstance(answer, RuntimeError):
            raise answer
        return answer


class Said:
    """What is asked of a served model."""

    model_name, version, says_ready = "scarce", 1, True

    def __init__(self, instance: Scarce) -> None:
        self.model = SimpleNamespace(pool=SimpleNamespace(instances=[instance]))


def test_a_model_is_asked_again_when_there_was_no_thread_to_ask_it_on() -> None:
    async def said() -> list[bool]:
        heard: list[bool] = []
        asking = Readiness(asyncio.get_running_loop(), lambda served: heard.append(served.says_ready))
        served = cast(ServedModel, Said(Scarce()))
        asking.follow(served)
        await until(lambda: len(heard) == 2)
        asking.forget(served)
        return heard

    assert asyncio.run(said()) == [False, True]
