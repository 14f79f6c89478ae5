"""Python models that call models of other processes."""

import asyncio

import pytest

from deployments.replica import model_calls
from protocol.errors import ServingError
from tests.deployments.lane.harness import Lanes
from tests.deployments.replica.hosted_models import (
    ADD_ONE,
    CALLER,
    CONFIG,
    COUNTDOWN,
    DECOUPLED,
    Models,
    on_a_loop,
)
from tests.deployments.replica.hosted_models import models as models
from tests.deployments.replica.hosted_models import models_here as models_here
from tests.deployments.replica.hosted_models import unfrozen as unfrozen
from tests.deployments.replica.two_processes import two_processes

SLEEPS = "".join(
    f'parameters {{ key: "eagleray.autoscaling.{key}" value {{ string_value: "{value}" }} }}'
    for key, value in {"min_replicas": 0, "max_replicas": 1}.items()
)

IS_READY = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(np.array([pb_utils.is_model_ready(%r)], np.int32)) for r in requests]
"""


@on_a_loop
async def test_a_model_calls_models_of_other_processes(models: Models) -> None:
    models.add("add_one", ADD_ONE).add("caller", CALLER % "add_one").add("to_nobody", CALLER % "nobody")
    async with two_processes(models, "add_one") as call:
        assert await call("caller", 1, 2) == [2, 3]
        assert await asyncio.gather(*(call("caller", number) for number in range(20))) == [[n + 1] for n in range(20)]
        assert (await call.error("to_nobody", 1)).message.endswith("Model 'nobody' is not ready.")


@on_a_loop
async def test_a_call_wakes_a_model_without_a_replica_and_waits_for_it(models_here: Models) -> None:
    models_here.add("add_one", ADD_ONE, more=SLEEPS).add("caller", CALLER % "add_one")
    async with two_processes(models_here, "add_one", asleep=True) as call:
        assert call.controller is not None and not call.controller.report_load.loads
        assert await call("caller", 1, 2) == [2, 3]
        assert call.controller.report_load.loads.keys() == {"add_one/1"}


@on_a_loop
async def test_a_call_that_waits_for_the_first_replica_is_refused_when_the_model_is_unloaded(
    models_here: Models,
) -> None:
    models_here.add("add_one", ADD_ONE, more=SLEEPS).add("caller", CALLER % "add_one")
    async with two_processes(models_here, "add_one", asleep=True) as call:
        call.controller.report_load.came = asyncio.Event()  # nobody wakes the model
        waiting = call.start("caller", 1)
        fleet = call.host.calls.neighbours._fleet
        await Lanes.until(lambda: fleet.ongoing("add_one", 1) == 1)
        call.controller.unload("add_one")
        with pytest.raises(ServingError, match="not at ready state"):
            await asyncio.wait_for(waiting, 10)


@on_a_loop
async def test_so_does_a_step_of_an_ensemble(models_here: Models) -> None:
    config = CONFIG.replace('backend: "python"', 'platform: "ensemble"')
    step = """ensemble_scheduling { step { model_name: "add_one" model_version: -1
        input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }"""
    models_here.add("add_one", ADD_ONE, more=SLEEPS).add("pipe", "", config, step)
    async with two_processes(models_here, "add_one", asleep=True) as call:
        neighbours = call.host.calls.neighbours
        neighbours.have_scaled(["add_one"])
        await Lanes.until(lambda: neighbours._fleet.target("add_one") is not None)
        assert await call("pipe", 1, 2) == [2, 3]
        assert call.controller is not None and call.controller.report_load.loads.keys() == {"add_one/1"}


@on_a_loop
async def test_a_call_of_a_model_whose_last_replica_died_waits_for_the_next(
    models_here: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_calls, "_READY_S", 0.2)
    models_here.add("add_one", ADD_ONE).add("caller", CALLER % "add_one").add("asker", IS_READY % "add_one")
    async with two_processes(models_here, "add_one") as call:
        assert await call("caller", 1) == [2]
        assert await call("asker", 0) == [1]
        call.there.die()
        fleet = call.host.calls.neighbours._fleet
        await Lanes.until(lambda: fleet.target("add_one") is None)
        waiting = call.start("caller", 2)
        assert await call("asker", 0) == [0]
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await call.there.come_back()
        outputs = await asyncio.wait_for(waiting, 10)
        assert outputs["Y"].tolist() == [3]
        assert await call("asker", 0) == [1]


@on_a_loop
async def test_so_does_the_first_call_of_such_a_model(models_here: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lane ever led to it from here."""
    monkeypatch.setattr(model_calls, "_READY_S", 0.2)
    models_here.add("add_one", ADD_ONE).add("caller", CALLER % "add_one").add("asker", IS_READY % "add_one")
    async with two_processes(models_here, "add_one") as call:
        call.there.die()
        waiting = call.start("caller", 2)
        assert await call("asker", 0) == [0]
        assert not waiting.done()
        await call.there.come_back()
        outputs = await asyncio.wait_for(waiting, 10)
        assert outputs["Y"].tolist() == [3]
        assert await call("asker", 0) == [1]


@on_a_loop
async def test_a_model_that_was_unloaded_is_neither_ready_nor_asked_though_it_is_here_for_a_moment(
    models_here: Models,
) -> None:
    models_here.add("add_one", ADD_ONE).add("away", ADD_ONE).add("caller", CALLER % "away")
    models_here.add("asker", IS_READY % "add_one").add("caller_here", CALLER % "add_one")
    async with two_processes(models_here, "away") as call:
        await call("caller", 1)  # from here on the directory is followed
        assert await call("asker", 0) == [1]
        assert call.controller is not None
        call.controller.unload("add_one")
        await Lanes.until(lambda: call.host.calls.neighbours.left("add_one", -1))
        assert call.host.core.has("add_one")
        assert await call("asker", 0) == [0]
        with pytest.raises(ServingError, match="Model 'add_one' is not ready"):
            await call("caller_here", 1)


@on_a_loop
async def test_and_streams_from_them(models: Models) -> None:
    models.add("countdown", COUNTDOWN, DECOUPLED)
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                got = request_to("countdown", x_of(requests[0])).exec(decoupled=True)
                return [answer(np.array([int(t.as_numpy()[0]) for r in got for t in r.output_tensors()], np.int32))]
        """,
    )
    async with two_processes(models, "countdown") as call:
        assert await call("caller", 3) == [3, 2, 1]


IN_TWO_PARTS = """
import time
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            arguments = request.get_response_sender(), int(x_of(request).as_numpy()[0]) / 1000
            threading.Thread(target=self.send, args=arguments).start()

    def send(self, sender, seconds):
        sender.send(answer(np.array([1], np.int32)))
        time.sleep(seconds)
        sender.send(answer(np.array([2], np.int32)), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

IMPATIENT = """
class TritonPythonModel:
    def execute(self, requests):
        self.stream = request_to("in_two_parts", x_of(requests[0])).exec(decoupled=True)

        async def all_of_it():
            return [response async for response in self.stream]

        try:
            asyncio.run(asyncio.wait_for(all_of_it(), 0.2))
        except TimeoutError:
            return [answer(np.array([0], np.int32))]
"""

PATIENT = """
class TritonPythonModel:
    def execute(self, requests):
        got = request_to("in_two_parts", x_of(requests[0])).exec(decoupled=True)
        return [answer(np.array([int(t.as_numpy()[0]) for r in got for t in r.output_tensors()], np.int32))]
"""


@on_a_loop
async def test_a_call_of_which_nobody_awaits_the_rest_ends_no_other(models_here: Models) -> None:
    models_here.add("in_two_parts", IN_TWO_PARTS, DECOUPLED).add("impatient", IMPATIENT).add("patient", PATIENT)
    async with two_processes(models_here, "in_two_parts") as call:
        assert await call("patient", 1) == [1, 2]
        other = call.start("patient", 1500)
        assert await call("impatient", 700) == [0]
        assert (await asyncio.wait_for(other, 10))["Y"].tolist() == [1, 2]
