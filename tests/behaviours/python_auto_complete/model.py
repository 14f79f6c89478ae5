import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_INT32", "dims": [2]})
        config.set_max_batch_size(6)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", -request.inputs()[0].as_numpy())]) for request in requests
        ]
