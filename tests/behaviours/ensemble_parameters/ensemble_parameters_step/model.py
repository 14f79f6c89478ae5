import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.told(request)]) for request in requests]

    def told(self, request):
        parameters = json.loads(request.parameters() or "{}")
        text = f"{request.request_id()} {parameters.get('mine')} {request.timeout()}"
        return pb_utils.Tensor("TOLD", np.array([text.encode()], np.object_))
