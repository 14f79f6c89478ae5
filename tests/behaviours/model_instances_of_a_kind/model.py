import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kind = args["model_instance_kind"]

    def execute(self, requests):
        tensor = pb_utils.Tensor("KIND", np.array([self.kind.encode()], np.object_))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
