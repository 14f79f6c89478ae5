"""Python models that cancel the responses of a decoupled call, of a model in their process or in another one."""

import asyncio

import pytest

from tests.deployments.lane.harness import Lanes
from tests.deployments.replica.hosted_models import CONFIG, DECOUPLED, Models, on_a_loop
from tests.deployments.replica.hosted_models import models as models
from tests.deployments.replica.hosted_models import unfrozen as unfrozen
from tests.deployments.replica.two_processes import two_processes

WINDS_DOWN = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            number = int(x_of(request).as_numpy()[0])
            sender.send(answer(np.array([number], np.int32)))
            while not request.is_cancelled():
                threading.Event().wait(0.01)
            sender.send(answer(np.array([-number], np.int32)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CANCELS = """
class TritonPythonModel:
    async def execute(self, requests):
        got = %s
        heard = [next(got)]
        got.cancel()
        heard += got
        got.cancel()
        assert not any(response.has_error() for response in heard)
        return [answer(np.concatenate([t.as_numpy() for r in heard for t in r.output_tensors()])) for _ in requests]
"""
BLOCKING = 'request_to("winds_down", x_of(requests[0])).exec(decoupled=True)'
AWAITED = 'await request_to("winds_down", x_of(requests[0])).async_exec(decoupled=True)'
CANCELS_WHAT_WAITS = f"""
class TritonPythonModel:
    async def execute(self, requests):
        first = {BLOCKING}
        next(first)
        second = {BLOCKING}
        second.cancel()
        codes = [response.error().code() for response in second]
        assert codes == [pb_utils.TritonError.CANCELLED]
        first.cancel()
        return [answer(np.array([len(list(first))], np.int32)) for _ in requests]
"""
IS_LEFT = f"""
class TritonPythonModel:
    async def execute(self, requests):
        got = {BLOCKING}
        next(got)
        got.cancel()
        return [answer(np.array([got.__next__().error().code()], np.int32)) for _ in requests]
"""
ENDS_LATE = WINDS_DOWN.replace(
    "not request.is_cancelled()", 'not __import__("pathlib").Path(__file__ + ".end").exists()'
)
UNAVAILABLE = 4


@pytest.mark.parametrize("way", [BLOCKING, AWAITED], ids=["exec", "async_exec"])
@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
@on_a_loop
async def test_a_cancelled_stream_gives_what_its_model_still_sends(models: Models, far: bool, way: str) -> None:
    models.add("winds_down", WINDS_DOWN, DECOUPLED).add("caller", CANCELS % way)
    async with two_processes(models, "winds_down") if far else models.hosted() as call:
        assert await call("caller", 5) == [5, -5]


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
@on_a_loop
async def test_one_whose_request_still_waits_ends_as_cancelled(models: Models, far: bool) -> None:
    models.add("winds_down", WINDS_DOWN, DECOUPLED).add("caller", CANCELS_WHAT_WAITS, CONFIG)
    async with two_processes(models, "winds_down") if far else models.hosted() as call:
        assert await call("caller", 5) == [2]


@on_a_loop
async def test_one_whose_replica_dies_fails_and_runs_in_no_other(models: Models) -> None:
    models.add("winds_down", ENDS_LATE, DECOUPLED).add("caller", IS_LEFT)
    async with two_processes(models, "winds_down") as call:
        waiting = call.start("caller", 5)
        fleet = call.host.calls.neighbours._fleet
        await Lanes.until(lambda: fleet is not None and fleet.ongoing("winds_down", 1) == 1)
        await asyncio.sleep(0.3)
        call.there.die()
        outputs = await asyncio.wait_for(waiting, 10)
        assert outputs["Y"].tolist() == [UNAVAILABLE]
        (models.root / "winds_down" / "1" / "model.py.end").touch()
