import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = request.inputs()[0].as_numpy()
            assert all(type(each) is bytes for each in texts)
            upper = np.array([each.upper().decode("latin-1") for each in texts], np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", upper)]))
        return responses
