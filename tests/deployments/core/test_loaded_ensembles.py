"""Ensembles over models of the same core."""

import asyncio
import threading
from functools import partial

import numpy as np
import pytest

from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from protocol.errors import InvalidArgument
from protocol.infer import InferRequest
from protocol.signature import Signature
from repository_loader.package import ModelPackage
from tests.deployments.core.doubler import SPECS, DoublerBackend, doubler_backend, package_of
from tests.deployments.fakes import config_of


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    with doubler_backend(monkeypatch):
        yield


async def ensemble_core(scheduling, outputs="", inner=""):
    """Return a core with model m, and ensemble e over it."""
    clock = LoopClock(asyncio.get_running_loop())
    core = Core(clock)
    package = package_of(inner)
    core.add(await loader.load(package, SPECS, clock, core))
    text = f'name: "e" platform: "ensemble" max_batch_size: 4 {outputs} ensemble_scheduling {{ {scheduling} }}'
    ensemble = ModelPackage("e", 1, config_of(text), "", "", "")
    core.add(await loader.load(ensemble, [], clock, core, {"m": Signature.from_config(package.config)}))
    return core


def step_of_m(taken, given):
    maps = f'input_map {{ key: "X" value: "{taken}" }} output_map {{ key: "Y" value: "{given}" }}'
    return f'step {{ model_name: "m" model_version: -1 {maps} }}'


def test_tensors_between_steps_of_a_core_are_the_same_memory():
    async def run():
        core = await ensemble_core(step_of_m("X", "t") + step_of_m("t", "Y"))
        done = asyncio.get_running_loop().create_future()
        sent = np.ones((1, 2), np.float32)
        core.infer("e", -1, InferRequest({"X": sent}, 1, lambda request, result: done.set_result(result)))
        answer = (await done).outputs["Y"]
        taken = [request["X"] for instance in DoublerBackend.made for (request,) in instance.batches]
        first, second = sorted(taken, key=lambda array: float(array[0, 0]))
        made = {float(array[0, 0]): array for instance in DoublerBackend.made for array in instance.given}
        assert np.shares_memory(first, sent)
        assert np.shares_memory(second, made[2.0]) and np.shares_memory(answer, made[4.0])

    asyncio.run(run())


def test_independent_steps_run_at_the_same_time():
    async def run():
        both = 'output { name: "Y" data_type: TYPE_FP32 dims: 2 } output { name: "Z" data_type: TYPE_FP32 dims: 2 }'
        core = await ensemble_core(step_of_m("X", "Y") + step_of_m("X", "Z"), both)
        barrier = threading.Barrier(2)
        for instance in DoublerBackend.made:
            instance.may_run_inline = False
            instance.meet = partial(barrier.wait, 10)  # fails unless both are there
        done = asyncio.get_running_loop().create_future()
        sent = np.ones((1, 2), np.float32)
        core.infer("e", -1, InferRequest({"X": sent}, 1, lambda request, result: done.set_result(result)))
        answer = await done
        assert list(answer.outputs) == ["Y", "Z"]
        taken = [request["X"] for instance in DoublerBackend.made for (request,) in instance.batches]
        assert all(np.shares_memory(array, sent) and not array.flags.writeable for array in taken) and len(taken) == 2
        await core.remove("m", 1).close()

    asyncio.run(run())


def test_a_step_that_is_given_up_is_given_up_by_its_own_scheduler():
    async def run():
        core = await ensemble_core(
            step_of_m("X", "Y"), inner="sequence_batching { max_sequence_idle_microseconds: 1000000 }"
        )
        given_up = []
        core.resolve("m").cancel = given_up.append
        done = asyncio.get_running_loop().create_future()
        sent = np.ones((1, 2), np.float32)
        request = InferRequest({"X": sent}, 1, lambda request, result: done.set_result(result), sequence_id=5, flags=1)
        core.infer("e", -1, request)
        core.cancel(request)
        assert [(child.sequence_id, child is request) for child in given_up] == [(5, False)]
        await done

    asyncio.run(run())


def test_ensemble_runs_over_models_of_the_same_core():
    async def run():
        clock = LoopClock(asyncio.get_running_loop())
        core = Core(clock)
        inner = package_of("dynamic_batching { }")
        core.add(await loader.load(inner, SPECS, clock, core))
        text = (
            'name: "e" platform: "ensemble" ensemble_scheduling { '
            'step { model_name: "m" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "t" } } '
            'step { model_name: "m" model_version: -1 input_map { key: "X" value: "t" } output_map { key: "Y" value: "Y" } } }'
        )
        ensemble = ModelPackage("e", 1, config_of("max_batch_size: 4 " + text), "", "", "")
        core.add(await loader.load(ensemble, [], clock, core, {"m": Signature.from_config(inner.config)}))
        done = asyncio.get_running_loop().create_future()
        x = np.ones((2, 2), np.float32)
        core.infer("e", -1, InferRequest({"X": x}, 2, lambda request, result: done.set_result(result)))
        np.testing.assert_array_equal((await done).outputs["Y"], 4 * x)

        failed = asyncio.get_running_loop().create_future()
        for instance in DoublerBackend.made:
            instance.error = InvalidArgument("not today")
        core.infer("e", -1, InferRequest({"X": x}, 2, lambda request, result: failed.set_result(result)))
        error = await failed
        assert (type(error), str(error)) == (InvalidArgument, "in ensemble 'e', step 'm': not today")
        for name in ("e", "m"):
            await core.remove(name, 1).close()

    asyncio.run(run())
