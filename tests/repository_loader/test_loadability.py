"""What loading would refuse is refused when the repository is read, at its place in the text."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions
from tests.repository_loader.repositories import BATCHING_ONNX, PYTHON_MODEL, TENSORS, onnx_model, write

STEP = 'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
FLAT = 'input { name: "X" data_type: TYPE_FP32 dims: 4 } output { name: "Y" data_type: TYPE_FP32 dims: 4 }'

SEQUENCE = onnx_model({"X": ["n", 4]}, {})
SEQUENCE.graph.output.append(helper.make_tensor_sequence_value_info("Z", TensorProto.FLOAT, None))
SEQUENCE_ONNX = SEQUENCE.SerializeToString()

REFUSED: dict[str, tuple[dict[str, str | bytes | None], str, str]] = {
    "unknown backend": (
        {"m/1/model.mine": b"", "m/config.pbtxt": f'\nbackend: "mine" {FLAT}'},
        "2:1",
        "unable to find backend library for backend 'mine', try specifying runtime on the model configuration. "
        "Eagleray has onnxruntime, python, pytorch and tensorrt",
    ),
    "openvino": (
        {"m/1/model.xml": b"", "m/config.pbtxt": FLAT},
        "1:1",
        "unable to load model 'm', backend 'openvino' is not supported: convert the model to ONNX",
    ),
    "tensorflow": (
        {"m/1/model.savedmodel": None, "m/config.pbtxt": f'\n\n  platform: "tensorflow_savedmodel" {FLAT}'},
        "1:1",
        "unable to load model 'm', backend 'tensorflow' is not supported: convert the model to ONNX (tf2onnx)",
    ),
    "unknown backend without tensors": (
        {"m/1/weights": b"", "m/config.pbtxt": 'backend: "mine"'},
        "1:1",
        "unable to find backend library for backend 'mine', try specifying runtime on the model configuration. "
        "Eagleray has onnxruntime, python, pytorch and tensorrt",
    ),
    "tensorflow without its file": (
        {"m/1/weights": b"", "m/config.pbtxt": f'\nplatform: "tensorflow_graphdef" {FLAT}'},
        "1:1",
        "unable to load model 'm', backend 'tensorflow' is not supported: convert the model to ONNX (tf2onnx)",
    ),
    "misspelt platform": (
        {"m/1/model.onnx": BATCHING_ONNX, "m/config.pbtxt": '\nplatform: "onnxruntim" backend: "onnxruntime"'},
        "2:1",
        "unexpected 'platform' and 'backend' pair, got:onnxruntim, onnxruntime",
    ),
    "runtime": (
        {"m/1/model.py": PYTHON_MODEL, "m/config.pbtxt": f'platform: "onnxruntime_onnx" {FLAT}\nruntime: "model.py"'},
        "2:1",
        "unable to find Python backend based backend library 'model.py' for model 'm', searched: 'onnxruntime/model.py' in "
        "the backend directory and in the model's folder",
    ),
    "another library": (
        {"m/1/model.onnx": BATCHING_ONNX, "m/config.pbtxt": 'runtime: "libmine.so"'},
        "1:1",
        "unable to load model 'm', 'runtime' is not supported: backends are part of Eagleray, and no library is loaded",
    ),
    "engine without a GPU": (
        {"m/1/model.plan": b"x", "m/config.pbtxt": f'{FLAT}\ninstance_group {{ name: "g" }}'},
        "2:1",
        "unable to load model 'm', backend 'tensorrt' needs a GPU and instance group g is on KIND_CPU",
    ),
    "KIND_MODEL": (
        {"m/1/model.onnx": BATCHING_ONNX, "m/config.pbtxt": "instance_group {\n kind: KIND_MODEL }"},
        "2:2",
        "unable to load model 'm', KIND_MODEL is not supported by onnxruntime",
    ),
    "passive groups alone": (
        {"m/1/model.onnx": BATCHING_ONNX, "m/config.pbtxt": "\n\ninstance_group { passive: true }"},
        "3:1",
        "model 'm' has no instance group that is not passive",
    ),
    "dims": (
        {
            "m/1/model.onnx": BATCHING_ONNX,
            "m/config.pbtxt": 'max_batch_size: 2 input { name: "X" data_type: TYPE_FP32\ndims: 5 } '
            'output { name: "Y" data_type: TYPE_FP32 dims: 4 }',
        },
        "2:1",
        "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,4]) but the model configuration specifies 2 "
        "dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        "making complete shape [-1,5])",
    ),
    "datatype": (
        {
            "m/1/model.onnx": BATCHING_ONNX,
            "m/config.pbtxt": 'max_batch_size: 2 input { name: "X" data_type: TYPE_FP32 dims: 4 }\n'
            'output { name: "Y"\n\ndata_type: TYPE_INT8 dims: 4 }',
        },
        "4:1",
        "unable to load model 'm', configuration expects datatype TYPE_INT8 for output 'Y', model provides TYPE_FP32",
    ),
    "name": (
        {
            "m/1/model.onnx": BATCHING_ONNX,
            "m/config.pbtxt": 'max_batch_size: 2 input { name: "Z" data_type: TYPE_FP32 dims: 4 }'
            'output { name: "Y" data_type: TYPE_FP32 dims: 4 }',
        },
        "1:27",
        "unexpected inference input 'Z', allowed inputs are: X",
    ),
    "thread count": (
        {
            "m/1/model.onnx": BATCHING_ONNX,
            "m/config.pbtxt": '\nparameters { key: "intra_op_thread_count" value { string_value: "two" } }',
        },
        "2:12",
        "unable to load model 'm', 'intra_op_thread_count' is not an integer: 'two'",
    ),
    "short file of warm-up data": (
        {
            "m/1/model.py": PYTHON_MODEL,
            "m/warmup/x": b"123456789012345",
            "m/config.pbtxt": f'backend: "python" {FLAT}\nmodel_warmup {{ batch_size: 1 inputs {{ key: "X" value {{ '
            'data_type: TYPE_FP32 dims: 4\ninput_data_file: "x" } } }',
        },
        "3:1",
        "warmup setting expects 16 bytes for input 'X', but the data provided is 15",
    ),
    "short file of an initial state": (
        {
            "m/1/model.py": PYTHON_MODEL,
            "m/initial_state/s": b"",
            "m/config.pbtxt": f'backend: "python" {FLAT}\nsequence_batching {{ state {{ input_name: "I" output_name: "O" '
            'data_type: TYPE_STRING dims: 2\ninitial_state { name: "s" data_type: TYPE_STRING dims: 2 data_file: "s" } } }',
        },
        "3:1",
        "initial_state setting expects 8 bytes for state 'I', but the data provided is 0",
    ),
    "execution mode": (
        {
            "m/1/model.onnx": BATCHING_ONNX,
            "m/config.pbtxt": '\nparameters { key: "execution_mode" value { string_value: "2" } }',
        },
        "2:12",
        "unable to load model 'm', 'execution_mode' is not 0 or 1: '2'",
    ),
    "many threads": (
        {
            "m/1/model.onnx": BATCHING_ONNX,
            "m/config.pbtxt": '\nparameters { key: "inter_op_thread_count" value { string_value: "1025" } }',
        },
        "2:12",
        "unable to load model 'm', 'inter_op_thread_count' is not an integer of up to 1024: '1025'",
    ),
    "truth value": (
        {
            "m/1/model.pt": b"",
            "m/config.pbtxt": f'backend: "pytorch" {FLAT}'
            '\nparameters { key: "INFERENCE_MODE" value { string_value: "maybe" } }',
        },
        "2:12",
        "unable to load model 'm', 'INFERENCE_MODE' is not a boolean: 'maybe'",
    ),
    "accelerator": (
        {
            "m/1/model.onnx": BATCHING_ONNX,
            "m/config.pbtxt": "optimization { execution_accelerators {\n"
            'cpu_execution_accelerator { name: "abacus" } } }',
        },
        "2:29",
        "unknown Execution Accelerator 'abacus' is requested",
    ),
    "pickle": (
        {"m/1/model.pt": b"\x80\x04.", "m/config.pbtxt": FLAT},
        "1:1",
        "'m/1/model.pt' is not TorchScript; pickled modules and state dicts are not loaded, save the model with "
        "torch.jit.script(model).save(path), or bring its class in 'model.py' and set 'runtime' to 'model.py'",
    ),
    "empty": ({"m/1/model.pt": b"", "m/config.pbtxt": FLAT}, "1:1", "'m/1/model.pt' is empty"),
    "pointer": (
        {
            "m/1/model.pt": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
            "m/config.pbtxt": FLAT,
        },
        "1:1",
        "'m/1/model.pt' is a pointer of Git LFS and not the file itself; run: git lfs pull",
    ),
    "sequence": (
        {
            "m/1/model.onnx": SEQUENCE_ONNX,
            "m/config.pbtxt": 'input { name: "X" data_type: TYPE_FP32 dims: [-1, 4] }\n'
            'output { name: "Z" data_type: TYPE_FP32 dims: 4 }',
        },
        "2:1",
        "unable to load model 'm', unsupported datatype 'ONNX_TYPE_SEQUENCE' for output 'Z'",
    ),
    "no Python": (
        {"m/1/model.txt": b"", "m/config.pbtxt": f'backend: "python" {FLAT}\ndefault_model_filename: "model.txt"'},
        "2:1",
        "the model name in 'default_model_filename' must end with '.py', got 'm/1/model.txt'",
    ),
    "responses kept of an ensemble with a decoupled step": (
        {
            "a/1/model.py": PYTHON_MODEL,
            "a/config.pbtxt": f'backend: "python" {FLAT} model_transaction_policy {{ decoupled: true }}',
            "m/1": None,
            "m/config.pbtxt": f'platform: "ensemble" {FLAT} ensemble_scheduling {{ '
            f'step {{ model_name: "a" model_version: -1 {STEP} }} }}\nresponse_cache {{ enable: true }}',
        },
        "2:1",
        "Response Cache does not currently support model m with 'decoupled' transaction policy. "
        "Please disable the response cache.",
    ),
}


@pytest.mark.parametrize(("files", "place", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_loading_would_refuse_is_refused_with_its_place(
    tmp_path: Path, files: dict[str, str | bytes | None], place: str, reason: str
) -> None:
    write(tmp_path, files)
    model = load_repositories([str(tmp_path)], LoaderOptions(), None).models["m"]
    assert model.failure == reason and model.packages == ()
    assert f"{tmp_path}/m/config.pbtxt:{place}: error: {reason}" in map(str, model.findings)


def test_a_platform_that_is_none_is_refused_once(tmp_path: Path) -> None:
    write(tmp_path, {"m/1/model.onnx": BATCHING_ONNX, "m/config.pbtxt": 'platform: "onnxruntime"'})
    findings = load_repositories([str(tmp_path)], LoaderOptions(), None).models["m"].findings
    assert [finding.message for finding in findings] == [
        "unexpected platform type 'onnxruntime' for m; known are ensemble, onnxruntime_onnx, pytorch_libtorch, "
        "tensorrt_plan and torch_aoti"
    ]


def test_torchscript_is_told_by_what_is_in_the_archive(tmp_path: Path) -> None:
    write(tmp_path, {"m/1": None, "m/config.pbtxt": FLAT})
    with zipfile.ZipFile(tmp_path / "m/1/model.pt", "w") as archive:
        archive.writestr("archive/constants.pkl", b"")
    assert load_repositories([str(tmp_path)], LoaderOptions(), None).models["m"].failure is None


@pytest.mark.parametrize(
    ("entry", "failure"),
    [
        ("model/data/aotinductor/model/a.wrapper.so", None),
        ("data/aotinductor/model/a.so", None),
        (
            "model/models/model.json",
            "'m/1/model.pt2' is a program that torch.export has saved; compile it with "
            "torch._inductor.aoti_compile_and_package(program, package_path=path)",
        ),
    ],
)
def test_a_package_is_told_from_a_program_by_what_is_in_the_archive(
    tmp_path: Path, entry: str, failure: str | None
) -> None:
    write(tmp_path, {"m/1": None, "m/config.pbtxt": FLAT})
    with zipfile.ZipFile(tmp_path / "m/1/model.pt2", "w") as archive:
        archive.writestr(entry, b"")
    assert load_repositories([str(tmp_path)], LoaderOptions(), None).models["m"].failure == failure


@pytest.mark.parametrize("file", ["model.pt", "model.pt2"])
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-30], lambda data: data.replace(b"PK\1\2", b"PK..")], ids=["cut", "broken"]
)
def test_an_archive_that_is_not_whole_is_called_so(tmp_path: Path, file: str, damage: Callable[[bytes], bytes]) -> None:
    write(tmp_path, {"m/1": None, "m/config.pbtxt": FLAT})
    path = tmp_path / "m/1" / file
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/constants.pkl", b"weights")
    path.write_bytes(damage(path.read_bytes()))
    failure = load_repositories([str(tmp_path)], LoaderOptions(), None).models["m"].failure
    assert failure == (
        f"'m/1/{file}' is cut off or damaged: it begins as an archive, whose list of entries cannot be read"
    )


def test_what_is_in_the_format_of_onnx_runtime_is_left_to_that(tmp_path: Path) -> None:
    config = f'backend: "onnxruntime" default_model_filename: "model.ort" {FLAT}'
    write(tmp_path, {"m/1/model.ort": b"\x20\0\0\0ORTM", "m/config.pbtxt": config})
    assert load_repositories([str(tmp_path)], LoaderOptions(), None).models["m"].failure is None


def test_an_engine_is_loadable_where_there_is_a_gpu(tmp_path: Path) -> None:
    write(tmp_path, {"m/1/model.plan": b"x", "m/config.pbtxt": TENSORS})
    assert load_repositories([str(tmp_path)], LoaderOptions(gpu_count=1), None).models["m"].failure is None


def test_a_warmup_sample_that_is_never_run_keeps_no_model_from_loading(tmp_path: Path) -> None:
    given = 'inputs { key: "X" value { data_type: TYPE_INT8 dims: [ 8, 4 ] input_data_file: "gone" } }'
    text = f'backend: "python" {TENSORS}\nmodel_warmup {{ name: "golden" batch_size: 0 {given} }}'
    write(tmp_path, {"m/1/model.py": PYTHON_MODEL, "m/config.pbtxt": text})
    model = load_repositories([str(tmp_path)], LoaderOptions(), None).models["m"]
    assert model.failure is None
    warning = "2:1: warning: 'model_warmup[0]' of model 'm' has no effect: it has no batch_size"
    assert list(map(str, model.findings)) == [f"{tmp_path}/m/config.pbtxt:{warning}"]


def test_warnings_stand_where_the_field_does(tmp_path: Path) -> None:
    text = f'backend: "python" {TENSORS}\noptimization {{\n  graph {{ level: 1 }} }}'
    write(tmp_path, {"m/1/model.py": PYTHON_MODEL, "m/config.pbtxt": text})
    model = load_repositories([str(tmp_path)], LoaderOptions(), None).models["m"]
    assert model.failure is None
    assert [str(finding) for finding in model.findings] == [
        f"{tmp_path}/m/config.pbtxt:3:3: warning: 'optimization.graph' of model 'm' has no effect: only ONNX Runtime "
        "optimizes graphs when it loads them"
    ]
