"""Ensembles that change, or go, together with steps of their process."""

import asyncio
import os
from pathlib import Path

import pytest

from deployments.replica.neighbours import NoNeighbours
from protocol.errors import Unavailable
from tests.deployments.replica.hosted_models import ADD_ONE, Models
from tests.deployments.replica.hosted_models import unfrozen as unfrozen

STEP = """
platform: "ensemble"
input { name: "X" data_type: TYPE_INT32 dims: -1 }
output { name: "Y" data_type: TYPE_INT32 dims: -1 }
ensemble_scheduling {
  step { model_name: "%s" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "b" } }
  step { model_name: "last" model_version: -1 input_map { key: "X" value: "b" } output_map { key: "Y" value: "Y" } }
}
"""
ALONE = """
platform: "ensemble" max_batch_size: 0
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "last" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } }
}
"""
STEP_CONFIG = """
backend: "python" max_batch_size: 0
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Z" data_type: TYPE_INT32 dims: [ -1 ] }
"""
SLOW_ADD_ONE = "import time\n" + ADD_ONE.replace("        return", "        time.sleep(0.3)\n        return")


def test_what_is_under_way_in_an_ensemble_is_answered_when_it_is_unloaded_together_with_its_steps(
    tmp_path: Path,
) -> None:
    models = Models(tmp_path, False).add("first", SLOW_ADD_ONE).add("last", ADD_ONE)
    models.add("inner", config=STEP % "first").add("outer", config=STEP % "inner")

    async def check() -> None:
        async with models.hosted() as hosted:
            under_way = hosted.start("outer", 1)
            await asyncio.sleep(0.05)
            await hosted.host.apply([])
            assert (await under_way)["Y"].tolist() == [4]
            assert not hosted.host.served

    asyncio.run(check())


GATED = """
class TritonPythonModel:
    def initialize(self, args):
        open(%r).read()
        assert %s

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Z", x_of(r).as_numpy() + 2)]) for r in requests]
"""


@pytest.mark.parametrize(("loads", "answer"), [(True, 3), (False, 2)], ids=["loads", "fails"])
def test_an_ensemble_that_is_loaded_anew_with_its_step_asks_what_serves_until_the_step_is_there(
    loads: bool, answer: int, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    config = STEP.replace('key: "Y" value: "Y"', 'key: "Z" value: "Y"') % "first"
    models = (
        Models(tmp_path / "before", False).add("first", ADD_ONE).add("last", ADD_ONE).add("two", config=STEP % "first")
    )
    after = Models(tmp_path / "after", False).add("first", ADD_ONE)
    after.add("last", GATED % (str(gate), loads), config=STEP_CONFIG).add("two", config=config)

    async def check() -> None:
        async with models.hosted() as hosted:
            applied = asyncio.create_task(hosted.host.apply(after.planned()))
            with await asyncio.to_thread(gate.open, "w"):  # the step is being loaded
                assert [await hosted("two", 0) for _ in range(100)] == [[2]] * 100
            while not applied.done():
                assert await hosted("two", 0) in ([2], [answer])  # whole, also when the step is there and it is not
            await applied
            assert await hosted("two", 0) == [answer]

    asyncio.run(check())


def test_an_ensemble_that_does_not_fit_its_step_any_more_asks_the_step_of_before(tmp_path: Path) -> None:
    models = Models(tmp_path / "before", False).add("last", ADD_ONE).add("alone", config=ALONE)
    code = "class TritonPythonModel:\n    def execute(self, requests):\n        return [outcome(r) for r in requests]"
    after = Models(tmp_path / "after", False).add("last", code, config=STEP_CONFIG)

    async def check() -> None:
        async with models.hosted() as hosted:
            ensemble = next(each for each in models.planned("alone"))
            (step,) = after.planned()
            ensemble = ensemble | {"steps": {"last": step["package"]["config"]}, "digest": "another"}
            await hosted.host.apply([step, ensemble])
            assert hosted.host.failure("alone", 1) == "in ensemble alone, model last has no output 'Y'"
            assert await hosted("alone", 0) == [1]

    asyncio.run(check())


async def answered_while(models: Models, name: str, *applied: list[str], after: Models | None = None) -> list[int]:
    """Return what an ensemble answers to a request that is under way while other models are wanted, time after time."""
    async with models.hosted() as hosted:
        under_way = hosted.start(name, 1)
        await asyncio.sleep(0.05)
        changes = []
        for names in applied:
            planned = (after or models).planned(*names) if names else []
            changes.append(asyncio.create_task(hosted.host.apply(planned)))
            await asyncio.sleep(0.05)
        result: list[int] = (await under_way)["Y"].tolist()
        await asyncio.gather(*changes)
        assert {key[0] for key in hosted.host.served} == set(applied[-1])
        return result


def test_what_is_under_way_in_an_ensemble_is_answered_when_its_steps_are_unloaded_after_it(tmp_path: Path) -> None:
    models = Models(tmp_path, False).add("first", SLOW_ADD_ONE).add("last", ADD_ONE)
    models.add("inner", config=STEP % "first").add("outer", config=STEP % "inner")
    assert asyncio.run(answered_while(models, "outer", ["inner", "first", "last"], ["first"], [])) == [4]


def test_what_is_under_way_in_an_ensemble_is_answered_when_a_step_of_it_is_unloaded_alone(tmp_path: Path) -> None:
    """And what comes later is refused, however much of it comes."""
    models = Models(tmp_path, False).add("first", SLOW_ADD_ONE).add("last", ADD_ONE)
    models.add("inner", config=STEP % "first").add("outer", config=STEP % "inner")

    async def check() -> None:
        async with models.hosted() as hosted:
            under_way = hosted.start("outer", 1)
            await asyncio.sleep(0.05)
            applied = asyncio.create_task(hosted.host.apply(models.planned("first", "inner", "outer")))
            await asyncio.sleep(0.05)
            later = []
            while not applied.done():
                later.append(hosted.start("outer", 1))
                await asyncio.sleep(0.02)
            assert (await under_way)["Y"].tolist() == [4]
            assert isinstance((await asyncio.gather(*later, return_exceptions=True))[-1], Unavailable)
            assert {key[0] for key in hosted.host.served} == {"first", "inner", "outer"}

    asyncio.run(check())


@pytest.mark.parametrize("without", [["first", "two"], ["first"]], ids=["alone", "with it"])
def test_what_an_ensemble_takes_while_its_step_is_there_again_is_answered_when_that_is_unloaded_once_more(
    without: list[str], tmp_path: Path
) -> None:
    models = Models(tmp_path, False).add("first", SLOW_ADD_ONE).add("last", ADD_ONE).add("two", config=STEP % "first")

    async def check() -> None:
        async with models.hosted() as hosted:
            answers, changes = [], []
            for names in without, ["first", "last", "two"], without:
                if names is without:
                    answers.append(hosted.start("two", 1))
                    await asyncio.sleep(0.02)
                changes.append(asyncio.create_task(hosted.host.apply(models.planned(*names))))
                await asyncio.sleep(0.02)
            assert [(await answer)["Y"].tolist() for answer in answers] == [[3], [3]]
            await asyncio.gather(*changes)
            assert {key[0] for key in hosted.host.served} == {*without}

    asyncio.run(check())


def test_what_is_under_way_in_an_ensemble_is_answered_when_it_is_loaded_anew_without_a_step_that_goes(
    tmp_path: Path,
) -> None:
    models = Models(tmp_path / "before", False).add("first", SLOW_ADD_ONE).add("last", ADD_ONE)
    models.add("two", config=STEP % "first")
    after = Models(tmp_path / "after", False).add("first", SLOW_ADD_ONE)
    after.add("two", config=ALONE.replace("last", "first"))
    assert asyncio.run(answered_while(models, "two", ["first", "two"], after=after)) == [3]


def test_steps_stay_until_the_ensemble_that_asks_no_longer_for_them_is_loaded(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    before = Models(tmp_path / "before", False).add("first", ADD_ONE).add("last", ADD_ONE)
    before.add("inner", config=STEP % "first").add("outer", config=STEP % "inner")
    after = Models(tmp_path / "after", False).add("other", ADD_ONE)
    after.add("new", GATED % (str(gate), True), config=STEP_CONFIG)
    after.add("outer", config=ALONE.replace("last", "new").replace('key: "Y" value: "Y"', 'key: "Z" value: "Y"'))

    async def check() -> None:
        async with before.hosted() as hosted:
            applied = asyncio.create_task(hosted.host.apply(after.planned("new", "outer")))
            with await asyncio.to_thread(gate.open, "w"):  # the step to come is being loaded
                await hosted.host.apply(after.planned())  # another change, which does not wait for it
                assert await hosted("outer", 0) == [3]
            await applied
            assert await hosted("outer", 0) == [2]
            assert {key[0] for key in hosted.host.served} == {"new", "other", "outer"}

    asyncio.run(check())


def test_an_ensemble_is_loaded_anew_once_its_step_that_failed_has_been_tried_again(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    before = Models(tmp_path / "before", False).add("last", ADD_ONE).add("alone", config=ALONE)
    code = GATED.replace('"Z"', '"Y"') % (str(mended), True)
    after = Models(tmp_path / "after", False).add("last", code).add("alone", config=ALONE + "parameters { key: 'new' }")

    async def check() -> None:
        async with before.hosted() as hosted:
            wanted = {row["package"]["name"]: row["digest"] for row in after.planned()}
            await hosted.host.apply(after.planned())
            assert await hosted("alone", 0) == [1]
            mended.touch()
            assert await hosted.host.try_again([("last", 1)])
            assert await hosted("alone", 0) == [2]
            assert {name: digest for name, _, _, _, digest in hosted.host.report()} == wanted

    asyncio.run(check())


def test_an_ensemble_that_waits_for_its_steps_waits_for_what_comes_in_place_of_one_that_has_failed(
    tmp_path: Path,
) -> None:
    gates = tmp_path / "first", tmp_path / "last"
    for gate in gates:
        os.mkfifo(gate)
    first, last = (GATED.replace('"Z"', '"Y"') % (str(gate), True) for gate in gates)
    before = Models(tmp_path / "before", False).add("first", ADD_ONE).add("last", ADD_ONE)
    before.add("two", config=STEP % "first")
    after = Models(tmp_path / "after", False).add("first", first).add("two", config=STEP % "first")
    after.add("last", "class TritonPythonModel:\n    pass")
    later = Models(tmp_path / "later", False).add("last", last)

    async def check() -> None:
        async with before.hosted() as hosted:
            wanted = {row["package"]["name"]: row | {"digest": "new"} for row in after.planned()}
            changes = [asyncio.create_task(hosted.host.apply([*wanted.values()]))]
            with await asyncio.to_thread(gates[0].open, "w"):
                async with asyncio.timeout(20):
                    while not hosted.host.failures:
                        await asyncio.sleep(0.005)
                (wanted["last"],) = later.planned()
                changes.append(asyncio.create_task(hosted.host.apply([*wanted.values()])))
                loads = await asyncio.to_thread(gates[1].open, "w")
            with loads:
                async with asyncio.timeout(20):
                    while not hosted.host.copies_now("first", 1, "new"):
                        await asyncio.sleep(0.005)
            await asyncio.gather(*changes)
            assert await hosted("two", 0) == [4]
            assert hosted.host.copies_now("two", 1, "new")

    asyncio.run(check())


@pytest.mark.parametrize(("loads", "answer"), [(True, 4), (False, 2)], ids=["loads", "fails"])
def test_an_ensemble_stays_as_it_was_when_one_in_it_does(loads: bool, answer: int, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    before = Models(tmp_path / "before", False).add("first", ADD_ONE).add("last", ADD_ONE)
    before.add("inner", config=ALONE.replace("last", "first")).add("outer", config=STEP % "inner")
    of_z = ('key: "Y" value: "Y"', 'key: "Z" value: "Y"')
    after = Models(tmp_path / "after", False).add("first", GATED % (str(gate), loads), config=STEP_CONFIG)
    after.add("inner", config=ALONE.replace("last", "first").replace(*of_z))
    after.add("last", GATED % ("/dev/null", True), config=STEP_CONFIG).add(
        "outer", config=(STEP % "inner").replace(*of_z)
    )

    async def check() -> None:
        async with before.hosted() as hosted:
            applied = asyncio.create_task(hosted.host.apply(after.planned()))
            with await asyncio.to_thread(gate.open, "w"):
                assert await hosted("outer", 0) == [2]
            await applied
            assert await hosted("outer", 0) == [answer]

    asyncio.run(check())


class WithoutLast(NoNeighbours):
    def unloaded(self, name: str, version: int) -> bool:
        return name == "last"


def test_a_process_says_whether_an_ensemble_that_stays_still_answers_though_a_step_elsewhere_was_unloaded(
    tmp_path: Path,
) -> None:
    models = Models(tmp_path, False).add("first", SLOW_ADD_ONE).add("last", ADD_ONE).add("outer", config=STEP % "first")

    async def check() -> None:
        async with models.hosted() as hosted:
            under_way = hosted.start("outer", 1)
            await asyncio.sleep(0.05)
            assert not hosted.host.is_answering
            hosted.host.calls.neighbours = WithoutLast()
            assert hosted.host.is_answering
            assert (await under_way)["Y"].tolist() == [3]
            assert not hosted.host.is_answering

    asyncio.run(check())
