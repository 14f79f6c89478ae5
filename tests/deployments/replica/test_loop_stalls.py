"""How often inputs that are slow now and then stop the loop of a process that has other work, such as an ingress."""

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deployments.core.counts import Totals
from deployments.replica.hosted_model import HostedModel, Packages
from deployments.replica.model_host import ModelHost
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.array_request import request_from_arrays
from protocol.limits import Limits
from repository_loader.deployment_plan import ModelPlan
from tests.deployments.backends.python_models import instances, write_model

SLOW_S = 0.03
ATTEMPTS = 5
CONFIG = """
    name: "moody" backend: "python" max_batch_size: 8
    input { name: "SECONDS" data_type: TYPE_FP32 dims: [1] }
    output { name: "THREAD" data_type: TYPE_INT64 dims: [1] }
    parameters { key: "eagleray.inline" value { string_value: "true" } }
"""
MODEL = """
import threading
import time


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(float(pb_utils.get_input_tensor_by_name(requests[0], "SECONDS").as_numpy()[0, 0]))
        thread = np.array([[threading.get_ident()]])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("THREAD", thread)]) for _ in requests]
"""


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


async def infer(host: ModelHost, seconds: float) -> int:
    """Run one request and return the thread that it ran on."""
    answer = asyncio.get_running_loop().create_future()
    served = host.served["moody", 1]
    arrays = {"SECONDS": np.array([[seconds]], np.float32)}
    request = request_from_arrays(served.model.signature, arrays, lambda _, result: answer.set_result(result))
    served.submit_request(request)
    return int((await answer).outputs["THREAD"][0, 0])


async def longest_pause_s(stop: asyncio.Event) -> float:
    longest = 0.0
    while not stop.is_set():
        before = time.monotonic()
        await asyncio.sleep(0)
        longest = max(longest, time.monotonic() - before)
    return longest


def test_one_slow_input_in_twenty_stops_the_loop_once_and_for_one_run(tmp_path: Path) -> None:
    async def run() -> tuple[int, int, float]:
        host = ModelHost(
            asyncio.get_running_loop(),
            None,
            Limits(),
            Totals(),
            Regions(OwnTable()),
            shared=True,
            changed=lambda name, version, served: None,
        )
        package = write_model(tmp_path, MODEL, CONFIG)
        plan = ModelPlan("moody", 1, package, "embedded", tuple(instances(package)), 0)
        await host.apply([HostedModel.of(plan, Packages({"moody": package})).to_dict()])
        stop = asyncio.Event()
        pauses = asyncio.create_task(longest_pause_s(stop))
        stalls = quick_inline = 0
        for index in range(600):
            slow = index % 20 == 19
            on_loop = await infer(host, SLOW_S if slow else 0) == threading.get_ident()
            stalls += slow and on_loop
            quick_inline += on_loop and not slow
        stop.set()
        longest_s = await pauses
        await host.close()
        return stalls, quick_inline, longest_s

    # Where the machine is so busy that a quick run takes long too, the model loses and regains its trust: once more.
    for _ in range(ATTEMPTS):
        stalls, quick_inline, longest_s = asyncio.run(run())
        if stalls == 1:
            break
    assert stalls == 1
    assert quick_inline > 0, "the model was trusted at first"
    assert longest_s >= SLOW_S, "the pause is that one run"
