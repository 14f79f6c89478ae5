import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request.inputs()[0].as_numpy()) for request in requests]

    def respond(self, array):
        if array[0, 0] < 0:
            error = pb_utils.TritonError(f"{array[0, 0]} is negative", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])
