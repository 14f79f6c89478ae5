"""Python models in temporary repositories, and batches to run through them."""

import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import Batch
from protocol.errors import ServingError
from protocol.infer import InferRequest
from repository_loader.package import InstanceSpec, ModelPackage

ECHO_CONFIG = """
    name: "echo" backend: "python" max_batch_size: 8
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""

PRELUDE = """
import triton_python_backend_utils as pb_utils
import numpy as np
"""


def write_model(root: Path, code: str, config: str = ECHO_CONFIG, files: dict[str, str] | None = None) -> ModelPackage:
    """Write `<root>/<name>/1/model.py` and other files of the model; return its package."""
    parsed = text_format.Parse(config, ModelConfig())
    model = root / parsed.name
    for path, text in {"1/model.py": PRELUDE + textwrap.dedent(code), **(files or {})}.items():
        (model / path).parent.mkdir(parents=True, exist_ok=True)
        (model / path).write_text(textwrap.dedent(text))
    return ModelPackage(parsed.name, 1, parsed, str(model), str(model / "1"), str(model / "1" / "model.py"))


def instances(package: ModelPackage, count: int = 1) -> list[InstanceSpec]:
    return [InstanceSpec(f"{package.name}_{index}", "CPU", 0) for index in range(count)]


@dataclass
class Replies:
    """Collects what decoupled models reply."""

    outcomes: list = field(default_factory=list)

    def __call__(self, request, outcome) -> None:
        self.outcomes.append(outcome)


def no_reply(request, outcome) -> None:
    raise AssertionError("the scheduler replies, not the instance")


def request_of(reply=no_reply, *, outputs=None, **inputs) -> InferRequest:
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    return InferRequest(arrays, len(next(iter(arrays.values()))), reply, outputs=outputs)


def run(instance, *requests: InferRequest) -> list:
    """Run the requests as one batch and return their outcomes; what failed all of it is raised."""
    batch = Batch(list(requests), sum(request.rows for request in requests))
    instance.execute(batch)
    results = list(batch.results) if batch.late is None else [answer.outcome for answer in batch.late.answers]
    first = next(iter(results), None)
    if isinstance(first, ServingError) and all(result is first for result in results):
        raise first
    return results


def floats(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


ECHO = """
    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())])
                for r in requests
            ]
"""
