"""Model repositories for tests of a whole server: the examples, small models of every kind, and broken ones."""

import shutil
import textwrap
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.serving import ROOT

HAS_TORCH = find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")

EXAMPLES = ROOT / "examples" / "model_repository"

EXAMPLE_VERSIONS = {
    ("digits", "1"),
    ("digits", "2"),
    ("digits_pipeline", "1"),
    ("digits_postprocess", "1"),
    ("digits_preprocess", "1"),
    ("digits_torch", "1"),
}
LOADABLE_EXAMPLE_VERSIONS = {each for each in EXAMPLE_VERSIONS if HAS_TORCH or each[0] != "digits_torch"}
SMALL = (
    "async_model",
    "cached",
    "countdown",
    "countdown_in_thread",
    "countdown_told",
    "failing",
    "flags",
    "floats",
    "gated",
    "halves",
    "lone",
    "moody",
    "remembering",
    "row_sums",
    "sequence_sums",
    "simple",
    "slow",
    "slow_twice",
    "strings",
    "two_replicas",
)

BROKEN = {
    "broken_backend": "nonesuch",
    "broken_config": "config.pbtxt:3:",
    "broken_datatype": "X",
    "broken_dependent": "ensemble 'broken_dependent' depends on 'broken_initialize'",
    "broken_ensemble": "nobody",
    "broken_import": "no_such_module_anywhere",
    "broken_initialize": "the weights are not where they were",
    "broken_no_version": "at least one version must be available",
    "broken_onnx": "model.onnx",
    "broken_truncated_onnx": "model.onnx",
}
"""Every model that cannot be loaded, with a part of its reason."""


def write_examples(root: Path) -> Path:
    """Copy the example models."""
    for model in sorted(EXAMPLES.iterdir()):
        shutil.copytree(model, root / model.name, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def write_small_models(root: Path) -> Path:
    """Write the models of the table of cases, and one for each behaviour of the server."""
    _onnx(
        root,
        "simple",
        _sum_and_difference(),
        _signature(8, "INT32", "16", ("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1")),
    )
    _onnx(root, "floats", _identity("X", "Y", TensorProto.FLOAT, ["n"]), _signature(0, "FP32", "-1", ("X",), ("Y",)))
    _onnx(
        root, "halves", _identity("H", "HO", TensorProto.FLOAT16, ["b", 4]), _signature(4, "FP16", "4", ("H",), ("HO",))
    )
    _onnx(root, "flags", _identity("B", "BO", TensorProto.BOOL, ["b", 4]), _signature(4, "BOOL", "4", ("B",), ("BO",)))
    _python(root, "strings", _ECHO, _signature(8, "STRING", "-1", ("TEXT",), ("TEXT_OUT",)))
    _python(root, "slow", _SLOW, _signature(0, "FP32", "1", ("SECONDS",), ("SLEPT",)))
    _python(root, "failing", _FAILING, _tensors(8, ("MODE", "STRING", "1"), ("DONE", "STRING", "1")) + _DELAY)
    _python(root, "async_model", _ASYNC, _tensors(0, ("X", "INT32", "1"), ("INFO", "STRING", "1")))
    _python(root, "moody", _MOODY, _tensors(0, ("SECONDS", "FP32", "1"), ("SLEPT", "FP32", "1")))
    _python(root, "lone", _PID, _tensors(0, ("SECONDS", "FP32", "1"), ("PID", "INT64", "1")))
    streaming = "model_transaction_policy { decoupled: true }"
    counting = _tensors(0, ("COUNT", "INT32", "1"), ("NUMBER", "INT32", "1"))
    _python(root, "countdown", _COUNTDOWN, counting + streaming)
    _python(root, "countdown_in_thread", _COUNTDOWN_IN_THREAD, counting + streaming)
    write_sequence_models(root)
    _write_ensembles(root)
    caching = _tensors(0, ("X", "INT32", "-1"), ("RUNS", "INT32", "1")) + "response_cache { enable: true }"
    _python(root, "cached", _COUNTED, caching)
    two = "instance_group [ { kind: KIND_CPU count: 1 } ]" + _parameters(placement="isolated", replicas="2")
    _python(root, "two_replicas", _PID, _tensors(0, ("SECONDS", "FP32", "1"), ("PID", "INT64", "1")) + two)
    return root


def _parameters(**values: str) -> str:
    return "".join(
        f'parameters {{ key: "eagleray.{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items()
    )


def _write_ensembles(root: Path) -> None:
    """Write ensembles: with a decoupled step, with a condition, and one whose steps take their time."""
    number, info = ("COUNT", "INT32", "1"), ("INFO", "STRING", "1")
    streaming = (("countdown_in_thread", "COUNT COUNT", "NUMBER n"), ("async_model", "X n", "INFO INFO"))
    gate = _parameters(**{"when.floats": "X > 0.5", "default.Y": "-1"})
    for name, tensors, steps in (
        ("countdown_told", _tensors(0, number, info), streaming),
        ("gated", _tensors(0, ("X", "FP32", "-1"), ("Y", "FP32", "-1")) + gate, (("floats", "X X", "Y Y"),)),
        (
            "slow_twice",
            _tensors(0, ("SECONDS", "FP32", "1"), ("SLEPT", "FP32", "1")),
            (("slow", "SECONDS SECONDS", "SLEPT t"), ("slow", "SECONDS t", "SLEPT SLEPT")),
        ),
    ):
        lines = []
        for model, taken, given in steps:
            maps = []
            for field, pair in (("input_map", taken), ("output_map", given)):
                key, value = pair.split()
                maps.append(f'{field} {{ key: "{key}" value: "{value}" }}')
            lines.append(f'step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}')
        config = f'platform: "ensemble"{tensors}ensemble_scheduling {{ {" ".join(lines)} }}\n'
        _write(root / name / "config.pbtxt", config)
        (root / name / "1").mkdir()


def write_sequence_models(root: Path, *, shared: bool = False) -> None:
    """Write a model of each strategy from the backends of Triton's tests, and one in Python with implicit state.

    `shared` adds one of two replicas.
    """
    taken, given = ("INPUT", "INT32", "-1"), ("OUTPUT", "INT32", "-1")
    kinds = ("START", "END", "READY")
    controls = {kind: f"kind: CONTROL_SEQUENCE_{kind} int32_false_true: [ 0, 1 ]" for kind in kinds}
    controls["CORRID"] = "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64"
    for name, backend, strategy, wanted in (
        ("sequence_sums", "dyna_sequence", "oldest { max_candidate_sequences: 64 }", controls),
        ("row_sums", "sequence", "direct { }", ("START", "READY")),
        *((("shared_sums", "dyna_sequence", "oldest { max_candidate_sequences: 4096 }", controls),) if shared else ()),
    ):
        entries = " ".join(f'control_input {{ name: "{kind}" control {{ {controls[kind]} }} }}' for kind in wanted)
        batching = f"sequence_batching {{ {strategy} {entries} max_sequence_idle_microseconds: 60000000 }}"
        config = f'backend: "{backend}"{_tensors(8, taken, given)}{batching}\n'
        if name == "shared_sums":
            config += _parameters(placement="isolated", replicas="2")
        _write(root / name / "config.pbtxt", config)
        (root / name / "1").mkdir(exist_ok=True)
    state = 'state { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_INT32 dims: [ 1 ] }'
    remembering = _tensors(0, ("X", "INT32", "1"), ("Y", "INT32", "1")) + (
        f"sequence_batching {{ oldest {{ max_candidate_sequences: 8 }} {state} max_sequence_idle_microseconds: 60000000 }}\n"
    )
    _python(root, "remembering", _REMEMBERING, remembering)


def write_tagged_onnx(root: Path, name: str, version: int, config: str = "") -> None:
    """Write a version of a model that says its input again."""
    model = _identity("X", "TAG", TensorProto.INT32, [1])
    _write(root / name / str(version) / "model.onnx", model.SerializeToString())
    tensors = _signature(0, "INT32", "1", ("X",), ("TAG",))
    _write(root / name / "config.pbtxt", f'backend: "onnxruntime"{tensors}version_policy {{ all {{}} }}\n{config}')


def write_broken_models(root: Path) -> Path:
    """Write one model for each way to be broken; `BROKEN` says what is said of them."""
    good = _identity("X", "Y", TensorProto.FLOAT, ["b", 4]).SerializeToString()
    tensors = _signature(0, "FP32", "4", ("X",), ("Y",))
    _write(root / "broken_onnx/1/model.onnx", b"\xff\xfe" + b"this is no ONNX graph" * 50)
    _write(root / "broken_truncated_onnx/1/model.onnx", good[: len(good) // 2])
    _write(
        root / "broken_config/config.pbtxt", 'name: "broken_config"\nbackend: "onnxruntime"\nmax_batch_size: eight\n'
    )
    _write(root / "broken_config/1/model.onnx", good)
    _write(root / "broken_no_version/config.pbtxt", 'backend: "onnxruntime"' + tensors)
    _python(root, "broken_import", "import no_such_module_anywhere\n" + _ECHO, tensors)
    _python(root, "broken_initialize", _NO_WEIGHTS, tensors)
    _onnx(root, "broken_datatype", onnx.load_from_string(good), _signature(0, "INT32", "4", ("X",), ("Y",)))
    _write(root / "broken_backend/config.pbtxt", 'backend: "nonesuch"' + tensors)
    _write(root / "broken_backend/1/model.nonesuch", b"")
    _write(root / "broken_ensemble/config.pbtxt", _ensemble("nobody", tensors))
    _write(root / "broken_dependent/config.pbtxt", _ensemble("broken_initialize", tensors))
    for name in ("broken_ensemble", "broken_dependent"):
        (root / name / "1").mkdir()
    return root


def write_everything(root: Path) -> Path:
    """Write the examples, the small models and the broken ones."""
    return write_broken_models(write_small_models(write_examples(root)))


def _write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def _onnx(root: Path, name: str, model: onnx.ModelProto, config: str) -> None:
    _write(root / name / "1/model.onnx", model.SerializeToString())
    _write(root / name / "config.pbtxt", 'backend: "onnxruntime"' + config)


def _python(root: Path, name: str, code: str, config: str) -> None:
    _write(root / name / "1/model.py", textwrap.dedent(code))
    _write(root / name / "config.pbtxt", 'backend: "python"' + config)


def _tensors(max_batch_size: int, taken: tuple[str, str, str], given: tuple[str, str, str]) -> str:
    lines = [f"\nmax_batch_size: {max_batch_size}"]
    for field, (name, datatype, dims) in (("input", taken), ("output", given)):
        lines.append(f'{field} [ {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }} ]')
    return "\n".join(lines) + "\n"


def _signature(max_batch_size: int, datatype: str, dims: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    lines = [f"\nmax_batch_size: {max_batch_size}"]
    lines += [f'input {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}' for name in inputs]
    lines += [f'output {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}' for name in outputs]
    return "\n".join(lines) + ("\ndynamic_batching { }\n" if max_batch_size else "\n")


def _ensemble(step: str, tensors: str) -> str:
    maps = 'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
    scheduling = f'ensemble_scheduling {{ step [ {{ model_name: "{step}" model_version: -1 {maps} }} ] }}\n'
    return 'platform: "ensemble"' + tensors + scheduling


def _model(
    nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str], type: int, dims: list
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, type, dims) for name in inputs],
        [helper.make_tensor_value_info(name, type, dims) for name in outputs],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    return model


def _identity(taken: str, given: str, type: int, dims: list) -> onnx.ModelProto:
    return _model([helper.make_node("Identity", [taken], [given])], [taken], [given], type, dims)


def _sum_and_difference() -> onnx.ModelProto:
    inputs, outputs = ["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"]
    nodes = [helper.make_node(kind, inputs, [name]) for kind, name in zip(("Add", "Sub"), outputs, strict=True)]
    return _model(nodes, inputs, outputs, TensorProto.INT32, ["b", 16])


_COUNTED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    runs = 0

    def execute(self, requests):
        responses = []
        for _ in requests:
            self.runs += 1
            tensor = pb_utils.Tensor("RUNS", np.array([self.runs], np.int32))
            responses.append(pb_utils.InferenceResponse(output_tensors=[tensor]))
        return responses
"""

_REMEMBERING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            before, added = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("BEFORE", "X")]
            tensors = [pb_utils.Tensor("Y", before), pb_utils.Tensor("AFTER", before + added)]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
"""

_DELAY = "dynamic_batching { max_queue_delay_microseconds: 50000 }\n"

_ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("TEXT_OUT", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""

_SLOW = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
            time.sleep(max(0.002, float(seconds[0])))  # long enough never to run on the event loop
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("SLEPT", seconds)]))
        return responses
"""

_MOODY = _SLOW.replace("max(0.002, float(seconds[0]))", "float(seconds[0])").replace(
    "  # long enough never to run on the event loop", ""
)

_FAILING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "MODE").as_numpy() for request in requests]
        if any(tensor[0, 0] == b"raise" for tensor in tensors):
            raise ValueError("the model does not feel like it")
        if any(tensor[0, 0] == b"interrupt" for tensor in tensors):
            raise KeyboardInterrupt("the model was told to stop")
        return [self.respond(tensor) for tensor in tensors]

    def respond(self, tensor):
        if tensor[0, 0] == b"error":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("this request, and no other, is refused"))
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("DONE", tensor)])
"""

_ASYNC = """
import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*(self.respond(request) for request in requests))

    async def respond(self, request):
        await asyncio.sleep(0)
        info = {
            "id": request.request_id(),
            "parameters": json.loads(request.parameters() or "{}"),
            "x": int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0]),
        }
        text = np.array([json.dumps(info).encode()], dtype=object)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("INFO", text)])
"""

_PID = """
import ctypes
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seconds = float(pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()[0])
            if seconds == -1:
                os._exit(1)
            if seconds == -2:
                ctypes.string_at(0)
            if seconds == -3:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            time.sleep(max(0.002, seconds))
            pid = np.array([os.getpid()], np.int64)
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("PID", pid)]))
        return responses
"""

_COUNTDOWN = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.count_down(request)
        return None

    def count_down(self, request):
        sender = request.get_response_sender()
        count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
        for number in range(count, 0, -1):
            tensor = pb_utils.Tensor("NUMBER", np.array([number], np.int32))
            sender.send(pb_utils.InferenceResponse(output_tensors=[tensor]))
        if count < 0:
            error = pb_utils.TritonError("cannot count down from a negative number")
            sender.send(pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        else:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
"""A response for each number, and an end without one."""

_COUNTDOWN_IN_THREAD = """
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            threading.Thread(target=self.count_down, args=(request.get_response_sender(), count), daemon=True).start()
        return None

    def count_down(self, sender, count):
        for number in range(count, 0, -1):
            time.sleep(0.01)
            if sender.is_cancelled():
                break
            tensor = pb_utils.Tensor("NUMBER", np.array([number], np.int32))
            last = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if number == 1 else 0
            sender.send(pb_utils.InferenceResponse(output_tensors=[tensor]), flags=last)
        else:
            return
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
"""The same, long after `execute` has returned; the last response is the end."""

_NO_WEIGHTS = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("the weights are not where they were")

    def execute(self, requests):
        return []
"""
