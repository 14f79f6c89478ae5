"""Sequence models of each backend, loaded as a server loads them, and what their tests share."""

import asyncio
import textwrap
import warnings

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from protocol.errors import ServingError
from protocol.infer import SEQUENCE_END, SEQUENCE_START, InferRequest
from repository_loader.normalisation import normalise
from repository_loader.package import InstanceSpec, ModelPackage
from tests.deployments.backends.onnx_models import write_model

START, END, ONLY = SEQUENCE_START, SEQUENCE_END, SEQUENCE_START | SEQUENCE_END
STREAMING = "model_transaction_policy { decoupled: true } "
X_Y = 'input { name: "X" data_type: TYPE_FP32 dims: 2 } output { name: "Y" data_type: TYPE_FP32 dims: 2 } '
STATE = 'state { input_name: "S_IN" output_name: "S_OUT" data_type: TYPE_FP32 dims: 2 '


def batching(text, strategy="oldest { max_candidate_sequences: 4 }"):
    return f"sequence_batching {{ {strategy} {text} max_sequence_idle_microseconds: 60000000 }} "


class Served:
    """One loaded model version, on the loop that runs."""

    def __init__(self, version):
        self.version = version

    async def infer(self, inputs, sequence_id=0, flags=0, outputs=None):
        """Return the outputs of the final response, or of all of them for a decoupled model."""
        done = asyncio.get_running_loop().create_future()
        came = []

        def reply(request, result):
            if isinstance(result, ServingError):
                done.set_exception(result)
                return
            came.append({name: array.tolist() for name, array in result.outputs.items()})
            if result.final:
                done.set_result(came)

        request = InferRequest(inputs, 1, reply, sequence_id=sequence_id, flags=flags, outputs=outputs)
        self.version.submit(request)
        answers = await asyncio.wait_for(done, 30)
        return answers if self.version.signature.decoupled else answers[0]


def serve(scenario, text, path="", file="", instances=1, *, own_process=False, close_s=5.0, limiter=None):
    """Load a model of this configuration, run the scenario with it, and close it."""

    async def run():
        config = text_format.Parse(text, ModelConfig())
        config.name = "m"
        list(normalise(config, ()))
        clock = LoopClock(asyncio.get_running_loop())
        package = ModelPackage("m", 1, config, str(path), str(path), str(file))
        specs = [InstanceSpec(f"m_{index}", "CPU", 0, own_process=own_process) for index in range(instances)]
        version = await loader.load(package, specs, clock, Core(clock), limiter=limiter)
        try:
            return await scenario(Served(version))
        finally:
            await version.close(close_s)

    return asyncio.run(run())


class LateLimiter:
    """A rate limiter that grants when the test says so."""

    def __init__(self):
        self.waiting = []

    async def add(self, key, needs):
        pass

    def remove(self, key):
        pass

    def acquire(self, key, granted):
        self.waiting.append(granted)

    def release(self, key):
        pass

    async def grant(self):
        while not self.waiting:
            await asyncio.sleep(0)
        waiting, self.waiting = self.waiting, []
        for granted in waiting:
            granted()


def x(*values, batch=True):
    return {"X": np.array([values] if batch else values, np.float32)}


def onnx_sum(tmp_path, dims="n,2"):
    """A model whose output and state are the sum of its input and its state."""
    tensors = [f"{name}:FLOAT:{dims}" for name in ("X", "S_IN")], [f"{name}:FLOAT:{dims}" for name in ("Y", "S_OUT")]
    return write_model(tmp_path / "model.onnx", ["Add X,S_IN Y", "Identity Y S_OUT"], *tensors)


def torch_sum(tmp_path):
    torch = pytest.importorskip("torch")

    class Sum(torch.nn.Module):
        def forward(self, X: torch.Tensor, S_IN: torch.Tensor):
            return X + S_IN, X + S_IN

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Sum()).save(str(tmp_path / "model.pt"))
    return tmp_path / "model.pt"


PYTHON_SUM = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                total = sum(pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("X", "S_IN"))
                tensors = [pb_utils.Tensor(name, total) for name in ("Y", "S_OUT")]
                responses.append(pb_utils.InferenceResponse(tensors))
            return responses
"""


def python(tmp_path, code):
    (tmp_path / "model.py").write_text(textwrap.dedent(code))
    return tmp_path / "model.py"


SUMS = {
    "onnxruntime": onnx_sum,
    "pytorch": torch_sum,
    "python": lambda tmp_path: python(tmp_path, PYTHON_SUM),
}
every_backend = pytest.mark.parametrize("backend", SUMS)
BOTH_STRATEGIES = pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])

ITERATIVE = "iterative_sequence: true"
COUNTDOWN = (
    'input { name: "INPUT" data_type: TYPE_INT32 dims: 1 } output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 } '
)
PYTHON_COUNTDOWN = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.left = {}

        def execute(self, requests):
            for request in requests:
                key = request.correlation_id()
                left = self.left.get(key, int(request.inputs()[0].as_numpy().flat[0])) - 1
                self.left[key] = left
                again = left > 0
                request.set_release_flags(
                    pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE if again else pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL
                )
                response = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([left], np.int32))])
                flags = 0 if again else pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                request.get_response_sender().send(response, flags)
"""
