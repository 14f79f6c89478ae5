"""ONNX Runtime alone in one process, no server around it: what a model that computes can reach at most.

    python -m benchmarks.bare MODEL.onnx BATCH SECONDS

prints the rows per second.
"""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime


def rows_per_s(file: Path, batch: int, duration_s: float) -> float:
    """Run batches one after the other in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.bare", str(file), str(batch), str(duration_s)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    return float(done.stdout)


def main() -> None:
    file, batch, duration_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (tensor,) = session.get_inputs()
    shape = (batch, *tensor.shape[1:])
    random = np.random.default_rng(0)
    integers = tensor.type == "tensor(int64)"
    feed = {tensor.name: random.integers(0, 1000, shape) if integers else random.standard_normal(shape, np.float32)}
    session.run(None, feed)
    rows, started_s = 0, time.monotonic()
    while (elapsed_s := time.monotonic() - started_s) < duration_s:
        session.run(None, feed)
        rows += batch
    print(rows / elapsed_s)


if __name__ == "__main__":
    main()
