"""Calls by deployment handle on a Python model from a file, batched as Serve batches them."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.core.counts import Totals
from deployments.replica.handle_calls import Answer, HandleCall, HandleCalls
from deployments.replica.hosted_model import HostedModel, packages_by_name
from deployments.replica.model_host import ModelHost
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.array_request import plain_parameters, request_from_arrays
from protocol.errors import InvalidArgument, NotFound, Unsupported
from protocol.limits import Limits
from protocol.signature import Signature
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.plan import make_plan
from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions
from tests.deployments.replica.hosted_models import COUNTDOWN, DECOUPLED, IDENTITY, Models, on_a_loop
from tests.deployments.replica.hosted_models import models_here as models_here

CONFIG = """
backend: "python"
input { name: "SECONDS" data_type: TYPE_FP32 dims: 2 }
output { name: "SLEPT" data_type: TYPE_FP32 dims: 2 }
instance_group { kind: KIND_CPU count: 2 }
"""
MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
            time.sleep(max(0.002, float(seconds[0])))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SLEPT", seconds)]))
        return answers
"""


Runner = Callable[[Callable[[HandleCalls], Awaitable[None]]], None]


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    """Run a test on the calls of a host with the model `sleepy`, which has two instances."""
    (tmp_path / "sleepy" / "1").mkdir(parents=True)
    (tmp_path / "sleepy" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "sleepy" / "1" / "model.py").write_text(MODEL)
    plan = make_plan(
        load_repositories([str(tmp_path)], LoaderOptions(), None), PlanSettings("packed"), ClusterFacts((NodeFacts(2),))
    )
    (model,) = plan.deployments[0].models
    hosted = HostedModel.of(model, packages_by_name(plan)).to_dict()

    async def hosting(test: Callable[[HandleCalls], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        regions = Regions(OwnTable())
        host = ModelHost(loop, None, Limits(), Totals(), regions, shared=False, changed=lambda *_: None)
        await host.apply([hosted])
        assert not host.failures
        async with asyncio.timeout(20):
            await test(HandleCalls(host, loop))
        await host.close()

    return lambda test: asyncio.run(hosting(test))


def sleep(seconds: float) -> HandleCall:
    return HandleCall({"SECONDS": np.array([seconds, 0], np.float32)})


async def outcome(answer: Answer) -> object:
    try:
        return (await answer)["SLEPT"].tolist()
    except Exception as error:
        return error


def test_a_call_that_is_wrong_fails_alone(run: Runner) -> None:
    async def test(calls: HandleCalls) -> None:
        ragged = HandleCall({"SECONDS": [[1.0], [1.0, 2.0]]})  # type: ignore[dict-item]
        nothing = HandleCall(None)  # type: ignore[arg-type]
        unknown = HandleCall(sleep(0).inputs, model_name="nobody")
        sent = [calls.submit(call) for call in (sleep(0), ragged, nothing, unknown, sleep(0))]
        first, second, third, fourth, fifth = [await outcome(answer) for answer in sent]
        assert first == fifth == [0, 0]
        assert isinstance(second, InvalidArgument)
        assert str(second) == "input 'SECONDS' is no array: its rows are not of one length"
        assert isinstance(third, InvalidArgument)
        assert str(third) == "inputs must be a dict of arrays by name, got NoneType"
        assert isinstance(fourth, NotFound)

    run(test)


@pytest.mark.parametrize("name", ["", "nobody"], ids=["answered", "refused"])
def test_the_inputs_of_a_call_are_free_as_soon_as_it_is_over(run: Runner, name: str) -> None:
    async def test(calls: HandleCalls) -> None:
        array = np.array([0, 0], np.float32)
        taken = weakref.ref(array)
        gc.collect()
        gc.disable()
        try:
            answer = calls.submit(HandleCall({"SECONDS": array}, model_name=name))
            del array
            await asyncio.wait([answer])
            assert isinstance(answer.exception(), NotFound if name else type(None))
            del answer
            await asyncio.sleep(0.01)
            assert taken() is None
        finally:
            gc.enable()

    run(test)


def test_a_version_may_be_text_as_in_tritons_clients(run: Runner) -> None:
    async def test(calls: HandleCalls) -> None:
        for version in (1, "1", "", -1):
            assert await outcome(calls.submit(HandleCall(sleep(0).inputs, model_version=version))) == [0, 0]
        assert isinstance(await outcome(calls.submit(HandleCall(sleep(0).inputs, model_version="2"))), NotFound)
        error = await outcome(calls.submit(HandleCall(sleep(0).inputs, model_version="one")))
        assert isinstance(error, InvalidArgument) and "specified version string 'one'" in str(error)

    run(test)


@on_a_loop
async def test_a_call_names_its_model_where_a_replica_serves_several(models_here: Models) -> None:
    inputs = {"INPUT0": np.array([1], np.int32)}
    async with models_here.add("one", config=IDENTITY).add("two", config=IDENTITY).hosted() as call:
        with pytest.raises(InvalidArgument, match="model_name must be given: this replica serves several models"):
            await call.start_with("", inputs)
        assert (await call.start_with("two", inputs))["OUTPUT0"].tolist() == [1]


@on_a_loop
async def test_a_decoupled_model_is_refused(models_here: Models) -> None:
    async with models_here.add("countdown", COUNTDOWN, DECOUPLED).hosted() as call:
        with pytest.raises(Unsupported, match="Deployment handles don't support models with decoupled"):
            await call("countdown", 3)
        assert await call.responses("countdown", 3) == [[3], [2], [1]]
        assert call.host.core.resolve("countdown").statistics.counts.success_count == 1


class Odd(StrEnum):
    ID = "odd"


def test_parameters_of_any_kind_are_plain_or_refused(run: Runner) -> None:
    async def test(calls: HandleCalls) -> None:
        inputs = sleep(0).inputs
        for wrong, name in (({"a": datetime(2020, 1, 1)}, "a"), ({"b": [1]}, "b"), ({"c": None}, "c")):
            error = await outcome(calls.submit(HandleCall(inputs, parameters=wrong)))  # type: ignore[arg-type]
            assert isinstance(error, InvalidArgument) and f"parameter '{name}' has invalid type" in str(error)
        error = await outcome(calls.submit(HandleCall(inputs, request_id=7)))  # type: ignore[arg-type]
        assert isinstance(error, InvalidArgument) and "request id must be text" in str(error)
        plain = {"a": np.float32(1), "b": np.int64(7), "c": np.str_("x"), "d": np.True_, "e": Odd.ID, "f": True}
        call = HandleCall(inputs, parameters=plain, request_id=Odd.ID)  # type: ignore[arg-type]
        assert await outcome(calls.submit(call)) == [0, 0]
        found = plain_parameters(plain)
        assert found == {"a": 1.0, "b": 7, "c": "x", "d": True, "e": "odd", "f": True}
        assert [type(value) for value in found.values()] == [float, int, str, bool, str, bool]

    run(test)


def test_a_quick_call_does_not_wait_for_a_slow_one(run: Runner) -> None:
    async def test(calls: HandleCalls) -> None:
        slow, quick = calls.submit(sleep(1.0)), calls.submit(sleep(0))
        assert await outcome(quick) == [0, 0]
        assert not slow.done()
        assert await outcome(slow) == [1, 0]

    run(test)


def test_a_call_that_is_cancelled_leaves_the_queue(run: Runner) -> None:
    async def test(calls: HandleCalls) -> None:
        running = [calls.submit(sleep(0.3)) for _ in range(2)]
        for _ in range(2):  # as many as there are instances
            calls.submit(sleep(20)).cancel()
        last = calls.submit(sleep(0))
        await asyncio.sleep(0)
        assert calls.open_count == 3
        async with asyncio.timeout(10):
            assert await outcome(last) == [0, 0]
        assert [await outcome(answer) for answer in running] == [[np.float32(0.3), 0]] * 2
        await asyncio.sleep(0)
        assert not calls.open_count

    run(test)


def test_strings_may_be_objects_of_any_kind():
    model = Signature.from_config(
        text_format.Parse('name: "m" input { name: "X" data_type: TYPE_STRING dims: -1 }', ModelConfig())
    )
    given = np.array([b"b", "s", np.str_("n"), 3, None], object)
    request = request_from_arrays(model, {"X": given}, lambda *_: None)
    assert request.inputs["X"].tolist() == [b"b", b"s", b"n", b"3", b"None"]
    with pytest.raises(InvalidArgument, match="'X'"):
        request_from_arrays(model, {"X": np.array(["\ud800"], object)}, lambda *_: None)


def test_bytes_of_any_kind_are_bytes():
    model = Signature.from_config(
        text_format.Parse('name: "m" input { name: "X" data_type: TYPE_STRING dims: -1 }', ModelConfig())
    )
    given = np.empty(3, object)
    given[:] = [bytearray(b"\xff"), memoryview(b"m"), np.bytes_(b"n")]
    request = request_from_arrays(model, {"X": given}, lambda *_: None)
    assert request.inputs["X"].tolist() == [b"\xff", b"m", b"n"]


def test_numbers_reach_models_in_the_machines_byte_order():
    model = Signature.from_config(
        text_format.Parse('name: "m" input { name: "X" data_type: TYPE_FP32 dims: 2 }', ModelConfig())
    )
    request = request_from_arrays(model, {"X": np.array([1, 2], ">f4")}, lambda *_: None)
    assert request.inputs["X"].dtype == np.dtype("=f4") and request.inputs["X"].tolist() == [1, 2]


def test_no_outputs_are_all():
    model = Signature.from_config(
        text_format.Parse('name: "m" input { name: "X" data_type: TYPE_FP32 dims: 2 }', ModelConfig())
    )
    assert request_from_arrays(model, {"X": np.ones(2, np.float32)}, lambda *_: None, outputs=[]).outputs is None
