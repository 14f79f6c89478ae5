"""TorchScript modules through the backend's seam."""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Dict, List, Optional, Tuple  # noqa: UP035, TorchScript knows these names only
from zipfile import ZipFile

import numpy as np
import pytest
from google.protobuf import text_format
from python_models import floats, no_reply
from torch_models import fp32, load_module, run
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import Batch, ModelLoadError
from deployments.backends.gpu_fault import GpuFault
from deployments.backends.pytorch import PyTorchBackend
from protocol.errors import Internal, InvalidArgument, Unsupported
from protocol.infer import InferRequest
from repository_loader.package import InstanceSpec, ModelPackage
from repository_loader.parameters import ParameterError

torch = pytest.importorskip("torch")
Tensor = torch.Tensor


class Add(torch.nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tuple[Tensor, Tensor]:  # noqa: UP006
        return left + right, left - right


class Double(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Scale(torch.nn.Module):
    def forward(self, x: Tensor, factor: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        return x if factor is None else x * factor


class FromDict(torch.nn.Module):
    def forward(self, inputs: Dict[str, Tensor]) -> Dict[str, Tensor]:  # noqa: UP006
        return {"first": inputs["a"] * 10, "second": inputs["b"]}


class Total(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3, 2))

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:  # noqa: UP006
        self.total += x
        return self.total, self.total[1:], self.total.t()


class Accumulate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x
        return self.total


class SumOfEach(torch.nn.Module):
    def forward(self, values: Tensor, ends: Tensor) -> Tuple[Tensor, Tensor]:  # noqa: UP006
        sums = torch.stack([part.sum() for part in torch.tensor_split(values, ends[:-1].long())])
        return sums.unsqueeze(1), values * 2


class Lookup(torch.nn.Module):
    def forward(self, words: List[str]) -> List[str]:  # noqa: UP006
        raise ValueError("unknown word '" + words[0] + "'")


class Fail(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert x.sum() < 0, "only negative numbers"
        return x


@pytest.fixture
def load(tmp_path):
    threads = torch.get_num_threads()
    yield partial(load_module, tmp_path)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (("right", "left"), ("SUM__0", "DIFFERENCE__1")),
        (("R__1", "L__0"), ("SUM__0", "DIFFERENCE__1")),
        (("first", "second__1"), ("sum", "difference")),
    ],
    ids=["argument names", "indices", "order"],
)
def test_names_find_arguments_and_results(load, inputs, outputs):
    [instance] = load(Add(), fp32(*inputs), fp32(*outputs))
    by_place = dict(
        zip(inputs, (floats(1), floats(5)) if inputs[0] in ("right", "R__1") else (floats(5), floats(1)), strict=True)
    )
    assert run(instance, by_place) == [{outputs[0]: [[6]], outputs[1]: [[4]]}]


def test_what_a_module_keeps_and_writes_to_changes_no_earlier_response(load):
    [instance] = load(Total(), fp32("x"), fp32("total", "rest", "turned", dims="[-1, -1]"), more="")
    responses = []
    for _ in range(2):
        batch = Batch([InferRequest({"x": np.ones(1, np.float32)}, 1, no_reply)], 1)
        instance.execute(batch)
        responses += batch.results
    for number, response in enumerate(responses, 1):
        for name, shape in (("total", (3, 2)), ("rest", (2, 2)), ("turned", (2, 3))):
            output = response.outputs[name]
            assert output.flags.c_contiguous
            assert output.tolist() == np.full(shape, number).tolist()


def test_output_indices_may_skip_results(load):
    [instance] = load(Add(), fp32("left", "right"), fp32("DIFFERENCE__1"))
    assert run(instance, {"left": floats(5), "right": floats(1)}) == [{"DIFFERENCE__1": [[4]]}]


def test_requests_run_as_one_batch_and_get_their_rows_back(load):
    [instance] = load(Double(), fp32("x"), fp32("y"))
    two = np.array([[3], [4]], np.float32)
    assert run(instance, {"x": floats(1)}, {"x": two}, {"x": floats(5)}) == [
        {"y": [[2]]},
        {"y": [[6], [8]]},
        {"y": [[10]]},
    ]


def test_model_without_batching_runs_requests_one_by_one(load):
    [instance] = load(Double(), fp32("x"), fp32("y"), more="")
    assert run(instance, {"x": np.float32([1, 2])}, {"x": np.float32([3])}) == [{"y": [2, 4]}, {"y": [6]}]


def test_read_only_inputs_raise_no_warning_and_stay_as_they_are(load):
    [instance] = load(Double(), fp32("x"), fp32("y"))
    assert run(instance, {"x": np.frombuffer(floats(1).tobytes(), np.float32).reshape(1, 1)}) == [{"y": [[2]]}]


def test_only_requested_outputs_are_returned(load):
    [instance] = load(Add(), fp32("left", "right"), fp32("sum", "difference"))
    assert run(instance, {"left": floats(5), "right": floats(1)}, outputs=("sum",)) == [{"sum": [[6]]}]


def test_optional_argument_may_be_left_out(load):
    [instance] = load(Scale(), fp32("x", "factor"), fp32("y"))
    assert run(instance, {"x": floats(3)}) == [{"y": [[3]]}]
    assert run(instance, {"x": floats(3), "factor": floats(2)}) == [{"y": [[6]]}]


@pytest.mark.parametrize(
    ("module", "inputs", "said"),
    [
        (Add(), ("left",), "unable to load model 'net', configuration expects 1 inputs, model provides 2"),
        (Double(), ("x", "y"), "unable to load model 'net', configuration expects 2 inputs, model provides 1"),
        (
            Double(),
            ("X__1",),
            "failed to load model 'net': forward takes x; the configuration has 1 inputs: X__1",
        ),
        (Scale(), ("FACTOR__1",), "unable to load model 'net', configuration expects 1 inputs, model provides 2"),
    ],
    ids=["too-few", "too-many", "index", "wrong-one"],
)
def test_inputs_that_forward_does_not_take_fail_the_load(load, module, inputs, said):
    with pytest.raises(ModelLoadError) as raised:
        load(module, fp32(*inputs), fp32("Y"))
    assert raised.value.reason == said


def test_dictionaries_go_in_and_come_out_by_name(load):
    [instance] = load(FromDict(), fp32("a", "b"), fp32("second", "first"))
    assert run(instance, {"a": floats(1), "b": floats(2)}) == [{"second": [[2]], "first": [[10]]}]


def test_bfloat16_travels_as_its_bits(load):
    [instance] = load(Scale(), [("x", "TYPE_BF16", "[-1]")], [("y", "TYPE_BF16", "[-1]")])
    assert run(instance, {"x": np.array([[0x3F80]], np.uint16)}) == [{"y": [[0x3F80]]}]


def test_reshape_is_undone(load):
    [instance] = load(Double(), [("x", "TYPE_FP32", "[4]")], [("y", "TYPE_FP32", "[2, 2] reshape { shape: [4] }")])
    assert run(instance, {"x": floats(1, 2, 3, 4)}) == [{"y": [[[2, 4], [6, 8]]]}]


SHARING = 'max_batch_size: 1 parameters { key: "ENABLE_WEIGHT_SHARING" value { string_value: "true" } }'


def test_instances_share_parameters_and_outlive_each_other(load):
    first, second = load(Double(), fp32("x"), fp32("y"), count=2)
    one, other = (instance._module.call.factor for instance in (first, second))
    assert one is not other and one.data_ptr() == other.data_ptr()
    first.close()
    assert run(second, {"x": floats(1)}) == [{"y": [[2]]}]


@pytest.mark.parametrize(("more", "second_of_first"), [("max_batch_size: 1", 3), (SHARING, 103)], ids=["own", "shared"])
def test_what_a_module_keeps_is_its_instances_own_unless_weights_are_shared(load, more, second_of_first):
    first, second = load(Accumulate(), fp32("x"), fp32("y"), more=more, count=2)
    run(first, {"x": floats(1)})
    run(second, {"x": floats(100)})
    assert run(first, {"x": floats(2)}) == [{"y": [[second_of_first]]}]


@pytest.mark.parametrize(
    "key", ["INFERENCE_MODE", "DISABLE_OPTIMIZED_EXECUTION", "DISABLE_CUDNN", "ENABLE_CACHE_CLEANING"]
)
@pytest.mark.parametrize("value", ["true", "False", "on", "OFF"])
def test_parameters_change_no_result(load, key, value):
    more = f'max_batch_size: 8 parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    [instance] = load(Double(), fp32("x"), fp32("y"), more=more)
    assert run(instance, {"x": floats(1)}) == [{"y": [[2]]}]


def test_cudnn_is_on_or_off_as_the_model_that_runs_says(load):
    off = 'parameters { key: "DISABLE_CUDNN" value { string_value: "true" } }'
    [without] = load(Double(), fp32("x"), fp32("y"), more=off, kind="MODEL")
    [other] = load(Double(), fp32("x"), fp32("y"), more="", kind="MODEL")
    for instance, enabled in ((without, False), (other, True), (without, False), (other, True)):
        run(instance, {"x": np.float32([1])})
        assert torch.backends.cudnn.enabled == enabled


def test_ragged_requests_share_a_batch_and_are_cut_apart_again(load):
    ragged = (
        'max_batch_size: 8 batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" '
        'data_type: TYPE_INT32 source_input: "values" } '
        'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "doubled" source_input: "values" }'
    )
    inputs = [("values", "TYPE_FP32", "-1 allow_ragged_batch: true")]
    (instance,) = load(SumOfEach(), inputs, [("sums", "TYPE_FP32", "1"), ("doubled", "TYPE_FP32", "-1")], more=ragged)
    requests = [
        InferRequest({"values": np.array([[1, 2, 3]], np.float32)}, 1, no_reply),
        InferRequest({"values": np.array([[4]], np.float32)}, 1, no_reply, outputs=("sums",)),
    ]
    batch = Batch(requests, 2)
    instance.execute(batch)
    first, second = batch.results
    assert first.outputs["sums"].tolist() == [[6]] and first.outputs["doubled"].tolist() == [[2, 4, 6]]
    assert second.outputs["sums"].tolist() == [[4]] and set(second.outputs) == {"sums"}


class Describe(torch.nn.Module):
    def forward(self, values: Tensor, made: Tensor) -> Tensor:
        return values * 0 + made.sum() + 1000 * made.numel()


KINDS = {
    "BATCH_ELEMENT_COUNT": 2004,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": 2007,
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": 3007,
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": 3000,
    "BATCH_ITEM_SHAPE": 2004,
    "BATCH_ITEM_SHAPE_FLATTEN": 2004,
}
"""Kinds of batch inputs, and what `Describe` makes of requests of 3 and 1 elements."""


@pytest.mark.parametrize(("kind", "total"), KINDS.items(), ids=KINDS)
def test_every_kind_of_batch_input(load, kind, total):
    ragged = (
        f'max_batch_size: 8 batch_input {{ kind: {kind} target_name: "made" data_type: TYPE_INT32 '
        'source_input: "values" } '
        'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "y" source_input: "values" }'
    )
    inputs = [("values", "TYPE_FP32", "-1 allow_ragged_batch: true")]
    (instance,) = load(Describe(), inputs, [("y", "TYPE_FP32", "-1")], more=ragged)
    requests = [InferRequest({"values": np.array([values], np.float32)}, 1, no_reply) for values in ([1, 2, 3], [4])]
    instance.execute(batch := Batch(requests, 2))
    assert [result.outputs["y"].tolist() for result in batch.results] == [[[total] * 3], [[total]]]


@pytest.mark.parametrize("told", [None, "1", "6"], ids=["by nobody", "by Ray for a fraction of a CPU", "by somebody"])
@pytest.mark.parametrize("count", [1, 2])
def test_instances_share_the_cpus_of_the_node_unless_told_otherwise(load, monkeypatch, told, count):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    torch.set_num_threads(1)
    load(Double(), fp32("x"), fp32("y"), count=count)
    cpus = 6 if told == "6" else len(os.sched_getaffinity(0))
    assert torch.get_num_threads() == max(1, cpus // count)


THREADS = 'parameters {{ key: "INTRA_OP_THREAD_COUNT" value {{ string_value: "{}" }} }}'


@pytest.mark.parametrize("count", ["0", "-1"])
def test_a_thread_count_below_one_is_none(load, count):
    torch.set_num_threads(1)
    load(Double(), fp32("x"), fp32("y"), more=THREADS.format(count))
    assert torch.get_num_threads() == len(os.sched_getaffinity(0))


def test_thread_counts_are_set(load):
    load(Double(), fp32("x"), fp32("y"), more=THREADS.format(3))
    assert torch.get_num_threads() == 3
    with pytest.raises(ParameterError, match="'INTRA_OP_THREAD_COUNT' is not an integer: 'all'"):
        load(None, [], [], more=THREADS.format("all"))


class ScalarAndNumber(torch.nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, int]:  # noqa: UP006
        return x.sum(), 7


@pytest.mark.parametrize(
    ("module", "outputs", "message"),
    [
        (
            Double(),
            [("y", "TYPE_FP64", "[-1]")],
            "configuration expects datatype TYPE_FP64 for output 'y', model provides TYPE_FP32",
        ),
        (
            Double(),
            [("y", "TYPE_STRING", "[-1]")],
            "configuration expects datatype TYPE_STRING for output 'y', model provides TYPE_FP32",
        ),
        (
            Double(),
            fp32("y__3"),
            "The output y__3 in the model configuration refers to an output index which doesn't exist. This model has 1 "
            "outputs",
        ),
        (ScalarAndNumber(), fp32("y"), "output 'y' is a scalar which is not supported."),
        (ScalarAndNumber(), fp32("y__1"), "output 'y__1' must be of type Tensor or List[str]."),
    ],
    ids=["datatype", "strings", "index", "scalar", "number"],
)
@pytest.mark.parametrize("more", ["", "max_batch_size: 8"])
def test_other_outputs_than_configured_are_errors(load, module, outputs, message, more):
    [instance] = load(module, fp32("x"), outputs, more=more)
    with pytest.raises(InvalidArgument) as raised:
        run(instance, {"x": floats(1) if more else floats(1)[0]})
    assert raised.value.message == message


class FirstTwo(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:2]


class Twice(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x])


def test_an_output_with_too_few_rows_fails_the_requests_that_have_none(load):
    [instance] = load(FirstTwo(), fp32("x"), fp32("y"))
    first, (kind, message) = run(instance, {"x": floats(1)}, {"x": np.float32([[2], [3]])})
    assert first == {"y": [[1]]}
    assert kind is Unsupported and message.endswith("expected batch size of atleast 3 in model output, got 2")


def test_an_output_with_too_many_rows_is_an_error(load):
    [instance] = load(Twice(), fp32("x"), fp32("y"))
    with pytest.raises(Internal, match=r"expected batch size of 1 in model output, got shape \[2, 1\]"):
        run(instance, {"x": floats(1)})


def test_exception_of_the_module_tells_its_message_and_no_path(load, caplog):
    [instance] = load(Fail(), fp32("x"), fp32("y"))
    with pytest.raises(Internal) as raised:
        run(instance, {"x": floats(1)})
    assert raised.value.message == "PyTorch execute failure: RuntimeError: AssertionError: only negative numbers"
    assert "Traceback" in caplog.text


ECHOED = b"CUDA error: device-side assert triggered"


def test_what_a_client_has_sent_is_no_error_of_a_gpu(load):
    [instance] = load(Lookup(), [("words", "TYPE_STRING", "[1]")], [("y", "TYPE_STRING", "[1]")])
    with pytest.raises(Internal, match="device-side assert") as raised:
        run(instance, {"words": np.array([[ECHOED]], object)})
    assert not isinstance(raised.value, GpuFault)


@pytest.mark.parametrize("lost", [True, False])
def test_a_gpu_is_lost_if_it_still_fails_after_the_batch(load, monkeypatch, lost):
    def synchronize(device):
        assert device == 0
        if lost:
            raise RuntimeError("CUDA error: device-side assert triggered")

    [instance] = load(Fail(), fp32("x"), fp32("y"), kind="MODEL")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(Internal) as raised:
        run(instance, {"x": floats(1)})
    assert isinstance(raised.value, GpuFault) == lost


class OfABrokenGpu(torch.nn.Module):
    """Returns what can be made, but not read, as a GPU's memory after a kernel has failed."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.empty([1, 1], device="meta")


def test_a_result_that_cannot_be_read_is_a_failure_of_the_model(load):
    [instance] = load(OfABrokenGpu(), fp32("x"), fp32("y"), kind="MODEL")
    with pytest.raises(Internal, match="PyTorch execute failure: "):
        run(instance, {"x": floats(1)})


def test_a_module_that_was_saved_in_training_mode_is_evaluated(load):
    [instance] = load(torch.nn.Dropout(0.9), [("input", "TYPE_FP32", "[-1]")], fp32("y"))
    assert run(instance, {"input": floats(*[1] * 50)}) == [{"y": [[1] * 50]}]


def test_missing_file_is_named_inside_the_repository(load):
    with pytest.raises(ModelLoadError) as raised:
        load(None, fp32("x"), fp32("y"))
    assert raised.value.reason == "unable to find 'net/1/model.pt' for model instance 'net_0'"


class Gadget:
    def __reduce__(self):
        return (Path.touch, (Path(sys.argv[0] + ".never"),))


@pytest.mark.parametrize("file", ["model.pt", "model.pth"])
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_pickles_are_refused_unread(load, tmp_path, file, legacy):
    (tmp_path / "net" / "1").mkdir(parents=True)
    torch.save({"gadget": Gadget()}, tmp_path / "net" / "1" / file, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ModelLoadError, match=f"'net/1/{file}' is not TorchScript; pickled modules"):
        load(None, fp32("x"), fp32("y"), file=file)
    assert not Path(sys.argv[0] + ".never").exists()


def test_broken_file_is_a_reason(load, tmp_path):
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "1" / "model.pt2").write_bytes(b"not a package")
    with pytest.raises(ModelLoadError, match="failed to load model 'net': "):
        load(None, fp32("x"), fp32("y"), file="model.pt2")


@pytest.mark.parametrize(
    ("made_for", "kind", "needed"),
    [("cpu", "GPU", "KIND_CPU"), ("cuda", "CPU", "KIND_GPU"), ("cuda", "MODEL", "KIND_GPU")],
)
def test_a_package_runs_on_the_device_that_it_is_compiled_for(load, tmp_path, monkeypatch, made_for, kind, needed):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    (tmp_path / "net" / "1").mkdir(parents=True)
    with ZipFile(tmp_path / "net" / "1" / "model.pt2", "w") as package:
        package.writestr("model/archive_format", "pt2")
        metadata = json.dumps({"AOTI_DEVICE_KEY": made_for})
        package.writestr("model/data/aotinductor/model/net.wrapper_metadata.json", metadata)
    with pytest.raises(ModelLoadError) as raised:
        load(None, fp32("x"), fp32("y"), file="model.pt2", kind=kind)
    assert raised.value.reason == f"'model.pt2' is compiled for {made_for}: every instance has to be {needed}"


def test_gpu_instance_needs_a_gpu(load, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    load(Double(), fp32("x"), fp32("y"))
    config = text_format.Parse('name: "net" backend: "pytorch"', ModelConfig())
    version = tmp_path / "net" / "1"
    package = ModelPackage("net", 1, config, str(version.parent), str(version), str(version / "model.pt"))
    with pytest.raises(ModelLoadError, match="model instance 'net_0' is of KIND_GPU but PyTorch finds no GPU"):
        PyTorchBackend().load(package, [InstanceSpec("net_0", "GPU", 0)])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
def test_gpu_instances_answer_as_on_the_cpu(load, tmp_path):
    load(Add(), fp32("left", "right"), fp32("sum", "difference"))
    version = tmp_path / "net" / "1"
    config = text_format.Parse(
        'name: "net" backend: "pytorch" max_batch_size: 8 '
        + " ".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: [-1] }}' for name in ("left", "right"))
        + " ".join(f' output {{ name: "{name}" data_type: TYPE_FP32 dims: [-1] }}' for name in ("sum", "difference")),
        ModelConfig(),
    )
    package = ModelPackage("net", 1, config, str(version.parent), str(version), str(version / "model.pt"))
    instances = PyTorchBackend().load(package, [InstanceSpec(f"net_{index}", "GPU", 0) for index in range(2)])
    for instance in instances:
        results = run(instance, *({"left": floats(n), "right": floats(1)} for n in range(3)))
        assert results == [{"sum": [[n + 1]], "difference": [[n - 1]]} for n in range(3)]
