"""Each field that has no effect, or that keeps a model from being loaded: a configuration, and what is said of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.configuration_page import page
from repository_loader.field_check import ignored_fields, refused_fields
from repository_loader.field_rules import COLUMNS, FIELDS
from repository_loader.parameters import ignored_parameters

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

IGNORED: dict[str, tuple[str, str, str, str]] = {
    "runtime": (
        "ensemble",
        'runtime: "x.so"',
        "runtime",
        "backends are part of Eagleray, and no library is loaded",
    ),
    "input.optional": (
        "tensorrt",
        "input { optional: true }",
        "input[0].optional",
        "an engine needs every input, a request without it fails",
    ),
    "batch_input": (
        "python",
        'batch_input { source_input: "X" }',
        "batch_input",
        "only backends that join requests to one batch use it",
    ),
    "batch_output": (
        "ensemble",
        'batch_output { source_input: "X" }',
        "batch_output",
        "only backends that join requests to one batch use it",
    ),
    "optimization.graph": (
        "pytorch",
        "optimization { graph { level: 1 } }",
        "optimization.graph",
        "only ONNX Runtime optimizes graphs when it loads them",
    ),
    "optimization.priority": (
        "onnxruntime",
        "optimization { priority: PRIORITY_MAX }",
        "optimization.priority",
        "the backend makes its CUDA streams itself",
    ),
    "optimization.cuda": (
        "tensorrt",
        "optimization { cuda { graphs: true } }",
        "optimization.cuda",
        "CUDA graphs, busy waiting and streams for copies are not used",
    ),
    "optimization.execution_accelerators.gpu_execution_accelerator": (
        "pytorch",
        'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }',
        "optimization.execution_accelerators.gpu_execution_accelerator",
        "only ONNX Runtime has execution accelerators",
    ),
    "optimization.execution_accelerators.cpu_execution_accelerator": (
        "python",
        'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }',
        "optimization.execution_accelerators.cpu_execution_accelerator",
        "only ONNX Runtime has execution accelerators",
    ),
    "optimization.input_pinned_memory": (
        "python",
        "optimization { input_pinned_memory { enable: true } }",
        "optimization.input_pinned_memory",
        "the backend moves tensors itself and never from pinned memory",
    ),
    "optimization.output_pinned_memory": (
        "pytorch",
        "optimization { output_pinned_memory { enable: true } }",
        "optimization.output_pinned_memory",
        "the backend moves tensors itself and never from pinned memory",
    ),
    "optimization.gather_kernel_buffer_threshold": (
        "tensorrt",
        "optimization { gather_kernel_buffer_threshold: 9 }",
        "optimization.gather_kernel_buffer_threshold",
        "inputs are not joined by a kernel",
    ),
    "optimization.eager_batching": (
        "tensorrt",
        "optimization { eager_batching: true }",
        "optimization.eager_batching",
        "a batch is joined when an instance is free for it",
    ),
    "ensemble_scheduling.step.model_namespace": (
        "ensemble",
        'ensemble_scheduling { step { model_name: "a" } step { model_namespace: "n" } }',
        "ensemble_scheduling.step[1].model_namespace",
        "the model is found by its name, in the ensemble's own repository first",
    ),
    "instance_group.secondary_devices": (
        "tensorrt",
        "instance_group { secondary_devices { device_id: 1 } }",
        "instance_group[0].secondary_devices",
        "deep learning accelerators are not used",
    ),
    "instance_group.host_policy": (
        "python",
        'instance_group { host_policy: "numa_0" }',
        "instance_group[0].host_policy",
        "threads and memory are not bound to cores or NUMA nodes",
    ),
    "default_model_filename": (
        "ensemble",
        'default_model_filename: "model.py"',
        "default_model_filename",
        "an ensemble opens no file",
    ),
    "cc_model_filenames": (
        "python",
        'cc_model_filenames { key: "7.5" value: "other.py" }',
        "cc_model_filenames",
        "the same is run on every device",
    ),
    "model_operations": (
        "pytorch",
        'model_operations { op_library_filename: "ops.so" }',
        "model_operations",
        "only ONNX Runtime loads libraries of operators",
    ),
}

REFUSED: dict[str, tuple[str, str, str, str]] = {
    "runtime": (
        "pytorch",
        'runtime: "libmine.so"',
        "runtime",
        "backends are part of Eagleray, and no library is loaded",
    ),
    "input.is_shape_tensor": (
        "tensorrt",
        "input { is_shape_tensor: true }",
        "input[0].is_shape_tensor",
        "shape tensors are not offered",
    ),
    "input.is_non_linear_format_io": (
        "tensorrt",
        "input { is_non_linear_format_io: true }",
        "input[0].is_non_linear_format_io",
        "engines with non-linear formats are not offered",
    ),
    "output.is_shape_tensor": (
        "tensorrt",
        "output { is_shape_tensor: true }",
        "output[0].is_shape_tensor",
        "shape tensors are not offered",
    ),
    "output.is_non_linear_format_io": (
        "tensorrt",
        "output { is_non_linear_format_io: true }",
        "output[0].is_non_linear_format_io",
        "engines with non-linear formats are not offered",
    ),
    "input.allow_ragged_batch": (
        "tensorrt",
        "input { allow_ragged_batch: true }",
        "input[0].allow_ragged_batch",
        "engines are given no ragged batches",
    ),
    "batch_input": (
        "tensorrt",
        'batch_input { source_input: "X" }',
        "batch_input",
        "only backends that join requests to one batch use it",
    ),
    "batch_output": (
        "tensorrt",
        'batch_output { source_input: "X" }',
        "batch_output",
        "only backends that join requests to one batch use it",
    ),
}
"""Where Eagleray refuses what Triton has; what Triton refuses too is among the rules of `test_validation`."""


def config(column: str, text: str) -> ModelConfig:
    kind = 'platform: "ensemble"' if column == "ensemble" else f'backend: "{column}"'
    return text_format.Parse(f'name: "m" {kind} {text}', ModelConfig())


@pytest.mark.parametrize(("column", "text", "field", "because"), IGNORED.values(), ids=IGNORED)
def test_a_field_without_effect_is_warned_of(column: str, text: str, field: str, because: str) -> None:
    (fault,) = ignored_fields(config(column, text))
    assert (fault.field, fault.message) == (field, f"'{field}' of model 'm' has no effect: {because}")


@pytest.mark.parametrize(("column", "text", "field", "because"), REFUSED.values(), ids=REFUSED)
def test_a_field_that_cannot_be_had_is_refused(column: str, text: str, field: str, because: str) -> None:
    (fault,) = refused_fields(config(column, text))
    assert (fault.field, fault.message) == (field, f"unable to load model 'm', '{field}' is not supported: {because}")


def test_these_tables_have_every_field_that_may_be_warned_of_or_refused_here() -> None:
    assert set(IGNORED) == {path for path, rule in FIELDS.items() if rule.warned}
    assert set(REFUSED) <= {path for path, rule in FIELDS.items() if rule.refused and rule.because}


HARMLESS = {
    "the default runtime": ("pytorch", 'runtime: "libtriton_pytorch.so"'),
    "a Python-based backend": ("pytorch", 'runtime: "model.py"'),
    "no pinned memory": ("onnxruntime", "optimization { input_pinned_memory { } output_pinned_memory { } }"),
    "no cache": ("onnxruntime", "response_cache { enable: false }"),
    "one profile": ("tensorrt", 'instance_group { profile: "1" }'),
}


@pytest.mark.parametrize(("column", "text"), HARMLESS.values(), ids=HARMLESS)
def test_nothing_is_said_of_what_is_done_anyway(column: str, text: str) -> None:
    assert [*ignored_fields(config(column, text)), *refused_fields(config(column, text))] == []


IDLE_POLICIES = {
    "of levels that there are not": (
        "priority_queue_policy { key: 1 value { max_queue_size: 1 timeout_action: DELAY } }",
        {"priority_queue_policy": "there are no priority_levels"},
    ),
    "of a timeout that there is not": (
        "default_queue_policy { timeout_action: DELAY allow_timeout_override: true max_queue_size: 1 }",
        {
            "default_queue_policy.timeout_action": "there is no default_timeout_microseconds",
            "default_queue_policy.allow_timeout_override": "there is no default_timeout_microseconds",
        },
    ),
    "of a level's timeout": (
        "priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 1 value { timeout_action: DELAY } }",
        {'priority_queue_policy["1"].timeout_action': "there is no default_timeout_microseconds"},
    ),
    "in use": (
        "default_queue_policy { timeout_action: DELAY allow_timeout_override: true default_timeout_microseconds: 1 }",
        {},
    ),
}


@pytest.mark.parametrize(("text", "expected"), IDLE_POLICIES.values(), ids=IDLE_POLICIES)
def test_queue_policies_that_never_hold_are_warned_of(text: str, expected: dict[str, str]) -> None:
    faults = ignored_fields(config("python", f"dynamic_batching {{ {text} }}"))
    assert {fault.field: fault.message for fault in faults} == {
        (path := f"dynamic_batching.{field}"): f"'{path}' of model 'm' has no effect: {because}"
        for field, because in expected.items()
    }


def test_profiles_beyond_the_first_are_warned_of() -> None:
    (fault,) = ignored_fields(config("tensorrt", 'instance_group { profile: [ "1", "2", "3" ] }'))
    assert fault.field == "instance_group[0].profile[1]"
    assert fault.message.endswith("has no effect: instances use the first profile only")


def test_metrics_that_cannot_be_customised_are_warned_of() -> None:
    families = ("nv_inference_request_duration_us", "nv_inference_first_response_histogram_ms", "f")
    controls = " ".join(
        f'metric_control {{ metric_identifier {{ family: "{family}" }} histogram_options {{ buckets: 1 }} }}'
        for family in families
    )
    faults = list(ignored_fields(config("python", f"model_metrics {{ {controls} }}")))
    assert [fault.field for fault in faults] == [
        f"model_metrics.metric_control[{index}].metric_identifier.family" for index in (0, 2)
    ]
    assert [fault.message for fault in faults] == [
        f"Metric family '{family}' in 'metric_identifier' is not a customizable metric in Triton core."
        for family in (families[0], families[2])
    ]


def test_every_field_of_the_message_has_a_row() -> None:
    assert [path for path in _paths(ModelConfig.DESCRIPTOR, "") if path not in FIELDS] == []


def test_every_row_is_a_field_of_the_message() -> None:
    assert FIELDS.keys() <= set(_paths(ModelConfig.DESCRIPTOR, ""))


@pytest.mark.parametrize("rule", FIELDS.values(), ids=FIELDS)
def test_every_row_says_what_happens(rule: Any) -> None:
    verdicts = {rule.verdict(column) for column in COLUMNS}
    assert bool(rule.meaning) == ("yes" in verdicts) or rule.harmless
    assert rule.because or "warning" not in verdicts


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python -m repository_loader.configuration_page > docs/configuration.md"


PARAMETERS = {
    "batch strategy": (
        "pytorch",
        "TRITON_BATCH_STRATEGY_PATH",
        "a.so",
        "batches form as `dynamic_batching` says, no library is loaded",
    ),
    "sessions of their own": (
        "onnxruntime",
        "share_session_between_instances",
        "false",
        "instances on one device always share a session",
    ),
    "unknown to the backend": ("onnxruntime", "colour", "red", "backend 'onnxruntime' does not know it"),
    "ensemble": ("ensemble", "colour", "red", "an ensemble has no parameters"),
    "fuser": ("pytorch", "ENABLE_NVFUSER", "true", "the executor and fuser of this PyTorch are not switched"),
    "misspelt": (
        "python",
        "eagleray.replica",
        "2",
        "Eagleray has no such parameter; did you mean 'eagleray.replicas'?",
    ),
    "unknown": ("python", "eagleray.zzz", "2", "Eagleray has no such parameter"),
    "time of another backend": (
        "onnxruntime",
        "eagleray.execution_timeout_ms",
        "50",
        "only batches of Python models are ended",
    ),
    "time of an ensemble": (
        "ensemble",
        "eagleray.execution_timeout_ms",
        "50",
        "only batches of Python models are ended",
    ),
}


def _with(column: str, key: str, value: str) -> ModelConfig:
    return config(column, f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')


@pytest.mark.parametrize(("column", "key", "value", "because"), PARAMETERS.values(), ids=PARAMETERS)
def test_a_parameter_without_effect_is_warned_of(column: str, key: str, value: str, because: str) -> None:
    (fault,) = ignored_parameters(_with(column, key, value))
    assert fault.field == f'parameters["{key}"]'
    assert fault.message == f"parameter '{key}' of model 'm' has no effect: {because}"


@pytest.mark.parametrize(
    ("column", "key", "value"),
    [
        ("python", "colour", "red"),
        ("python", "eagleray.execution_timeout_ms", "50"),
        ("onnxruntime", "", ""),
        ("python", "FORCE_CPU_ONLY_INPUT_TENSORS", "yes"),
        ("python", "FORCE_CPU_ONLY_INPUT_TENSORS", "no"),
        ("ensemble", "eagleray.placement", "packed"),
        ("onnxruntime", "intra_op_thread_count", "2"),
        ("onnxruntime", "share_session_between_instances", "true"),
    ],
)
def test_nothing_is_said_of_a_parameter_that_is_read(column: str, key: str, value: str) -> None:
    assert list(ignored_parameters(_with(column, key, value))) == []


@pytest.mark.parametrize(
    ("value", "more", "warned"),
    [
        ("no", "instance_group { kind: KIND_GPU }", False),
        ("no", "instance_group { kind: KIND_CPU } sequence_batching { }", False),
        ("no", "instance_group { kind: KIND_GPU } sequence_batching { }", True),
        ("no", "instance_group { kind: KIND_GPU } response_cache { enable: true }", True),
        ("yes", "instance_group { kind: KIND_GPU } sequence_batching { }", False),
        ("off", "instance_group { kind: KIND_GPU }", True),
    ],
)
def test_inputs_that_do_not_stay_on_a_gpu_are_warned_of(value: str, more: str, warned: bool) -> None:
    text = f'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ string_value: "{value}" }} }} {more}'
    faults = [fault.message for fault in ignored_parameters(config("python", text))]
    words = "inputs stay in GPU memory where it is 'no', of models without a sequence batcher and a response cache"
    assert [fault.endswith(words) for fault in faults] == [True] * warned


def _paths(descriptor: Any, prefix: str) -> Iterator[str]:
    """Yield the rows' paths, and those of fields that no row speaks for."""
    for field in descriptor.fields:
        path = prefix + field.name
        if path in FIELDS or field.message_type is None:
            yield path
        else:
            yield from _paths(field.message_type, f"{path}.")
