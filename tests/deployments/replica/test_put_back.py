"""What a version on trial has taken the place of serves again as it was loaded, when the trial fails."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from deployments.replica.hosted_model import KEEPS_FORMER
from protocol.errors import ServingError
from tests.deployments.replica.hosted_models import CONFIG, Hosted, Models, on_a_loop
from tests.deployments.replica.test_changed_instances import Sums, refused

TELLS = """
class TritonPythonModel:
    def execute(self, requests):
        output = pb_utils.Tensor("{output}", np.array([{number}], np.int32))
        return [pb_utils.InferenceResponse([output]) for _ in requests]

    def finalize(self):
        with open("{log}", "a") as log:
            log.write("{number}")
"""


@pytest.fixture(params=[False, True], ids=["here", "processes"])
def models(tmp_path: Path, request: pytest.FixtureRequest) -> "Tried":
    return Tried(tmp_path, request.param)


class Tried(Models):
    """One model whose files are others each time that it is loaded."""

    def __init__(self, root: Path, own_processes: bool) -> None:
        super().__init__(root / "models", own_processes)
        self._log = root / "finalized"

    def write(self, number: int, output: str = "Y") -> dict[str, Any]:
        """Return the model as a host is told of it."""
        folder = self.root / "tells/1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder.parent / "config.pbtxt").write_text(CONFIG.replace('name: "Y"', f'name: "{output}"'))
        code = TELLS.format(number=number, output=output, log=self._log)
        prelude = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"
        (folder / "model.py").write_text(prelude + code)
        (told,) = self.planned()
        return told | {"digest": str(number), "package": told["package"] | {"revision": str(number)}}

    async def until_finalized(self, numbers: str) -> None:
        async with asyncio.timeout(30):
            while not self._log.exists() or len(self._log.read_text()) < len(numbers):
                await asyncio.sleep(0.02)
        assert self.finalized == numbers

    @property
    def finalized(self) -> str:
        return "".join(sorted(self._log.read_text())) if self._log.exists() else ""


def on_trial(told: dict[str, Any], before: int = 1) -> dict[str, Any]:
    return told | {KEEPS_FORMER: str(before)}


async def answer(call: Hosted) -> int:
    async with asyncio.timeout(30):
        (output,) = (await call.start("tells", 0)).values()
    return int(output[0])


@pytest.mark.parametrize("output", ["Y", "Z"])
@on_a_loop
async def test_what_was_there_before_a_trial_that_fails_is_back_though_its_files_are_others(
    models: Tried, output: str
) -> None:
    first = models.write(1)
    async with models.hosted("nothing yet") as call:
        await call.host.apply([first])
        await call.host.apply([on_trial(models.write(2, output))])
        assert await answer(call) == 2
        await call.host.apply([first])
        assert await answer(call) == 1 and [row[4] for row in call.host.report()] == ["1"]
        assert call.host.target("tells") is not None and call.host.target("tells").ready
        assert "1" not in models.finalized
        await call.host.apply([on_trial(models.write(3, output))])
        assert await answer(call) == 3
        await call.host.apply([first])
        assert await answer(call) == 1


@pytest.mark.parametrize("output", ["Y", "Z"])
@on_a_loop
async def test_it_goes_when_the_trial_has_succeeded(models: Tried, output: str) -> None:
    first = models.write(1)
    async with models.hosted("nothing yet") as call:
        await call.host.apply([first])
        second = models.write(2, output)
        await call.host.apply([on_trial(second)])
        assert await answer(call) == 2 and models.finalized == ""
        await call.host.apply([second])
        await models.until_finalized("1")
        assert await answer(call) == 2


@pytest.mark.parametrize("output", ["Y", "Z"])
@on_a_loop
async def test_it_goes_with_what_was_tried_when_the_model_is_unloaded(models: Tried, output: str) -> None:
    first = models.write(1)
    async with models.hosted("nothing yet") as call:
        await call.host.apply([first])
        await call.host.apply([on_trial(models.write(2, output))])
        await call.host.apply([])
        await models.until_finalized("12")
        with pytest.raises(ServingError):
            await answer(call)


@pytest.mark.parametrize(("before", "gone"), [(1, "2"), (2, "1")], ids=["failed", "succeeded"])
@on_a_loop
async def test_a_trial_may_begin_before_it_is_told_what_came_of_the_one_before_it(
    models: Tried, before: int, gone: str
) -> None:
    told = {1: models.write(1)}
    async with models.hosted("nothing yet") as call:
        await call.host.apply([told[1]])
        told[2] = models.write(2)
        await call.host.apply([on_trial(told[2])])
        await call.host.apply([on_trial(models.write(3), before)])
        await models.until_finalized(gone)
        assert await answer(call) == 3
        await call.host.apply([told[before]])
        await models.until_finalized(f"{gone}3")
        assert await answer(call) == before
    await models.until_finalized("123")


@on_a_loop
async def test_a_host_that_closes_frees_it_too(models: Tried) -> None:
    first = models.write(1)
    async with models.hosted("nothing yet") as call:
        await call.host.apply([first])
        await call.host.apply([on_trial(models.write(2))])
    assert models.finalized == "12"


@on_a_loop
async def test_its_sequences_and_those_that_began_meanwhile_go_on(tmp_path: Path) -> None:
    sums = Sums(tmp_path)
    await sums.load(1)
    assert await sums.add(1, 1, sequence_start=True) == 1
    await sums.load(2, before="")
    assert await sums.add(1, 2) == 3
    assert await sums.add(2, 5, sequence_start=True) == 5
    await sums.load(1)
    assert [await sums.add(id, 1) for id in (1, 2)] == [4, 6]
    assert await sums.add(2, 1, sequence_end=True) == 7
    await sums.until_finalized(2)
    assert await sums.add(1, 1) == 5
    await sums.host.close()
    assert sums.finalized == 3


@on_a_loop
async def test_its_sequences_go_on_though_other_files_were_tried(tmp_path: Path) -> None:
    sums = Sums(tmp_path)
    await sums.load(1)
    assert await sums.add(1, 1, sequence_start=True) == 1
    await sums.load(1, "of other files", before="")
    assert await refused(sums, 1)
    assert await sums.add(2, 5, sequence_start=True) == 5
    await sums.load(1)
    assert await sums.add(1, 1) == 2
    assert await refused(sums, 2)
    await sums.host.close()


@on_a_loop
async def test_sequences_from_before_what_is_put_back_go_on_however_often_it_is(tmp_path: Path) -> None:
    sums = Sums(tmp_path)
    await sums.load(1)
    assert await sums.add(1, 1, sequence_start=True) == 1
    await sums.load(2)
    assert await sums.add(2, 1, sequence_start=True) == 1
    for number in (3, 4):
        await sums.load(number, before="")
        assert await sums.add(number, 1, sequence_start=True) == 1
        await sums.load(2)
    assert [await sums.add(id, 1, sequence_end=True) for id in (4, 1, 3)] == [2, 2, 2]
    await sums.until_finalized(1 + 3 + 4)
    assert await sums.add(2, 1) == 2
    await sums.host.close()
    assert sums.finalized == 1 + 2 + 3 + 4
