"""Scores become the label of the likeliest digit, and how sure the model is."""

import numpy as np
import triton_python_backend_utils as pb_utils

LABELS = np.array(
    [b"zero", b"one", b"two", b"three", b"four", b"five", b"six", b"seven", b"eight", b"nine"], dtype=object
)


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        """Say what config.pbtxt leaves out. Called before the model is loaded, in a process of its own."""
        auto_complete_model_config.set_max_batch_size(64)
        auto_complete_model_config.set_dynamic_batching()
        auto_complete_model_config.add_input({"name": "SCORES", "data_type": "TYPE_FP32", "dims": [10]})
        auto_complete_model_config.add_output({"name": "LABEL", "data_type": "TYPE_STRING", "dims": [1]})
        auto_complete_model_config.add_output({"name": "CONFIDENCE", "data_type": "TYPE_FP32", "dims": [1]})
        return auto_complete_model_config

    def execute(self, requests):
        scores = [pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy() for request in requests]
        together = np.concatenate(scores)
        labels = LABELS[together.argmax(axis=1)].reshape(-1, 1)
        confidences = together.max(axis=1, keepdims=True)

        responses, row = [], 0
        for part in scores:
            rows = slice(row, row + len(part))
            tensors = [pb_utils.Tensor("LABEL", labels[rows]), pb_utils.Tensor("CONFIDENCE", confidences[rows])]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
            row += len(part)
        return responses
