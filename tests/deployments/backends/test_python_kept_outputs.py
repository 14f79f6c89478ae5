"""What Python models may do with the arrays, tensors, lists and responses that they have answered with."""

import numpy as np
import pytest
from python_models import ECHO_CONFIG, floats, request_of, run


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


@pytest.mark.parametrize("runs_here", [True])
def test_a_large_input_that_is_the_output_is_not_copied(load):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                responses = []
                for request in requests:
                    x = pb_utils.get_input_tensor_by_name(request, "X")
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy())]))
                return responses
    """)
    requests = [request_of(X=np.full((1, 100_000), each, np.float32)) for each in range(2)]
    for request, response in zip(requests, run(instance, *requests), strict=True):
        assert response.outputs["Y"] is request.inputs["X"]


@pytest.mark.parametrize("expression", ["x", "x[0:1]"], ids=["array", "slice"])
def test_a_model_may_keep_its_input_and_write_to_it(load, expression):
    instance = load(f"""
        class TritonPythonModel:
            def initialize(self, args):
                self.sum = np.zeros((1, 1), np.float32)
            def execute(self, requests):
                x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
                if self.sum.size == 1:
                    self.sum = {expression}
                else:
                    self.sum += x
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.sum)])]
    """)
    responses = [run(instance, request_of(X=np.ones((1, 100_000), np.float32)))[0] for _ in range(3)]
    assert [float(response.outputs["Y"].max()) for response in responses] == [1, 2, 3]


TWO_OUTPUTS = ECHO_CONFIG + 'output { name: "Z" data_type: TYPE_FP32 dims: [ -1 ] }'


@pytest.mark.parametrize("size", [4, 100_000], ids=["small", "large"])
def test_two_outputs_of_one_input_share_no_memory(load, size):
    instance = load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x), pb_utils.Tensor("Z", x)])]
    """,
        TWO_OUTPUTS,
    )
    [response] = run(instance, request_of(X=np.ones((1, size), np.float32)))
    assert not np.shares_memory(response.outputs["Y"], response.outputs["Z"])


@pytest.mark.parametrize("size", [4, 100_000], ids=["small", "large"])
def test_a_model_may_write_to_what_it_has_sent(load, size):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                    response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])
                    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                    request.get_response_sender().send(response, flags=final)
                    x[:] = 7
                    response.output_tensors()[0].as_numpy()[:] += 1
    """)
    [response] = run(instance, request_of(X=np.ones((1, size), np.float32)))
    assert float(response.outputs["Y"].max()) == 1
