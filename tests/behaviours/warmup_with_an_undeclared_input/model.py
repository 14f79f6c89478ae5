import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    settings = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            settings = pb_utils.get_input_tensor_by_name(request, "SETTINGS")
            if settings is not None:
                self.settings = settings.as_numpy().size
            output = pb_utils.Tensor("OUTPUT0", np.full(2, self.settings, np.int32))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
