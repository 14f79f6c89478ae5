"""An ensemble here whose step another process loads anew."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from deployments.replica.former_models import ASKED_S, FormerModels
from deployments.replica.served_model import ServedModel
from protocol.infer import InferRequest
from protocol.signature import Signature
from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions
from tests.deployments.lane.harness import EchoModel, Lanes
from tests.deployments.replica.hosted_models import ADD_ONE, CONFIG, Hosted, Models

ENSEMBLE = """
platform: "ensemble" max_batch_size: 0
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "there" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "%s" value: "Y" } }
}
"""


def renamed(root: Path, output: str) -> Models:
    config = CONFIG.replace('name: "Y"', f'name: "{output}"')
    return Models(root, False).add("there", ADD_ONE, config=config).add("e", config=ENSEMBLE % output)


def step(models: Models) -> EchoModel:
    """Return what stands for the step in the other process."""
    config = load_repositories([str(models.root)], LoaderOptions(), None).models["there"].config
    assert config is not None
    model = EchoModel()
    model.interface = Signature.from_config(config).interface
    return model


class Apart:
    def __init__(self, lanes: Lanes, hosted: Hosted, before: Models, after: Models) -> None:
        self.lanes, self.host = lanes, hosted.host
        self.before, self.after = before.planned("e"), after.planned("e")
        self.late: list[str] = []
        self.host.loaded_late = lambda: self.late.append(self.digest)
        self.old, self.new = step(before), step(after)

    @property
    def digest(self) -> str:
        ((_, _, reason, _, digest),) = self.host.report()
        assert not reason
        return str(digest)

    async def serve(self, model: Any) -> None:
        self.lanes.replicas[0].server.set_model("there", 1, model)
        interface = "" if model is None else model.interface
        await self.lanes.until(lambda: (self.lanes.fleet.target("there", 1, interface) is None) == (model is None))
        self.host.late.routes_changed()


TWO_VERSIONS = 'platform: "onnxruntime_onnx" version_policy { all {} }'
OVER_ONE = """
platform: "ensemble" max_batch_size: 0
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "there" model_version: %d input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } }
}
"""


def adds(number: float, *outputs: str) -> bytes:
    """Return an ONNX model that adds a number to X, in each output."""
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("X", *outputs)]
    constant = helper.make_tensor("C", TensorProto.FLOAT, [], [number])
    nodes = [helper.make_node("Add", ["X", "C"], [output]) for output in outputs]
    graph = helper.make_graph(nodes, "graph", shapes[:1], shapes[1:], [constant])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


def test_versions_of_a_step_may_have_other_outputs_than_the_highest(tmp_path: Path) -> None:
    """What their files say, as their configuration does not."""

    def models(root: Path, description: str) -> Models:
        found = Models(root, False).add("there", config=TWO_VERSIONS)
        (root / "there" / "2").mkdir()
        (root / "there" / "1" / "model.onnx").write_bytes(adds(1, "Y"))
        (root / "there" / "2" / "model.onnx").write_bytes(adds(2, "Y", "Z"))
        for name, version in (("one", 1), ("two", 2), ("any", -1)):
            found.add(name, config=OVER_ONE % version, more=f'parameters {{ key: "{description}" value {{}} }}')
        return found

    async def run() -> None:
        async with models(tmp_path / "before", "before").hosted() as call:
            digests = {row[0]: row[4] for row in call.host.report()}
            await call.host.apply(models(tmp_path / "after", "after").planned())
            answers = [await call.start_with(name, {"X": np.zeros(1, np.float32)}) for name in ("one", "two", "any")]
            assert [each["Y"].tolist() for each in answers] == [[1], [2], [2]]
            loaded = {row[0]: row[4] for row in call.host.report()}
            assert all(loaded[name] != digests[name] for name in ("one", "two", "any"))

    asyncio.run(run())


@pytest.fixture
def models(tmp_path: Path) -> tuple[Models, Models]:
    return renamed(tmp_path / "before", "Y"), renamed(tmp_path / "after", "Z")


@asynccontextmanager
async def apart(before: Models, after: Models) -> AsyncIterator[Apart]:
    async with Lanes() as lanes, before.hosted("e", fleet=lanes.fleet) as hosted:
        yield Apart(lanes, hosted, before, after)


def test_it_is_loaded_anew_once_its_step_serves_as_it_is_to_be(models: tuple[Models, Models]) -> None:
    async def run() -> None:
        async with apart(*models) as e:
            await e.serve(e.old)
            await e.host.apply(e.after)
            e.host.late.routes_changed()
            assert e.digest == e.before[0]["digest"] and not e.late
            await e.serve(e.new)
            await e.lanes.until(lambda: e.late == [e.after[0]["digest"]])
            await e.host.apply(e.before)  # what the step was until now does not count
            assert e.digest == e.after[0]["digest"]

    asyncio.run(run())


def test_it_stays_as_it_is_when_its_step_is_taken_back(models: tuple[Models, Models]) -> None:
    async def run() -> None:
        async with apart(*models) as e:
            await e.serve(e.old)
            await e.host.apply(e.after)
            await e.host.apply(e.before)
            await e.serve(e.new)
            await e.host.apply(e.before)
            assert e.digest == e.before[0]["digest"] and not e.late

    asyncio.run(run())


def test_what_had_another_interface_is_kept_until_nobody_asks_it(models: tuple[Models, Models]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        now_s = 0.0
        gone: list[ServedModel] = []
        async with models[0].hosted("there") as hosted:
            host, old = hosted.host, hosted.host.served["there", 1]
            host.former = FormerModels(host.core, lambda: now_s)
            host.former.gone = gone.append

            async def ask() -> int:
                answered: asyncio.Future[Any] = loop.create_future()
                request = InferRequest({"X": np.zeros(1, np.int32)}, 1, lambda _, result: answered.set_result(result))
                host.core.infer("there", -1, request, old.interface)
                return int((await answered).outputs["Y"][0])

            await host.apply(models[1].planned("there"))
            assert host.core.resolve("there").interface != old.interface
            for _ in range(2):
                now_s += ASKED_S - 1
                assert await ask() == 1
            now_s += ASKED_S
            async with asyncio.timeout(10):
                while not gone:
                    await asyncio.sleep(0)
            assert gone == [old] and not host.core.serves("there", -1, old.interface)

    asyncio.run(run())


def test_it_does_not_wait_for_a_step_that_serves_nowhere(models: tuple[Models, Models]) -> None:
    async def run() -> None:
        async with apart(*models) as e:
            await e.host.apply(e.after)
            assert e.digest == e.after[0]["digest"] and not e.late
            await e.serve(e.new)
            await e.host.apply(e.before)
            await e.serve(None)
            await e.lanes.until(lambda: e.late == [e.before[0]["digest"]])

    asyncio.run(run())


def test_an_ensemble_that_has_it_waits_with_it(tmp_path: Path) -> None:
    outer = ENSEMBLE.replace('"there"', '"e"') % "Y"
    before, after = (
        renamed(tmp_path / output, output).add(
            "outer", config=outer, more=f'parameters {{ key: "{output}" value {{}} }}'
        )
        for output in ("Y", "Z")
    )

    async def run() -> None:
        old, new = step(before), step(after)
        async with Lanes() as lanes, before.hosted("e", "outer", fleet=lanes.fleet) as hosted:

            async def serve(model: EchoModel) -> None:
                lanes.replicas[0].server.set_model("there", 1, model)
                await lanes.until(lambda: lanes.fleet.target("there", 1, model.interface) is not None)
                hosted.host.late.routes_changed()

            def digests() -> dict[str, str]:
                return {row[0]: row[4] for row in hosted.host.report()}

            await serve(old)
            served, wanted = digests(), {row["package"]["name"]: row["digest"] for row in after.planned("e", "outer")}
            assert served.keys() == wanted.keys() and not {*served.values()} & {*wanted.values()}
            await hosted.host.apply(after.planned("e", "outer"))
            hosted.host.late.routes_changed()
            await asyncio.sleep(0)
            assert digests() == served
            await serve(new)
            await lanes.until(lambda: digests() == wanted)

    asyncio.run(run())
