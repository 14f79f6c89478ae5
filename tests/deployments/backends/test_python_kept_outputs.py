"""What Python models may do with the arrays, tensors, lists and responses that they have answered with."""

import pytest
from python_models import floats, request_of, run


@pytest.mark.parametrize("size", [4, 100_000], ids=["small", "large"])
@pytest.mark.parametrize(
    "expression", ["self.kept", "self.kept[0:1]", "self.kept.reshape(1, -1)"], ids=["array", "slice", "reshaped"]
)
def test_a_model_may_reuse_its_output_buffer(load, size, expression):
    instance = load(f"""
        class TritonPythonModel:
            def initialize(self, args):
                self.kept = np.zeros((1, {size}), np.float32)
            def execute(self, requests):
                self.kept += 1
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", {expression})]) for r in requests]
    """)
    first = run(instance, request_of(X=floats(0)), request_of(X=floats(0)))
    second = run(instance, request_of(X=floats(0)))
    assert [float(response.outputs["Y"].max()) for response in first + second] == [1, 1, 2]


@pytest.mark.parametrize("size", [4, 100_000], ids=["small", "large"])
def test_a_model_may_keep_its_output_tensor_and_write_to_it(load, size):
    instance = load(f"""
        class TritonPythonModel:
            def initialize(self, args):
                self.kept = pb_utils.Tensor("Y", np.zeros((1, {size}), np.float32))
            def execute(self, requests):
                self.kept.as_numpy()[:] += 1
                return [pb_utils.InferenceResponse([self.kept])]
    """)
    responses = [run(instance, request_of(X=floats(0)))[0] for _ in range(2)]
    assert [float(response.outputs["Y"].max()) for response in responses] == [1, 2]


def test_large_rows_of_one_fresh_array_are_not_copied(load):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                rows = np.ones((len(requests), 100_000), np.float32)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", rows[i : i + 1])])
                        for i in range(len(requests))]
    """)
    first, second = run(instance, request_of(X=floats(0)), request_of(X=floats(0)))
    assert first.outputs["Y"].base is second.outputs["Y"].base is not None


@pytest.mark.parametrize("size", [4, 100_000], ids=["small", "large"])
def test_a_model_may_keep_its_response_and_write_to_its_tensor(load, size):
    instance = load(f"""
        class TritonPythonModel:
            def initialize(self, args):
                self.kept = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros((1, {size}), np.float32))])
            def execute(self, requests):
                self.kept.output_tensors()[0].as_numpy()[:] += 1
                return [self.kept for _ in requests]
    """)
    responses = [run(instance, request_of(X=floats(0)))[0] for _ in range(2)]
    assert [float(response.outputs["Y"].max()) for response in responses] == [1, 2]


LISTS = {
    "reused": "tensors.clear(); tensors.append(tensor); responses.append(pb_utils.InferenceResponse(tensors))",
    "cleared": "tensors.append(tensor); responses.append(pb_utils.InferenceResponse(tensors)); tensors.clear()",
    "generator": "responses.append(pb_utils.InferenceResponse(each for each in [tensor]))",
}


@pytest.mark.parametrize("statement", LISTS.values(), ids=LISTS)
def test_a_response_has_the_tensors_that_it_was_made_of(load, statement):
    instance = load(f"""
        class TritonPythonModel:
            def execute(self, requests):
                responses, tensors = [], []
                for request in requests:
                    tensor = pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy() + 1)
                    {statement}
                return responses
    """)
    responses = run(instance, request_of(X=floats(1)), request_of(X=floats(2)))
    assert [response.outputs["Y"].tolist() for response in responses] == [[[2]], [[3]]]
