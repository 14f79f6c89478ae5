import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.told(request)]) for request in requests]

    def told(self, request):
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        text = " ".join(f"{name}={arrays[name].flat[0]}:{arrays[name].dtype}:{arrays[name].shape}" for name in "SERC")
        return pb_utils.Tensor("OUTPUT0", np.array([[text.encode()]], np.object_))
