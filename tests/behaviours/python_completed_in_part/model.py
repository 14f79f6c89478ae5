import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_INT32", "dims": [2]})
        config.set_max_batch_size(0)
        return config

    def execute(self, requests):
        given = (pb_utils.get_input_tensor_by_name(request, "X") for request in requests)
        arrays = [np.zeros(2, np.int32) if tensor is None else -tensor.as_numpy() for tensor in given]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in arrays]
