"""The tensors that Python models send to other models."""

import pytest

from tests.deployments.replica.hosted_models import ADD_ONE, Models, on_a_loop
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
