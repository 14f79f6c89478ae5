"""The tensors that Python models send to other models."""

import pytest

from tests.deployments.replica.hosted_models import ADD_ONE, COUNTDOWN, DECOUPLED, Models, on_a_loop
from tests.deployments.replica.hosted_models import models as models
from tests.deployments.replica.hosted_models import unfrozen as unfrozen

INPUTS = {
    "list reused": "tensors.clear() or tensors.append(tensor) or tensors",
    "generator": "(each for each in [tensor])",
}


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
@on_a_loop
async def test_a_call_has_the_tensors_that_it_was_made_of(models: Models, inputs: str) -> None:
    models.add("add_one", ADD_ONE)
    models.add(
        "caller",
        f"""
        class TritonPythonModel:
            def execute(self, requests):
                calls, tensors = [], []
                for number in range(3):
                    tensor = pb_utils.Tensor("X", np.array([number], np.int32))
                    calls.append(pb_utils.InferenceRequest(
                        model_name="add_one", inputs={inputs}, requested_output_names=["Y"]
                    ))
                answers = [pb_utils.get_output_tensor_by_name(call.exec(), "Y").as_numpy() for call in calls]
                return [answer(np.concatenate(answers)) for _ in requests]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 0) == [1, 2, 3]


SLOW = """
class TritonPythonModel:
    def execute(self, requests):
        threading.Event().wait(0.05)
        return [answer(x_of(r).as_numpy() + 1) for r in requests]
"""
ASYNC = """
class TritonPythonModel:
    async def execute(self, requests):
        buffer, calls = np.zeros(1, np.int32), []
        for number in range(3):
            buffer[:] = number
            calls.append(request_to("slow", buffer).async_exec())
        answers = [pb_utils.get_output_tensor_by_name(each, "Y").as_numpy() for each in await asyncio.gather(*calls)]
        return [answer(np.concatenate(answers)) for _ in requests]
"""
STREAMS = """
class TritonPythonModel:
    def execute(self, requests):
        buffer, calls = np.zeros(1, np.int32), []
        for number in range(1, 4):
            buffer[:] = number
            calls.append(request_to("countdown", buffer).exec(decoupled=True))
        counts = [len([each for each in call if each.output_tensors()]) for call in calls]
        return [answer(np.array(counts, np.int32)) for _ in requests]
"""


@pytest.mark.parametrize("code", [ASYNC, STREAMS], ids=["async", "decoupled"])
@on_a_loop
async def test_a_model_that_goes_on_may_write_to_what_it_has_sent(models: Models, code: str) -> None:
    models.add("slow", SLOW).add("countdown", COUNTDOWN, DECOUPLED).add("caller", code)
    async with models.hosted() as call:
        assert await call("caller", 0) == [1, 2, 3]
