import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.fail(request.inputs()[0].as_numpy()[0].decode()) for request in requests]

    def fail(self, name):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"is {name}", getattr(pb_utils.TritonError, name)))
