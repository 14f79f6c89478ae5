"""What one process loads and unloads goes on beside what else it loads and unloads."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from deployments.core.counts import MODEL, Label, ModelCounts, Totals
from deployments.replica import model_host
from deployments.replica.changes import in_order
from tests.deployments.replica.hosted_models import ADD_ONE, Hosted, Models, on_a_loop
from tests.deployments.replica.hosted_models import models_here as models_here
from tests.deployments.replica.hosted_models import unfrozen as unfrozen

SLOW = """
import os
import time


class TritonPythonModel:
    def initialize(self, args):
        self.path = os.path.join(%r, %r)
        note = lambda what: open(self.path + what, "a").write("x")
        self.note = note
        note(".begun")
        while not os.path.exists(self.path + ".may_load"):
            time.sleep(0.005)

    def execute(self, requests):
        return [answer(x_of(r).as_numpy() + %d) for r in requests]

    def finalize(self):
        self.note(".ended")
        while os.path.exists(self.path + ".stays"):
            time.sleep(0.005)
"""
BUSY = """
import os
import time


class TritonPythonModel:
    def execute(self, requests):
        open(%r, "w").close()
        while not os.path.exists(%r):
            time.sleep(0.005)
        return [answer(x_of(r).as_numpy()) for r in requests]
"""
LOADER = """
class TritonPythonModel:
    def initialize(self, args):
        pb_utils.load_model("other")

    def execute(self, requests):
        return [answer(x_of(r).as_numpy()) for r in requests]
"""


class Slow:
    """A model that loads for as long as it is told to, and adds a number."""

    def __init__(self, root: Path, number: int) -> None:
        self.data: dict[str, Any]
        self._marks = root / "marks"
        self._marks.mkdir(exist_ok=True, parents=True)
        self._name = f"slow{number}"
        folder = root / f"adds{number}"
        models = Models(folder, False).add("slow", SLOW % (str(self._marks), self._name, number))
        (self.data,) = models.planned()

    def let_load(self) -> None:
        (self._marks / f"{self._name}.may_load").touch()

    def let_end(self, *, may: bool) -> None:
        stays = self._marks / f"{self._name}.stays"
        stays.unlink() if may else stays.touch()

    def count(self, what: str) -> int:
        path = self._marks / f"{self._name}.{what}"
        return path.stat().st_size if path.exists() else 0

    async def until(self, what: str) -> None:
        await until(lambda: self.count(what) > 0)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def names(call: Hosted) -> set[str]:
    return {row[0] for row in call.host.report()}


@pytest.fixture
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks")


@pytest.fixture
def slow(marks: Path) -> list[Slow]:
    """Return what one model is made of, three times."""
    return [Slow(marks, number) for number in (1, 2, 3)]


@pytest.fixture
def quick(models_here: Models) -> Models:
    return models_here.add("one", ADD_ONE).add("other", ADD_ONE)


@on_a_loop
async def test_neither_loads_nor_unloads_wait_for_the_load_of_another_model(quick: Models, slow: list[Slow]) -> None:
    async with quick.hosted("one") as call:
        loading = asyncio.create_task(call.host.apply([*quick.planned("one"), slow[0].data]))
        await slow[0].until("begun")
        await call.host.apply([*quick.planned("one", "other"), slow[0].data])
        assert await call("other", 1) == [2] and names(call) == {"one", "other"}
        await call.host.apply([*quick.planned("other"), slow[0].data])
        assert names(call) == {"other"} and not loading.done() and not call.host.changes.answering
        slow[0].let_load()
        await loading
        assert await call("slow", 1) == [2] and slow[0].count("begun") == 1


@on_a_loop
async def test_what_is_wanted_no_longer_when_it_has_been_loaded_is_not_served(quick: Models, slow: list[Slow]) -> None:
    async with quick.hosted("one") as call:
        loading = asyncio.create_task(call.host.apply([*quick.planned("one"), slow[0].data]))
        await slow[0].until("begun")
        await call.host.apply(quick.planned("one"))
        slow[0].let_load()
        await loading
        assert names(call) == {"one"} and slow[0].count("ended") == 1


@on_a_loop
async def test_what_has_been_loaded_in_vain_is_not_counted(quick: Models, slow: list[Slow]) -> None:
    old, new = slow[:2]
    old.let_load()
    counters = Totals()
    async with quick.hosted("one", counters=counters) as call:
        await call.host.apply([old.data])
        counts = cast(ModelCounts, counters.row(Label(MODEL, "slow", 1)))
        took_ns = counts.load_duration_ns
        loading = asyncio.create_task(call.host.apply([new.data]))
        await new.until("begun")
        await call.host.apply([old.data])
        new.let_load()
        await loading
        assert new.count("ended") == 1 and counts.load_duration_ns == took_ns > 0


@on_a_loop
async def test_of_several_changes_of_one_version_the_last_is_loaded(quick: Models, slow: list[Slow]) -> None:
    async with quick.hosted("one") as call:
        applied = []
        for each in slow:
            applied.append(asyncio.create_task(call.host.apply([each.data])))
            await slow[0].until("begun")
        assert not slow[2].count("begun"), "one after the other"
        slow[0].let_load()
        slow[2].let_load()
        await asyncio.gather(*applied)
        assert await call("slow", 1) == [4]
        assert [each.count("begun") for each in slow] == [1, 0, 1] and slow[0].count("ended") == 1


@on_a_loop
async def test_a_version_serves_on_when_its_successor_is_taken_back_while_it_loads(
    slow: list[Slow], quick: Models
) -> None:
    old, new = slow[:2]
    old.let_load()
    async with quick.hosted("one") as call:
        await call.host.apply([old.data])
        loading = asyncio.create_task(call.host.apply([new.data]))
        await new.until("begun")
        await call.host.apply([old.data])
        new.let_load()
        await loading
        assert await call("slow", 1) == [2]
        assert (old.count("begun"), old.count("ended"), new.count("ended")) == (1, 0, 1)


@on_a_loop
async def test_what_is_taken_back_and_wanted_again_while_it_loads_is_loaded_once(
    quick: Models, slow: list[Slow]
) -> None:
    async with quick.hosted("one") as call:
        loading = asyncio.create_task(call.host.apply([slow[0].data]))
        await slow[0].until("begun")
        await call.host.apply(quick.planned("one"))
        await call.host.apply([slow[0].data])
        slow[0].let_load()
        await loading
        assert await call("slow", 1) == [2] and slow[0].count("begun") == 1


@on_a_loop
async def test_what_is_wanted_again_while_it_is_closed_is_loaded_again(quick: Models, slow: list[Slow]) -> None:
    async with quick.hosted("one") as call:
        slow[0].let_end(may=False)
        loading = asyncio.create_task(call.host.apply([slow[0].data]))
        await slow[0].until("begun")
        await call.host.apply(quick.planned("one"))
        slow[0].let_load()
        await slow[0].until("ended")
        again = asyncio.create_task(call.host.apply([slow[0].data]))
        await asyncio.sleep(0)
        slow[0].let_end(may=True)
        await asyncio.gather(loading, again)
        assert await call("slow", 1) == [2] and slow[0].count("begun") == 2 and slow[0].count("ended") == 1


@asynccontextmanager
async def loading_version_2(quick: Models, old: Slow, new: Slow) -> AsyncIterator[tuple[Hosted, asyncio.Task[None]]]:
    """Have the second version of a model begin to load in place of the first."""
    old.let_load()
    new.data["package"]["version"] = 2
    async with quick.hosted("one") as call:
        await call.host.apply([old.data])
        loading = asyncio.create_task(call.host.apply([new.data]))
        await new.until("begun")
        yield call, loading


@on_a_loop
async def test_no_version_goes_before_the_one_that_takes_its_place_is_loaded(quick: Models, slow: list[Slow]) -> None:
    old, new = slow[:2]
    async with loading_version_2(quick, old, new) as (call, loading):
        await call.host.apply([new.data, *quick.planned("other")])  # another change, which does not wait for it
        assert await call("slow", 1) == [2]
        new.let_load()
        await loading
        assert await call("slow", 1) == [3]
        assert [row[:2] for row in call.host.report() if row[0] == "slow"] == [["slow", 2]]


@on_a_loop
async def test_what_loads_and_is_wanted_no_longer_keeps_no_other_version(quick: Models, slow: list[Slow]) -> None:
    old, new = slow[:2]
    async with loading_version_2(quick, old, new) as (call, loading):
        await call.host.apply(quick.planned("one"))
        assert names(call) == {"one"} and old.count("ended") == 1 and not loading.done()
        new.let_load()
        await loading


@on_a_loop
async def test_a_model_is_loaded_again_while_it_answers_what_it_had(models_here: Models, marks: Path) -> None:
    began, may_end = marks / "began", marks / "may_end"
    models_here.add("busy", BUSY % (str(began), str(may_end))).add("one", ADD_ONE)
    async with models_here.hosted() as call:
        answer = asyncio.create_task(call("busy", 5))
        await until(began.exists)
        unloading = asyncio.create_task(call.host.apply(models_here.planned("one")))
        await until(lambda: names(call) == {"one"})
        await call.host.apply(models_here.planned())
        assert names(call) == {"busy", "one"} and not unloading.done() and not answer.done()
        may_end.touch()
        await unloading
        assert await answer == [5] and await call("busy", 6) == [6] and await call("one", 1) == [2]


@on_a_loop
async def test_what_answers_for_long_after_its_unload_is_waited_for_by_nobody(
    models_here: Models, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_host, "DRAIN_TIMEOUT_S", 0.05)
    began, may_end = marks / "began", marks / "may_end"
    models_here.add("busy", BUSY % (str(began), str(may_end))).add("one", ADD_ONE)
    async with models_here.hosted() as call:
        answer = asyncio.create_task(call("busy", 5))
        await until(began.exists)
        queued = asyncio.create_task(call("busy", 7))
        await asyncio.sleep(0)
        assert not call.host.changes.answering
        await call.host.apply(models_here.planned("one"))
        assert not answer.done() and call.host.changes.answering
        may_end.touch()
        assert await answer == [5] and await queued == [7]
        await until(lambda: not call.host.changes.answering)


@on_a_loop
async def test_a_host_that_is_closed_while_it_loads_leaves_nothing_behind(quick: Models, slow: list[Slow]) -> None:
    async with quick.hosted("one") as call:
        loading = asyncio.create_task(call.host.apply([*quick.planned("one"), slow[0].data]))
        await slow[0].until("begun")
        closing = asyncio.create_task(call.host.close(5.0))
        slow[0].let_load()
        await asyncio.gather(loading, closing)
        assert not call.host.served and slow[0].count("ended") == 1


@on_a_loop
async def test_a_second_try_does_not_wait_for_another_load(models_here: Models, slow: list[Slow], marks: Path) -> None:
    mark = marks / "mended"
    fails = f"import os\nclass TritonPythonModel:\n    def initialize(self, args):\n        os.stat({str(mark)!r})\n"
    models_here.add(
        "late", fails + "    def execute(self, requests): return [answer(x_of(r).as_numpy()) for r in requests]"
    )
    async with models_here.hosted("late", fails=True) as call:
        assert ("late", 1) in call.host.failures
        loading = asyncio.create_task(call.host.apply([*models_here.planned(), slow[0].data]))
        await slow[0].until("begun")
        mark.touch()
        assert await call.host.try_again([("late", 1)]) and await call("late", 1) == [1]
        slow[0].let_load()
        await loading


@on_a_loop
async def test_a_model_loads_another_of_its_process_in_initialize(quick: Models) -> None:
    """Even if no more than one is to load at the same time, and there is one thread for all else that blocks."""
    quick.add("loader", LOADER)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with quick.hosted("one", thread_count=1) as call:

        class Neighbours:
            async def load(self, name: str, config: str | None, files: Any) -> None:
                await call.host.apply(quick.planned("one", "loader", name))

        call.host.calls.neighbours = Neighbours()  # type: ignore[assignment]
        await call.host.apply(quick.planned("one", "loader"))
        assert names(call) == {"one", "other", "loader"} and await call("other", 1) == [2]


def test_versions_go_before_those_that_they_ask():
    asked = {("step", 1): (), ("inner", 1): ("step",), ("outer", 1): ("inner", "step", "elsewhere"), ("step", 2): ()}
    assert [key for key, _ in in_order(asked)] == [("outer", 1), ("inner", 1), ("step", 1), ("step", 2)]
    circle = {("ping", 1): ("pong",), ("pong", 1): ("ping",), ("caller", 1): ("ping",)}
    assert [*in_order(circle)] == [(key, circle[key]) for key in (("caller", 1), ("ping", 1), ("pong", 1))]
