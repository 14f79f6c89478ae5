"""Multiplies by what stands in the version's folder, and adds what stands in the model's."""

import json
from pathlib import Path

import triton_python_backend_utils as pb_utils
from offset import offset_in


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [-1]})
        config.add_output({"name": "Y", "data_type": "TYPE_INT32", "dims": [-1]})
        config.set_max_batch_size(4)
        return config

    def initialize(self, args):
        folder = Path(args["model_repository"])
        assert (folder.name, args["model_version"]) == (args["model_name"], "1")
        self.factor = json.loads((Path(pb_utils.get_model_dir()) / "factor.json").read_text())
        self.offset = offset_in(folder)

    def execute(self, requests):
        values = [self.factor * request.inputs()[0].as_numpy() + self.offset for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each)]) for each in values]
