import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        name = "bls_callee" if x[0] > 0 else "bls_nobody"
        inner = pb_utils.InferenceRequest(
            model_name=name, requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", x)]
        )
        response = inner.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(response.error().message()))
        told = str(pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()[0]).encode()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([told], np.object_))])
