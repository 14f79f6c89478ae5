"""What a client does that keeps its tensors in the memory of a GPU, which for tests is a file (`tests/cuda.c`)."""

import base64
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc}


class Allocation:
    """Some bytes of a GPU's memory, and the handle of CUDA's that names them, as clients encode it."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        path.write_bytes(bytes(size_bytes))
        self.path = path
        self.handle = base64.b64encode(bytes(path).ljust(64, b"\0"))

    def read(self, offset: int, size: int) -> np.ndarray:
        return np.frombuffer(self.path.read_bytes(), np.float32, size, offset)

    def write(self, offset: int, array: np.ndarray) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(array.tobytes())


@contextmanager
def allocated(size_bytes: int) -> Iterator[Allocation]:
    with tempfile.TemporaryDirectory(prefix="gpu-", dir="/tmp") as folder:  # a handle has room for a short name
        yield Allocation(Path(folder) / "memory", size_bytes)


def infer(module: ModuleType, client: Any, model: str, given: int | np.ndarray, wanted: int | None, **more: Any) -> Any:
    """Send 16 floats, or the place of them in region `gpu`; the answer goes to a place there, or to us."""
    tensor = module.InferInput("INPUT0", [1, 16], "FP32")
    output = module.InferRequestedOutput("OUTPUT0")
    if isinstance(given, int):
        tensor.set_shared_memory("gpu", 64, given)
    else:
        tensor.set_data_from_numpy(given)
    if wanted is not None:
        output.set_shared_memory("gpu", 64, wanted)
    return client.infer(model, [tensor], outputs=[output], **more)
