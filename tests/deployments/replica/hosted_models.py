"""Small Python models, hosted in one process as a replica hosts them."""

import asyncio
import gc
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.core.counts import Rows, Totals
from deployments.lane.fleet import Fleet
from deployments.replica.handle_calls import HandleCall, HandleCalls
from deployments.replica.hosted_model import HostedModel, packages_by_name
from deployments.replica.model_host import ModelHost
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.errors import ServingError
from protocol.infer import InferRequest
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.plan import make_plan
from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions

CONFIG = """
backend: "python" max_batch_size: 0
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }
"""
DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }"
IDENTITY = """
backend: "identity" max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
"""
PRELUDE = """
import asyncio
import json
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

def x_of(request):
    return pb_utils.get_input_tensor_by_name(request, "X")

def answer(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)])

def request_to(name, tensor, **more):
    array = tensor.as_numpy() if hasattr(tensor, "as_numpy") else tensor
    return pb_utils.InferenceRequest(
        model_name=name, inputs=[pb_utils.Tensor("X", array)], requested_output_names=["Y"], **more
    )

def outcome(response):
    if response.has_error():
        return pb_utils.InferenceResponse(error=response.error())
    return answer(pb_utils.get_output_tensor_by_name(response, "Y").as_numpy())
"""
ADD_ONE = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(x_of(r).as_numpy() + 1) for r in requests]
"""
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        return [outcome(request_to(%r, x_of(r)).exec()) for r in requests]
"""
COUNTDOWN = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(x_of(request).as_numpy()[0]), 0, -1):
                sender.send(answer(np.array([number], np.int32)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


class Models:
    """A repository of small models, hosted in one process."""

    def __init__(self, root: Path, own_processes: bool) -> None:
        self.root = root
        self.others: tuple[Path, ...] = ()
        self.kind = ""
        self._own_processes = own_processes

    def add(self, name: str, code: str = "", config: str = CONFIG, more: str = "") -> "Models":
        (self.root / name / "1").mkdir(parents=True)
        (self.root / name / "config.pbtxt").write_text(config + more)
        if code:
            (self.root / name / "1" / "model.py").write_text(PRELUDE + textwrap.dedent(code))
        return self

    def planned(self, *names: str) -> list[dict[str, Any]]:
        """Return all models, or those that are named, as a host is told of them."""
        repositories = [str(root) for root in (self.root, *self.others)]
        snapshot = load_repositories(repositories, LoaderOptions(namespacing=len(repositories) > 1), None)
        plan = make_plan(snapshot, PlanSettings("packed"), ClusterFacts((NodeFacts(2),)))
        packages = packages_by_name(plan)
        planned = [
            HostedModel.of(model, packages).to_dict()
            for each in plan.deployments
            for model in each.models
            if not names or model.name in names
        ]
        for spec in [spec for each in planned for spec in each["specs"]]:
            spec["own_process"] = self._own_processes
            spec["kind"] = self.kind or spec["kind"]
        return planned

    @asynccontextmanager
    async def hosted(
        self,
        *names: str,
        fleet: Fleet | None = None,
        counters: Rows | None = None,
        thread_count: int = 4,
        fails: bool = False,
    ) -> AsyncIterator["Hosted"]:
        """Host all models, or those that are named; whether one of them `fails`."""
        planned = self.planned(*names)
        loop, regions = asyncio.get_running_loop(), Regions(OwnTable())
        host = ModelHost(
            loop,
            fleet,
            Limits(),
            counters or Totals(),
            regions,
            shared=False,
            changed=lambda *_: None,
            thread_count=thread_count,
        )
        await host.apply(planned)
        assert bool(host.failures) == fails
        try:
            yield Hosted(host, loop)
        finally:
            await host.close(5.0)


class Hosted:
    """The models, and calls of them as by a deployment handle."""

    def __init__(self, host: ModelHost, loop: asyncio.AbstractEventLoop) -> None:
        self.host = host
        self.controller: Any = None
        self.there: Any = None
        self._calls = HandleCalls(host, loop)

    def start(self, name: str, *values: int, **more: Any) -> "asyncio.Future[dict[str, np.ndarray[Any, Any]]]":
        return self.start_with(name, {"X": np.array(values, np.int32)}, **more)

    def start_with(
        self, name: str, inputs: dict[str, Any], **more: Any
    ) -> "asyncio.Future[dict[str, np.ndarray[Any, Any]]]":
        return self._calls.submit(HandleCall(inputs, model_name=name, **more))

    async def __call__(self, name: str, *values: int, **more: Any) -> list[int]:
        async with asyncio.timeout(60):
            outputs = await self.start(name, *values, **more)
        result: list[int] = outputs["Y"].tolist()
        return result

    async def responses(self, name: str, *values: int) -> list[list[int]]:
        """Return what a decoupled model answers, response by response."""
        ended: asyncio.Future[list[list[int]]] = asyncio.get_running_loop().create_future()
        got: list[list[int]] = []

        def reply(_: InferRequest, result: Any) -> None:
            if isinstance(result, ServingError):
                return ended.set_exception(result)
            if result.outputs:
                got.append(result.outputs["Y"].tolist())
            if result.final:
                ended.set_result(got)

        self.host.core.resolve(name).submit(InferRequest({"X": np.array(values, np.int32)}, 1, reply))
        async with asyncio.timeout(60):
            return await ended

    async def error(self, name: str, *values: int) -> ServingError:
        with pytest.raises(ServingError) as raised:
            await self(name, *values)
        return raised.value


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture(params=[False, True], ids=["here", "processes"])
def models(tmp_path: Path, request: pytest.FixtureRequest) -> Models:
    return Models(tmp_path, request.param)


@pytest.fixture
def models_here(tmp_path: Path) -> Models:
    return Models(tmp_path, False)
