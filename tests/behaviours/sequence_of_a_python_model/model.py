import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.told(request)]) for request in requests]

    def told(self, request):
        text = f"{request.correlation_id()} {request.flags()}"
        return pb_utils.Tensor("OUTPUT0", np.array([text.encode()], np.object_))
