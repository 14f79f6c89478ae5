import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            names = ",".join(sorted(request.requested_output_names()))
            outputs = [pb_utils.Tensor("NAMES", np.array([names.encode()], np.object_))]
            outputs.append(pb_utils.Tensor("OTHER", np.array([1], np.int32)))
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
