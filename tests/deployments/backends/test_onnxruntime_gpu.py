"""ONNX models on a real GPU."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx_models import io, load, request_of, run, write_model

from deployments.backends import device_inputs
from deployments.backends.device_inputs import DeviceRows
from deployments.backends.gpu_fault import GpuFault
from deployments.lane.arena import Arena
from deployments.lane.lendable import lendable_under
from protocol.errors import Internal
from repository_loader.package import InstanceSpec
from tests.gpus import on_a_gpu
from tests.serving import ROOT

pytestmark = [pytest.mark.gpu, on_a_gpu]

SPECS = [InstanceSpec(f"m_{index}", "GPU", 0) for index in range(2)]
LITTLE_MEMORY = 'parameters { key: "gpu_mem_limit" value { string_value: "268435456" } } '


def test_the_session_is_on_the_gpu_and_not_beside_it(tmp_path):
    path = write_model(tmp_path / "model.onnx", ["MatMul X,X Y"], ["X:FLOAT:n,8,8"], ["Y:FLOAT:n,8,8"])
    (instance, _) = load(
        path, "max_batch_size: 8 " + io("X", "input", "FP32", "8, 8") + io("Y", "output", "FP32", "8, 8"), SPECS
    )
    session = instance._model._session.session
    assert session.get_providers() == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert session.get_provider_options()["CUDAExecutionProvider"]["device_id"] == "0"


def test_a_request_without_memory_on_the_gpu_fails_alone(tmp_path):
    nodes = ["Expand X,S E", "ReduceSum E Y keepdims=1"]
    path = write_model(tmp_path / "model.onnx", nodes, ["X:FLOAT:1,1", "S:INT64:2"], ["Y:FLOAT:1,1"])
    tensors = io("X", "input", "FP32", "1, 1") + io("S", "input", "INT64", 2) + io("Y", "output", "FP32", "1, 1")
    (instance, _) = load(path, LITTLE_MEMORY + tensors, SPECS)
    for _ in range(3):
        with pytest.raises(Internal) as raised:
            run(instance, request_of(rows=1, X=np.float32([[1]]), S=np.int64([1 << 15, 1 << 15])))
        assert not isinstance(raised.value, GpuFault), raised.value.message
        assert "llocate" in raised.value.message or "memory" in raised.value.message
        (answer,) = run(instance, request_of(rows=1, X=np.float32([[1]]), S=np.int64([4, 8])))
        assert answer.outputs["Y"].tolist() == [[32]]


def test_batches_of_changing_sizes_of_a_convolution_are_as_quick_as_those_of_one(tmp_path):
    """ONNX Runtime prepares a convolution anew for each size that is not that of the run before."""
    layers, random = 12, np.random.default_rng(0)
    weights = {f"W{each}": random.standard_normal((8, 8, 3, 3), np.float32) / 9 for each in range(layers)}
    names = ["X", *(f"H{each}" for each in range(1, layers)), "Y"]
    nodes = [f"Conv {names[each]},W{each} {names[each + 1]}" for each in range(layers)]
    path = write_model(tmp_path / "model.onnx", nodes, ["X:FLOAT:n,8,64,64"], ["Y:FLOAT:n,8,40,40"], weights)
    tensors = io("X", "input", "FP32", "8, 64, 64") + io("Y", "output", "FP32", "8, 40, 40")
    (instance, _) = load(path, "max_batch_size: 8 dynamic_batching { } " + tensors, SPECS)
    (on_cpu, _) = load(path, "max_batch_size: 8 dynamic_batching { } " + tensors)
    images = random.standard_normal((8, 8, 64, 64), np.float32)

    def run_s(sizes):
        started_s = time.monotonic()
        for size in sizes:
            run(instance, {"X": images[:size]})
        return (time.monotonic() - started_s) / len(sizes)

    for size in range(1, 9):
        (answer,) = run(instance, {"X": images[:size]})
        (expected,) = run(on_cpu, {"X": images[:size]})
        largest = np.abs(expected.outputs["Y"]).max()
        np.testing.assert_allclose(answer.outputs["Y"], expected.outputs["Y"], rtol=0, atol=0.02 * largest)
    one_s, changing_s = run_s([8] * 50), run_s([8, 5] * 25)
    assert changing_s < 3 * one_s


def test_large_inputs_are_fetched_and_answers_are_those_of_the_cpu(tmp_path):
    width = 64 << 10
    path = write_model(tmp_path / "model.onnx", ["Add X,X Y"], [f"X:FLOAT:n,{width}"], [f"Y:FLOAT:n,{width}"])
    tensors = io("X", "input", "FP32", width) + io("Y", "output", "FP32", width)
    pinned = "optimization { input_pinned_memory { enable: true } }"
    (instance, _) = load(path, "max_batch_size: 16 dynamic_batching { } " + tensors + pinned, SPECS)
    arena = Arena()
    requests = []
    for _ in range(8):
        room = arena.room(4 * width)
        assert room is not None
        rows = np.frombuffer(room, np.float32).reshape(1, width)
        requests.append(request_of(rows=1, X=rows))
    for run_number in range(32):
        for number, request in enumerate(requests):
            request.inputs["X"][:] = 100 * run_number + number
        for count in (8, 1, 5):
            answers = run(instance, *requests[:count])
            for number, answer in enumerate(answers):
                assert (answer.outputs["Y"] == 2 * (100 * run_number + number)).all()
    assert isinstance(instance._model._device_inputs.join("X", [requests[0].inputs["X"]]), DeviceRows)
    assert device_inputs._pinned.is_pinned(lendable_under(requests[0].inputs["X"]), 0, 0)
    arena.unlink()


def test_instances_run_side_by_side(tmp_path):
    weights = np.random.default_rng(0).integers(-4, 4, (256, 256)).astype(np.float32)
    path = write_model(tmp_path / "model.onnx", ["MatMul X,W Y"], ["X:FLOAT:n,256"], ["Y:FLOAT:n,256"], {"W": weights})
    tensors = io("X", "input", "FP32", 256) + io("Y", "output", "FP32", 256)
    instances = load(path, "max_batch_size: 64 " + tensors, SPECS)

    def ask(number):
        rows = np.full((number % 64 + 1, 256), number % 7, np.float32)
        (answer,) = run(instances[number % 2], {"X": rows})
        np.testing.assert_allclose(answer.outputs["Y"], rows @ weights, atol=0.5)  # with TF32

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(ask, range(200)))


@pytest.mark.parametrize(
    ("onnx_type", "config_type", "values"),
    [
        ("BFLOAT16", "BF16", np.uint16([[0x3F80, 0x4000]])),
        ("FLOAT16", "FP16", np.float16([[1, 2]])),
        ("INT64", "INT64", np.int64([[1, -2]])),
        ("STRING", "STRING", np.array([[b"one", b"two"]], object)),
    ],
)
def test_outputs_of_every_kind_come_in_host_memory(tmp_path, onnx_type, config_type, values):
    path = write_model(tmp_path / "model.onnx", ["Identity X Y"], [f"X:{onnx_type}:n,2"], [f"Y:{onnx_type}:n,2"])
    tensors = io("X", "input", config_type, 2) + io("Y", "output", config_type, 2)
    (instance, _) = load(path, "max_batch_size: 8 " + tensors, SPECS)
    (answer,) = run(instance, {"X": values})
    assert answer.outputs["Y"].tolist() == values.tolist()


POISONS = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
import torch
from onnx_models import io, load, run, write_model
from repository_loader.package import InstanceSpec

path = write_model(sys.argv[1] + "/model.onnx", ["MatMul X,X Y"], ["X:FLOAT:n,2,2"], ["Y:FLOAT:n,2,2"])
tensors = io("X", "input", "FP32", "2, 2") + io("Y", "output", "FP32", "2, 2")
[instance] = load(path, "max_batch_size: 8 " + tensors, [InstanceSpec("m_0", "GPU", 0)])
rows = np.ones((1, 2, 2), np.float32)
[answer] = run(instance, {{"X": rows}})
assert answer.outputs["Y"].tolist() == [[[2, 2], [2, 2]]]
try:
    torch.ones(3, device="cuda")[torch.tensor([1000], device="cuda")].cpu()
except RuntimeError as error:
    print(error)
try:
    run(instance, {{"X": rows}})
except Exception as error:
    print(type(error).__name__, error, flush=True)
os._exit(0)
"""
"""PyTorch and ONNX Runtime use the same context of CUDA, so that one loses it for the other."""


def test_a_gpu_is_lost_after_the_failure_of_a_kernel(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    command = (sys.executable, "-c", POISONS, str(tmp_path))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "CUDA error: device-side assert triggered" in done.stdout, done.stdout
    assert "\nGpuFault onnx runtime error " in done.stdout, done.stdout
