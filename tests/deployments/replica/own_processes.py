"""Python models whose instances run in processes of their own, hosted as a replica hosts them."""

import asyncio
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.core.counts import Totals
from deployments.replica.hosted_model import HostedModel, packages_by_name
from deployments.replica.model_host import ModelHost
from deployments.replica.served_model import ServedModel
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.errors import ServingError
from protocol.infer import SEQUENCE_START, InferRequest
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.plan import make_plan
from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions
from tests.deployments.replica.hosted_models import CONFIG
from tests.deployments.replica.hosted_models import Hosted as AnyHosted

MODEL = """
import ctypes, multiprocessing, os, pickle, signal, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.args = args
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.asarray(
            self.answer(*pb_utils.get_input_tensor_by_name(r, "X").as_numpy().tolist()), np.int32).reshape(-1))])
            for r in requests]
"""


class Hosted(AnyHosted):
    """Models of one process, as a replica hosts them, and what the replica says of their readiness."""

    def __init__(self, host: ModelHost, loop: asyncio.AbstractEventLoop, changes: list[tuple[str, bool]]) -> None:
        super().__init__(host, loop)
        self.changes = changes

    async def in_sequence(self, name: str, value: int, *, id: int, start: bool = False) -> None:
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        array = np.array([value], np.int32)
        flags = SEQUENCE_START if start else 0
        self.host.core.resolve(name).submit(
            InferRequest({"X": array}, 1, lambda _, result: outcome.set_result(result), sequence_id=id, flags=flags)
        )
        async with asyncio.timeout(60):
            result = await outcome
        if isinstance(result, ServingError):
            raise result

    async def change(self, name: str, ready: bool) -> None:
        """Wait until the replica says that a model is ready, or not."""
        async with asyncio.timeout(60):
            while not self.changes or self.changes[-1] != (name, ready):
                await asyncio.sleep(0.01)


class Models:
    """A repository of models whose instances run in processes of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, name: str, answer: str, more: str = "", files: dict[str, str] | None = None) -> "Models":
        """Add a model: the body of its `answer(self, x, ...)`."""
        (self.root / name / "1").mkdir(parents=True)
        (self.root / name / "config.pbtxt").write_text(CONFIG + more)
        body = textwrap.indent(textwrap.dedent(answer), "    ")
        (self.root / name / "1" / "model.py").write_text(MODEL + body)
        for path, text in (files or {}).items():
            (self.root / name / path).write_text(textwrap.dedent(text))
        return self

    @asynccontextmanager
    async def hosted(self, placement: Any = "packed") -> AsyncIterator[Hosted]:
        snapshot = load_repositories([str(self.root)], LoaderOptions(), None)
        plan = make_plan(snapshot, PlanSettings(placement), ClusterFacts((NodeFacts(2),)))
        packages = packages_by_name(plan)
        planned = [HostedModel.of(model, packages).to_dict() for each in plan.deployments for model in each.models]
        loop, regions = asyncio.get_running_loop(), Regions(OwnTable())
        changes: list[tuple[str, bool]] = []

        def changed(name: str, version: int, served: ServedModel | None) -> None:
            changes.append((name, served is not None))

        host = ModelHost(loop, None, Limits(), Totals(), regions, shared=False, changed=changed)
        await host.apply(planned)
        assert not host.failures
        try:
            yield Hosted(host, loop, changes)
        finally:
            await host.close(5.0)


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path)
