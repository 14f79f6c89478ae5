"""A model alone in one process, on a GPU or the CPU, no server around it: batches from NumPy arrays and back to them.

    python -m benchmarks.bare_device FILE DEVICE CUDNN SECONDS BATCH...

runs each size of batch one after the other and prints a line with its size and rows per second. FILE is `model.onnx`,
which ONNX Runtime runs, or `model.pt`, which PyTorch does. DEVICE is `gpu` or `cpu`, CUDNN how ONNX Runtime chooses
convolutions.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WARM_UP_S = 1.0
WARM_UP_RUNS = 5
PATIENCE_S = 60.0

Rows = NDArray[Any]


class BareError(Exception):
    """The model did not run; the message says why."""


def rows_per_s(
    file: Path, device: str, cudnn: str, duration_s: float, batches: Sequence[int], example: Rows
) -> dict[int, float]:
    """Return the rows per second for each size of batch, measured in a process of their own."""
    array = file.with_name("example.npy")
    np.save(array, example)
    command = [sys.executable, "-m", "benchmarks.bare_device", str(file), device, cudnn, str(duration_s)]
    limit_s = PATIENCE_S + len(batches) * (duration_s + 4 * WARM_UP_S)
    try:
        done = subprocess.run(
            [*command, *map(str, batches)],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[1],
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired as error:
        raise BareError(f"{file.name} alone took more than {limit_s:.0f} s") from error
    finally:
        array.unlink()
    if done.returncode:
        raise BareError(f"{file.name} alone ended with status {done.returncode}: {done.stderr[-600:]}")
    lines = (line.split() for line in done.stdout.splitlines() if line.startswith("ROWS "))
    return {int(batch): float(rate) for _, batch, rate in lines}


def onnx_loop(file: str, device: str, cudnn: str) -> Callable[[Rows], object]:
    """Open a session as Eagleray does; of its options none but the choice of convolutions matters to a GPU."""
    import onnxruntime

    provider: tuple[str, dict[str, str]] = ("CPUExecutionProvider", {})
    if device == "gpu":
        provider = ("CUDAExecutionProvider", {"device_id": "0", "cudnn_conv_algo_search": cudnn.upper()})
        onnxruntime.preload_dlls()
    session = onnxruntime.InferenceSession(file, providers=[provider])
    if session.get_providers()[0] != provider[0]:
        raise SystemExit(f"ONNX Runtime did not take {provider[0]} but {session.get_providers()}")
    (tensor,) = session.get_inputs()
    return lambda rows: session.run(None, {tensor.name: rows})


def torch_loop(file: str, device: str) -> Callable[[Rows], object]:
    import torch

    place = torch.device("cuda", 0) if device == "gpu" else torch.device("cpu")
    module = torch.jit.load(file, map_location=place).eval()

    def run(rows: Rows) -> object:
        with torch.inference_mode():
            return module(torch.from_numpy(rows).to(place)).cpu().numpy()

    return run


def rate(run: Callable[[Rows], object], rows: Rows, duration_s: float) -> float:
    warm_s, runs = time.monotonic() + WARM_UP_S, 0
    while time.monotonic() < warm_s or runs < WARM_UP_RUNS:
        run(rows)
        runs += 1
    runs, started_s = 0, time.monotonic()
    while (elapsed_s := time.monotonic() - started_s) < duration_s:
        run(rows)
        runs += 1
    return runs * len(rows) / elapsed_s


def main() -> None:
    file, device, cudnn, duration_s, *batches = sys.argv[1:]
    one = np.load(Path(file).with_name("example.npy"))
    run = torch_loop(file, device) if file.endswith(".pt") else onnx_loop(file, device, cudnn)
    for batch in map(int, batches):
        print("ROWS", batch, rate(run, np.repeat(one, batch, axis=0), float(duration_s)), flush=True)


if __name__ == "__main__":
    main()
