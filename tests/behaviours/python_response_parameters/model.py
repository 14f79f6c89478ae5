import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            given = json.loads(request.parameters() or "{}")
            tensor = pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())
            told = {"got": str(given.get("text")), "number": given.get("number", 0) + 1, "flag": not given.get("flag")}
            responses.append(pb_utils.InferenceResponse([tensor], parameters=told))
        return responses
