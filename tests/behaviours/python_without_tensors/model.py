import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(error=pb_utils.TritonError("refused"))
            if request.request_id() == "refused"
            else pb_utils.InferenceResponse([])
            for request in requests
        ]
