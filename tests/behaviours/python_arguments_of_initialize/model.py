import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        assert all(isinstance(value, str) for value in args.values())
        config = json.loads(args["model_config"])
        folder = args["model_repository"].rpartition("/")[2]
        parts = [
            args["model_name"],
            args["model_version"],
            args["model_instance_kind"],
            args["model_instance_device_id"],
        ]
        self.text = " ".join([*parts, folder, config["parameters"]["greeting"]["string_value"]])

    def execute(self, requests):
        tensor = pb_utils.Tensor("ARGS", np.array([self.text.encode()], np.object_))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
