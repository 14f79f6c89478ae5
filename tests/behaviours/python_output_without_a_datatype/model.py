import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.calls = 0

    def execute(self, requests):
        self.calls += 1
        text = requests[0].inputs()[0].as_numpy()[0].decode("utf-8", "surrogateescape")
        same = np.ones(1, complex) if text == "complex" else np.array([text], object)
        calls = pb_utils.Tensor("CALLS", np.array([self.calls], np.int32))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SAME", same), calls])]
