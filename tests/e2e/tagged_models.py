"""Python models that answer with a number, which tells what was loaded."""

from pathlib import Path

TAGGED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TAG", np.array([TAG], np.int32))]) for _ in requests]
"""
TAGGED_CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "TAG" data_type: TYPE_INT32 dims: 1 }
"""


def write_tagged(root: Path, name: str, tag: str, version: int = 1, config: str = "") -> None:
    """Write a Python model that answers with a number, or that does not load when it is none."""
    folder = root / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(f"TAG = {tag}\n{TAGGED}")
    (root / name / "config.pbtxt").write_text(TAGGED_CONFIG + config)
