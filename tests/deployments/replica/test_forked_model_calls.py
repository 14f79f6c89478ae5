"""Processes that Python models fork, and the models that these call."""

import asyncio
import logging
import os

import pytest

from tests.deployments.replica.hosted_models import ADD_ONE, Models, on_a_loop
from tests.deployments.replica.hosted_models import models as models
from tests.deployments.replica.hosted_models import models_here as models_here
from tests.deployments.replica.hosted_models import unfrozen as unfrozen
from tests.serving import wait_until

FORKS = """
import multiprocessing, os

def called(number):
    if number == 3:
        read, write = os.pipe()
        if not os.fork():
            os.write(write, bytes([called(30)]))
            os._exit(0)
        return os.read(read, 1)[0]
    response = request_to("add_one", np.full(5_000 * number + 1, number, np.int32)).exec()
    return int(response.output_tensors()[0].as_numpy()[-1])

def asked(name):
    pb_utils.Logger.log_info("asked in a fork")
    return pb_utils.is_model_ready(name)

def refused(name):
    return request_to(name, np.array([1], np.int32)).exec().error().message()

class TritonPythonModel:
    def execute(self, requests):
        [number] = x_of(requests[0]).as_numpy().tolist()
        with multiprocessing.get_context("fork").Pool(3) as pool:
            numbers = pool.map(called, range(number))
            ready = pool.map(asked, ["add_one", "no_such"])
            text, = pool.map(refused, ["caller"])
        assert "waits for" in text, text
        calls = request_to("add_one", np.array(numbers, np.int32)).exec()
        return [answer(np.array([*calls.output_tensors()[0].as_numpy(), *ready], np.int32))]
"""
SPAWNS = """
import multiprocessing
import numpy as np
import triton_python_backend_utils as pb_utils

def doubled(number):
    return 2 * number

class TritonPythonModel:
    def execute(self, requests):
        [x] = requests[0].inputs()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            doubles = pool.map_async(doubled, x.as_numpy().tolist()).get(30)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(doubles, np.int32))])]
"""


@on_a_loop
async def test_processes_that_a_model_forks_call_too(models: Models, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    models.add("add_one", ADD_ONE).add("caller", FORKS)
    async with models.hosted() as call:
        assert await call("caller", 6) == [2, 3, 4, 32, 6, 7, 1, 0]
        opened_count = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            assert await call("caller", 6) == [2, 3, 4, 32, 6, 7, 1, 0]
        assert caplog.messages.count("asked in a fork") == 8

        def all_closed() -> bool:
            return len(os.listdir("/proc/self/fd")) <= opened_count

        await asyncio.to_thread(wait_until, all_closed, "what the forks have opened is closed")


@on_a_loop
async def test_the_death_of_a_process_that_a_model_has_forked_is_nothing_to_the_model(models: Models) -> None:
    models.add("add_one", ADD_ONE).add("slow", ADD_ONE.replace("return", "import time; time.sleep(0.2); return"))
    models.add(
        "caller",
        """
        import os, signal
        class TritonPythonModel:
            def execute(self, requests):
                read, write = os.pipe()
                child = os.fork()
                if not child:
                    request_to("add_one", np.array([1], np.int32)).exec()
                    calls = [request_to("slow", np.array([1], np.int32)).exec(decoupled=True) for _ in range(3)]
                    os.write(write, b".")
                    os.kill(os.getpid(), signal.SIGKILL)
                os.read(read, 1)
                os.waitpid(child, 0)
                return [outcome(request_to("add_one", x_of(r)).exec()) for r in requests]
        """,
    )
    async with models.hosted() as call:
        for number in range(3):
            assert await call("caller", number) == [number + 1]


@on_a_loop
async def test_processes_that_a_model_spawns_find_its_functions(models_here: Models) -> None:
    models_here.add("spawns")
    (models_here.root / "spawns" / "1" / "model.py").write_text(SPAWNS)
    async with models_here.hosted() as call:
        assert await call("spawns", 3, 4) == [6, 8]


@on_a_loop
async def test_what_a_model_forks_is_refused_at_once_where_nothing_said_that_it_forks(models_here: Models) -> None:
    models_here.add("add_one", ADD_ONE)
    models_here.add(
        "caller",
        """
        import os
        class TritonPythonModel:
            def execute(self, requests):
                read, write = os.pipe()
                child = getattr(os, "fo" + "rk")()
                if not child:
                    try:
                        request_to("add_one", np.array([1], np.int32)).exec()
                    except pb_utils.TritonModelException as error:
                        os.write(write, str(error).encode())
                    os._exit(0)
                os.waitpid(child, 0)
                return [pb_utils.InferenceResponse(error=pb_utils.TritonError(os.read(read, 1000).decode()))]
        """,
    )
    async with models_here.hosted() as call:
        assert "in a process that a model has forked" in (await call.error("caller", 1)).message
