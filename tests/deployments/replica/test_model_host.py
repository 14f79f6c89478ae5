"""The models of one process, with Python models from files."""

import asyncio
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from deployments.core.counts import MODEL as MODEL_ROW
from deployments.core.counts import Counts, Label, Rows, Totals
from deployments.core.response_cache import ResponseCache, open_response_cache
from deployments.replica.hosted_model import HostedModel, packages_by_name
from deployments.replica.model_host import ModelFaultError, ModelHost
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.errors import Internal
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.plan import make_plan
from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions
from tests.deployments.lane.harness import Lanes, Sink
from tests.deployments.replica.hosted_models import DECOUPLED, Models
from tests.repositories import write_small_models

CONFIG = """
backend: "python" max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "Y" data_type: TYPE_FP32 dims: 4 }
"""
MODEL = """
class TritonPythonModel:
    def initialize(self, args):
        self.itself = self

    def execute(self, requests):
        return []
"""


@pytest.fixture
def models(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Four models that load and one that does not, as a host is told of them."""
    for name, text, inline in (
        ("one", MODEL, ""),
        ("two", MODEL, ""),
        ("quick", MODEL, "true"),
        ("slow", MODEL, "false"),
        ("broken", "raise RuntimeError('not today')", ""),
    ):
        (tmp_path / name / "1").mkdir(parents=True)
        parameters = f'parameters {{ key: "eagleray.inline" value {{ string_value: "{inline}" }} }}' if inline else ""
        (tmp_path / name / "config.pbtxt").write_text(CONFIG + parameters)
        (tmp_path / name / "1" / "model.py").write_text(text)
    snapshot = load_repositories([str(tmp_path)], LoaderOptions(), None)
    plan = make_plan(snapshot, PlanSettings("packed"), ClusterFacts((NodeFacts(2),)))
    packages = packages_by_name(plan)
    return {model.name: HostedModel.of(model, packages).to_dict() for model in plan.deployments[0].models}


def planned(root: Path, name: str, model: str, parameters: str) -> dict[str, Any]:
    """Return one Python model as a host is told of it."""
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(CONFIG + parameters)
    (root / name / "1" / "model.py").write_text(model)
    return told_of(root)


def told_of(root: Path) -> dict[str, Any]:
    """Return the only model of a repository as a host is told of it."""
    snapshot = load_repositories([str(root)], LoaderOptions(), None)
    plan = make_plan(snapshot, PlanSettings("packed"), ClusterFacts((NodeFacts(2),)))
    (only,) = plan.deployments[0].models
    return HostedModel.of(only, packages_by_name(plan)).to_dict()


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


async def host_of(
    *models: dict[str, Any],
    shared: bool = False,
    changed: Callable[[str, int, Any], None] = lambda name, version, served: None,
    cache: ResponseCache | None = None,
    retry_count: int = 0,
    thread_count: int = 4,
    counters: Rows | None = None,
) -> ModelHost:
    host = ModelHost(
        asyncio.get_running_loop(),
        None,
        Limits(),
        Totals() if counters is None else counters,
        Regions(OwnTable()),
        shared=shared,
        changed=changed,
        cache=cache,
        retry_count=retry_count,
        thread_count=thread_count,
    )
    await host.apply(models)
    return host


ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())]) for request in requests
        ]
"""


def test_hosts_of_one_node_answer_for_each_other_until_the_model_is_another(tmp_path: Path) -> None:
    told = planned(tmp_path / "models", "echo", ECHO, "response_cache { enable: true }")
    body = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'

    async def hits(told: dict[str, Any]) -> int:
        """Ask a host of its own, as another process has."""
        cache = open_response_cache(tmp_path, 1 << 16)
        assert cache is not None
        host = await host_of(told, cache=cache)
        sink, target = Sink(), host.target("echo")
        assert target is not None
        target.submit((body,), None, sink)
        await asyncio.wait_for(sink.done.wait(), 30)
        assert sink.error is None and b"[1.0,2.0,3.0,4.0]" in sink.responses[0]
        count = int(host.served["echo", 1].model.statistics.counts.cache_hit_count)
        await host.close()
        cache.close()
        return count

    async def run() -> None:
        assert [await hits(told), await hits(told)] == [0, 1]
        assert [await hits(told | {"digest": "of another configuration"}), await hits(told)] == [0, 1]
        (tmp_path / "models/echo/1/model.py").write_text(ECHO + "# another")
        assert await hits(told) == 0

    asyncio.run(run())


MEETS = """
import time

LOG, WAITS_S = {log!r}, {waits_s}


class TritonPythonModel:
    def initialize(self, args):
        self.write("(")
        ends = time.monotonic() + WAITS_S
        while time.monotonic() < ends and "((" not in open(LOG).read():
            time.sleep(0.01)
        self.write(")")

    def write(self, sign):
        with open(LOG, "a") as file:
            file.write(sign)

    def execute(self, requests):
        return []
"""


@pytest.mark.parametrize(("thread_count", "waits_s"), [(1, 0.05), (2, 30.0)])
def test_so_many_models_load_at_the_same_time(tmp_path: Path, thread_count: int, waits_s: float) -> None:
    code = MEETS.format(log=str(tmp_path / "log"), waits_s=waits_s)
    told = [planned(tmp_path / name, name, code, "") for name in ("a", "b", "c")]

    async def check() -> None:
        host = await host_of(*told, thread_count=thread_count)
        assert len(host.served) == 3
        await host.close()

    asyncio.run(check())
    loads = (tmp_path / "log").read_text()
    assert "(" * thread_count in loads and "(" * (thread_count + 1) not in loads


def inline(host: ModelHost) -> dict[str, bool]:
    return {
        name: served.model.pool is not None and served.model.pool.may_run_inline
        for (name, _), served in host.served.items()
    }


def test_a_model_that_fails_harms_no_other(models: dict[str, dict[str, Any]]) -> None:
    async def check() -> None:
        host = await host_of(*models.values())
        assert set(host.served) == {("one", 1), ("two", 1), ("quick", 1), ("slow", 1)}
        assert "not today" in host.failures[("broken", 1)][0]
        await host.close()

    asyncio.run(check())


def test_what_cannot_be_a_model_fails_and_harms_no_other(models: dict[str, dict[str, Any]]) -> None:
    async def check() -> None:
        spoilt = {**models["two"], "specs": None}
        host = await host_of(models["one"], spoilt)
        assert set(host.served) == {("one", 1)} and set(host.failures) == {("two", 1)}
        await host.close()

    asyncio.run(check())


def test_models_that_take_long_to_finalise_do_so_together(tmp_path: Path) -> None:
    slow = (
        MODEL
        + """
    def finalize(self):
        import time
        time.sleep(0.5)
"""
    )

    async def check() -> None:
        host = await host_of(*(planned(tmp_path / str(number), f"m{number}", slow, "") for number in range(4)))
        assert len(host.served) == 4
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await host.close(timeout_s=5.0)
        assert loop.time() - began_s < 1.9
        assert not host.served

    asyncio.run(check())


def test_loaded_models_are_spared_from_collections_until_one_is_given_up(models: dict[str, dict[str, Any]]) -> None:
    async def check() -> None:
        host = await host_of(models["one"])
        assert gc.get_freeze_count() > 0
        await host.apply([models["one"], models["two"]])
        assert gc.get_freeze_count() > 0
        await host.apply([models["two"]])
        assert gc.get_freeze_count() == 0
        assert set(host.served) == {("two", 1)}
        await host.close()

    asyncio.run(check())


def test_a_session_goes_with_its_model_and_all_else_when_sixteen_have_gone(tmp_path: Path) -> None:
    """Not with a collection, which may look at it long after, or never: what stays is spared from them."""
    root = write_small_models(tmp_path)
    snapshot = load_repositories([str(root)], LoaderOptions(), None)
    plan = make_plan(snapshot, PlanSettings("packed"), ClusterFacts((NodeFacts(8),)))
    packages = packages_by_name(plan)
    given = {
        model.name: HostedModel.of(model, packages).to_dict()
        for deployment in plan.deployments
        for model in deployment.models
    }
    sessions: list[Any] = []

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc, no-any-unimported]
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            sessions.append(weakref.ref(self))

    async def check() -> None:
        host = await host_of(given["floats"])
        versions = []
        for number in range(20):
            await host.apply([given["floats"], given["flags"]])
            versions.append(weakref.ref(host.served["flags", 1]))
            await host.apply([given["floats"]])
            assert [ref() is None for ref in sessions] == [False] + [True] * (number + 1)
        assert sum(ref() is not None for ref in versions) <= 16
        await host.close()

    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(onnxruntime, "InferenceSession", Session)
            asyncio.run(check())
    finally:
        gc.enable()


def test_python_models_run_inline_when_alone_or_when_they_say_so(models: dict[str, dict[str, Any]]) -> None:
    async def check() -> None:
        host = await host_of(models["one"])
        assert inline(host) == {"one": True}
        await host.apply([models["one"], models["two"], models["quick"], models["slow"]])
        assert inline(host) == {"one": False, "two": False, "quick": True, "slow": False}
        await host.apply([models["two"]])
        assert inline(host) == {"two": True}
        await host.apply([models["slow"]])
        assert inline(host) == {"slow": False}
        await host.close()
        ingress = await host_of(models["one"], shared=True)
        assert inline(ingress) == {"one": False}
        await ingress.close()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        ("", True),
        ("max_queue_delay_microseconds: 5", True),
        ("default_queue_policy { max_queue_size: 2 }", False),
        ("priority_levels: 2 default_priority_level: 1", False),
    ],
    ids=["none", "delay", "policy", "levels"],
)
def test_a_python_model_with_a_queue_policy_leaves_the_loop_to_its_queue(
    tmp_path: Path, batching: str, expected: bool
) -> None:
    told = planned(tmp_path, "one", MODEL, f"dynamic_batching {{ {batching} }}")

    async def check() -> None:
        host = await host_of(told)
        assert inline(host) == {"one": expected}
        await host.close()

    asyncio.run(check())


SLEEPER = """
import json, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.parameters = json.loads(args["model_config"])["parameters"]
        self.generation = float(self.parameters["generation"]["string_value"])

    def execute(self, requests):
        time.sleep(0.02)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 4), self.generation, np.float32))])
            for _ in requests
        ]
"""
REQUEST = json.dumps({"inputs": [{"name": "X", "shape": [1, 4], "datatype": "FP32", "data": [0] * 4}]}).encode()


def generation_of(sink: Sink) -> float:
    assert sink.error is None, sink.error
    return float(json.loads(sink.responses[0])["outputs"][0]["data"][0])


def test_reload_in_place_refuses_no_request(tmp_path: Path) -> None:
    """The new version takes what comes on the lanes before the old one finishes what it has."""
    generations = {
        number: planned(
            tmp_path / str(number), "echo", SLEEPER, f'parameters {{ key: "generation" value {{ {value} }} }}'
        )
        for number, value in ((1, 'string_value: "1"'), (2, 'string_value: "2"'))
    }

    async def check() -> None:
        async with Lanes() as lanes:
            before = lanes.news_count
            host = await host_of(generations[1], changed=lanes.replicas[0].server.set_model)
            await lanes.until(lambda: lanes.news_count > before)
            answers: list[float] = []

            async def client() -> None:
                while not answers or answers[-1] != 2:
                    answers.append(generation_of(await lanes.ask(REQUEST)))

            clients = [asyncio.create_task(client()) for _ in range(8)]
            await lanes.until(lambda: len(answers) > 20)
            await host.apply([generations[2]])
            await asyncio.gather(*clients)
            assert set(answers) == {1, 2}
            await host.close()

    asyncio.run(check())


def test_a_model_whose_labels_have_gone_leaves_no_instance_behind(tmp_path: Path) -> None:
    labelled = CONFIG.replace('output { name: "Y"', 'output { label_filename: "labels.txt" name: "Y"')
    Models(tmp_path, False).add("m", MODEL + "open(__file__ + '.ran', 'w')", config=labelled)
    labels = tmp_path / "m/labels.txt"
    labels.write_text("one")
    snapshot = load_repositories([str(tmp_path)], LoaderOptions(), None)
    plan = make_plan(snapshot, PlanSettings("packed"), ClusterFacts((NodeFacts(2),)))
    labels.unlink()
    (tmp_path / "m/1/model.py.ran").unlink(missing_ok=True)

    async def check() -> None:
        host = await host_of(HostedModel.of(plan.deployments[0].models[0], packages_by_name(plan)).to_dict())
        ((reason, _),) = host.failures.values()
        assert reason == "unable to read label file 'labels.txt': No such file or directory"
        await host.close()

    asyncio.run(check())
    assert not (tmp_path / "m/1/model.py.ran").exists()


class NoRoom(Totals):
    """Rows of a node on which there is no memory for those of a model."""

    def row(self, label: Label) -> Counts:
        if label.kind == MODEL_ROW:
            raise OSError("no room")
        return super().row(label)


def test_a_model_that_cannot_be_counted_is_not_left_behind(tmp_path: Path) -> None:
    ends = MODEL + '\n    def finalize(self):\n        open(__file__ + ".ended", "x").close()\n'
    model = planned(tmp_path, "counted", ends, "")

    async def run() -> None:
        loop, regions = asyncio.get_running_loop(), Regions(OwnTable())
        host = ModelHost(loop, None, Limits(), NoRoom(), regions, shared=False, changed=lambda *_: None)
        await host.apply([model])
        assert host.failures["counted", 1][0] == "OSError: no room"
        assert (tmp_path / "counted" / "1" / "model.py.ended").exists()

    asyncio.run(run())


LOSES = """
class TritonPythonModel:
    {kind} execute(self, requests):
        raise RuntimeError("CUDA error: device-side assert triggered")
"""


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_decoupled_model_that_has_lost_its_gpu_serves_no_more(tmp_path: Path, kind: str) -> None:
    async def run() -> None:
        models = Models(tmp_path, False).add("loses", LOSES.format(kind=kind), DECOUPLED)
        async with models.hosted() as call:
            call.host.check(0)
            with pytest.raises(Internal, match="device-side assert triggered"):
                await call.responses("loses", 1)
            with pytest.raises(ModelFaultError, match="has lost its GPU"):
                call.host.check(0)

    asyncio.run(run())
