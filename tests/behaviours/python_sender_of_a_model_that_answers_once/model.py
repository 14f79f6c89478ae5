import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            tensor = pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            request.get_response_sender().send(pb_utils.InferenceResponse([tensor]), flags=final)
        return [None for _ in requests]
