import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([*self.outputs(request)]) for request in requests]

    def outputs(self, request):
        """Yields the outputs whose bits are set in INPUT0."""
        given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        for bit, name in ((1, "OUTPUT0"), (2, "OUTPUT1")):
            if given[0] & bit:
                yield pb_utils.Tensor(name, given)
