import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.validation import check_config, check_name

X = 'input { name: "X" data_type: TYPE_FP32 dims: 4 }'
Y = 'output { name: "Y" data_type: TYPE_FP32 dims: 4 }'
PYTHON = f'backend: "python" {X} {Y} '
ONNX = f'backend: "onnxruntime" {X} {Y} '
ENSEMBLE = f'platform: "ensemble" {X} {Y} '
STEP = 'model_name: "a" input_map { key: "x" value: "X" } output_map { key: "y" value: "Y" }'


def faults(text: str, gpu_count: int = 0) -> list[tuple[str, str]]:
    config = text_format.Parse(f'name: "m" {text}', ModelConfig())
    return [(fault.field, fault.message) for fault in check_config(config, range(gpu_count))]


def tensor(text: str) -> str:
    return f'backend: "python" {Y} input {{ {text} }}'


def sequence(text: str) -> str:
    return f"{PYTHON} max_batch_size: 4 sequence_batching {{ {text} }}"


def ensemble(steps: str, more: str = "") -> str:
    return f"{ENSEMBLE} {more} ensemble_scheduling {{ {steps} }}"


RULES = {
    "platform": (f"{X} {Y}", "platform", "unexpected platform type '' for m"),
    "ensemble with a backend": (
        ensemble(f"step {{ {STEP} }}", 'backend: "python"'),
        "backend",
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
    ),
    "pair": (
        f'platform: "onnxruntime_onnx" backend: "tensorrt" {X} {Y}',
        "platform",
        "unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, tensorrt",
    ),
    "scheduler of an ensemble": (
        f"{PYTHON} ensemble_scheduling {{ step {{ {STEP} }} }}",
        "ensemble_scheduling",
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
    ),
    "ensemble without scheduling": (
        ENSEMBLE,
        "platform",
        "ensemble scheduling must be set for ensemble m whose platform is ensemble",
    ),
    "batch size": (
        f"{PYTHON} max_batch_size: -1",
        "max_batch_size",
        "'max_batch_size' must be non-negative value for m",
    ),
    "input name": (tensor("dims: 1"), "input[0]", "model input must specify 'name' for m"),
    "output name": (f'backend: "python" {X} output {{ }}', "output[0]", "model output must specify 'name' for m"),
    "data type": (tensor('name: "A" dims: 1'), "input[0].data_type", "model input 'A' must specify 'data_type' for m"),
    "dims": (tensor('name: "A" data_type: TYPE_BOOL'), "input[0].dims", "model input 'A' must specify 'dims' for m"),
    "dimension": (
        tensor('name: "A" data_type: TYPE_BOOL dims: [ 1, 0 ]'),
        "input[0].dims",
        "model input 'A' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
    ),
    "format": (
        tensor('name: "A" data_type: TYPE_BOOL dims: [ 1, 2 ] format: FORMAT_NHWC'),
        "input[0].format",
        "model input NHWC/NCHW require 3 dims for m",
    ),
    "shape tensor": (
        tensor('name: "A" data_type: TYPE_BOOL dims: 1 is_shape_tensor: true'),
        "input[0].is_shape_tensor",
        "shape tensors are only supported for TensorRT platform for m",
    ),
    "empty reshape": (
        tensor('name: "A" data_type: TYPE_BOOL dims: 1 reshape { }'),
        "input[0].reshape",
        "model input 'A' cannot have empty reshape for non-batching model as scalar tensors are not supported for m",
    ),
    "size of reshape": (
        tensor('name: "A" data_type: TYPE_BOOL dims: [ 2, 3 ] reshape { shape: 5 }'),
        "input[0].reshape",
        "model input 'A' has different size for dims and reshape for m",
    ),
    "segments of reshape": (
        tensor('name: "A" data_type: TYPE_BOOL dims: [ 2, -1, 3 ] reshape { shape: [ 3, -1, 2 ] }'),
        "input[0].reshape",
        "model input 'A' has different size for dims and reshape for m",
    ),
    "wildcards of reshape": (
        tensor('name: "A" data_type: TYPE_BOOL dims: [ -1, -1 ] reshape { shape: [ -1 ] }'),
        "input[0].reshape",
        "model input 'A' has different number of variable-size dimensions for dims and reshape for m",
    ),
    "labels elsewhere": (
        f'backend: "python" {X} output {{ name: "Y" data_type: TYPE_FP32 dims: 1 label_filename: "../x" }}',
        "output[0].label_filename",
        "label file of model output 'Y' leaves the model's folder for m",
    ),
    "batch input sources": (
        f"{PYTHON} batch_input {{ kind: BATCH_ITEM_SHAPE data_type: TYPE_FP32 }}",
        "batch_input[0]",
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for m",
    ),
    "batch input type": (
        f'{PYTHON} batch_input {{ data_type: TYPE_BOOL source_input: "X" }}',
        "batch_input[0].data_type",
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
    ),
    "batch input source": (
        f'{PYTHON} batch_input {{ data_type: TYPE_FP32 source_input: "Q" }}',
        "batch_input[0].source_input",
        "unknown source input name 'Q' for m",
    ),
    "batch output target": (
        f'{PYTHON} batch_output {{ target_name: "Q" source_input: "X" }}',
        "batch_output[0].target_name",
        "unknown target output name 'Q' for m",
    ),
    "batch output twice": (
        f'{PYTHON} batch_output {{ target_name: ["Y", "Y"] source_input: "X" }}',
        "batch_output[0].target_name",
        "target output name 'Y' can only be specified once for m",
    ),
    "many instances": (
        f"{PYTHON} instance_group {{ count: 1000 }} instance_group {{ count: 25 }}",
        "instance_group",
        "model m has 1025 instances, more than 1024",
    ),
    "preferred size": (
        f"{PYTHON} max_batch_size: 4 dynamic_batching {{ preferred_batch_size: [ 1, 0 ] }}",
        "dynamic_batching.preferred_batch_size[1]",
        "dynamic batching preferred size must be positive for m",
    ),
    "large preferred size": (
        f"{PYTHON} dynamic_batching {{ preferred_batch_size: 1 }}",
        "dynamic_batching.preferred_batch_size[0]",
        "dynamic batching preferred size must be <= max batch size for m",
    ),
    "default priority": (
        f"{PYTHON} dynamic_batching {{ priority_levels: 2 }}",
        "dynamic_batching.default_priority_level",
        "default priority level must be in range [1, 2] for m",
    ),
    "priority policy": (
        f"{PYTHON} dynamic_batching {{ priority_levels: 2 default_priority_level: 1 "
        "priority_queue_policy { key: 3 value { } } }",
        'dynamic_batching.priority_queue_policy["3"]',
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    "ordering with priorities": (
        f"{PYTHON} dynamic_batching {{ preserve_ordering: true priority_levels: 2 default_priority_level: 1 }}",
        "dynamic_batching.preserve_ordering",
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    ),
    "ordering with delays": (
        f"{PYTHON} dynamic_batching {{ preserve_ordering: true "
        "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }",
        "dynamic_batching.preserve_ordering",
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    "many candidates": (
        sequence("oldest { max_candidate_sequences: 65537 }"),
        "sequence_batching.oldest.max_candidate_sequences",
        "sequence batching has 65537 slots on a device, more than 65536, for m",
    ),
    "many candidates in all instances": (
        sequence("oldest { max_candidate_sequences: 4096 }") + " instance_group { kind: KIND_CPU count: 17 }",
        "sequence_batching.oldest.max_candidate_sequences",
        "sequence batching has 69632 slots on a device, more than 65536, for m",
    ),
    "control without a name": (
        sequence("control_input { }"),
        "sequence_batching.control_input[0]",
        "sequence batching control tensor must have a name for m",
    ),
    "control twice": (
        sequence('control_input { name: "S" } control_input { name: "S" }'),
        "sequence_batching.control_input[1]",
        "sequence batching control tensor 'S' is specified for multiple control kinds for m",
    ),
    "kind twice": (
        sequence(
            'control_input [ { name: "S" control { int32_false_true: [ 0, 1 ] } }, '
            '{ name: "T" control { int32_false_true: [ 0, 1 ] } } ]'
        ),
        "sequence_batching.control_input[1].control[0]",
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
    ),
    "slot utilization": (
        sequence("direct { minimum_slot_utilization: 1.5 }"),
        "sequence_batching.direct.minimum_slot_utilization",
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
    ),
    "KIND_CPU with a GPU": (
        f'{PYTHON} instance_group {{ name: "g" count: 1 kind: KIND_CPU gpus: 0 }}',
        "instance_group[0].gpus",
        "instance group g of model m has kind KIND_CPU but specifies one or more GPUs",
    ),
    "KIND_GPU without GPUs": (
        f'{PYTHON} instance_group {{ name: "g" count: 1 kind: KIND_GPU }}',
        "instance_group[0].kind",
        "instance group g of model m has kind KIND_GPU but no GPUs are available; --kind-gpu-fallback-to-cpu "
        "runs it on the CPU",
    ),
    "profile": (
        f'{PYTHON} instance_group {{ name: "g" count: 1 kind: KIND_CPU profile: "0" }}',
        "instance_group[0].profile",
        "instance group g of model m specifies profile field which is only supported for TensorRT models",
    ),
    "warmup dims": (
        f'{PYTHON} model_warmup {{ batch_size: 1 inputs {{ key: "X" value {{ data_type: TYPE_FP32 dims: -1 zero_data: true }} }} }}',
        'model_warmup[0].inputs["X"].dims',
        "warmup setting expects all variable-size dimensions are specified for input 'X'",
    ),
    "warmup data": (
        f'{PYTHON} model_warmup {{ batch_size: 1 inputs {{ key: "X" value {{ data_type: TYPE_FP32 dims: 1 }} }} }}',
        'model_warmup[0].inputs["X"]',
        "warmup setting expects input 'X' to have input_data_type set",
    ),
    "warmup batch size": (
        f'{PYTHON} max_batch_size: 4 model_warmup {{ name: "w" batch_size: 5 }}',
        "model_warmup[0].batch_size",
        "failed to run warmup sample 'w': batch size 5 for 'm', max allowed is 4",
    ),
    "warmup batch without batches": (
        f'{PYTHON} model_warmup {{ name: "w" batch_size: 2 }}',
        "model_warmup[0].batch_size",
        "failed to run warmup sample 'w': batch size 2 for 'm', max allowed is 0",
    ),
    "warmup shape": (
        f'{PYTHON} model_warmup {{ batch_size: 1 inputs {{ key: "X" value {{ data_type: TYPE_FP32 dims: 2 zero_data: true }} }} }}',
        'model_warmup[0].inputs["X"].dims',
        "input 'X' of warmup of model 'm' has dims [2], but the model expects [4]",
    ),
    "warmup type": (
        f'{PYTHON} model_warmup {{ batch_size: 1 inputs {{ key: "X" value {{ data_type: TYPE_INT64 dims: 1 zero_data: true }} }} }}',
        'model_warmup[0].inputs["X"].data_type',
        "input 'X' of warmup of model 'm' has data-type INT64, but the model expects FP32",
    ),
    "warmup name": (
        f'{ONNX} model_warmup {{ batch_size: 1 inputs {{ key: "Z" value {{ data_type: TYPE_FP32 dims: 1 zero_data: true }} }} }}',
        'model_warmup[0].inputs["Z"]',
        "unexpected inference input 'Z' for model 'm'",
    ),
    "cache with sequences": (
        sequence("") + "response_cache { enable: true }",
        "response_cache",
        "Response Cache does not currently support model m with sequence batching scheduler. "
        "Please disable the response cache.",
    ),
    "cache with decoupled": (
        f"{PYTHON} response_cache {{ enable: true }} model_transaction_policy {{ decoupled: true }}",
        "response_cache",
        "Response Cache does not currently support model m with 'decoupled' transaction policy. "
        "Please disable the response cache.",
    ),
    "metric": (
        f"{PYTHON} model_metrics {{ metric_control {{ histogram_options {{ buckets: 1 }} }} }}",
        "model_metrics.metric_control[0]",
        "metric control must specify 'metric_identifier'",
    ),
    "buckets": (
        PYTHON + 'model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { } } }',
        "model_metrics.metric_control[0].histogram_options",
        "histogram options must specify non-empty 'buckets'",
    ),
    "bucket of NaN": (
        PYTHON
        + 'model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { buckets: [ 1, nan ] } } }',
        "model_metrics.metric_control[0].histogram_options",
        "histogram options must specify 'buckets' that are numbers",
    ),
    "no tensors": ('backend: "onnxruntime"', "", "model configuration must specify 'input' and 'output' for m"),
    "no output": (
        'backend: "pytorch" input { name: "X" data_type: TYPE_FP32 dims: 1 }',
        "output",
        "model configuration must contain at least one output, none were specified.",
    ),
    "file elsewhere": (
        f'{PYTHON} default_model_filename: "../model.py"',
        "default_model_filename",
        "'default_model_filename' of model 'm' leaves the folder it belongs to",
    ),
    "placement": (
        f'{PYTHON} parameters {{ key: "eagleray.placement" value {{ string_value: "moon" }} }}',
        'parameters["eagleray.placement"]',
        "parameter 'eagleray.placement' of m must be one of isolated, packed, embedded",
    ),
    "replicas": (
        f'{PYTHON} parameters {{ key: "eagleray.replicas" value {{ string_value: "1.5" }} }}',
        'parameters["eagleray.replicas"]',
        "parameter 'eagleray.replicas' of m must be a whole number from 1 to 10000",
    ),
    "neither true nor false": (
        f'{PYTHON} parameters {{ key: "eagleray.inline" value {{ string_value: "yes" }} }}',
        'parameters["eagleray.inline"]',
        "parameter 'eagleray.inline' of m must be true or false",
    ),
    "gpus that are no number": (
        f'{PYTHON} parameters {{ key: "eagleray.num_gpus" value {{ string_value: "nan" }} }}',
        'parameters["eagleray.num_gpus"]',
        "parameter 'eagleray.num_gpus' of m must be a number from 0 to 4096",
    ),
    "a GPU and a half": (
        f'{PYTHON} parameters {{ key: "eagleray.num_gpus" value {{ string_value: "1.5" }} }}',
        'parameters["eagleray.num_gpus"]',
        "parameter 'eagleray.num_gpus' of m must be a whole number where it is more than 1",
    ),
    "fewer CPUs than Ray can count": (
        f'{PYTHON} parameters {{ key: "eagleray.num_cpus" value {{ string_value: "0.00009" }} }}',
        'parameters["eagleray.num_cpus"]',
        "parameter 'eagleray.num_cpus' of m must be 0 or at least 0.0001",
    ),
    "groups of an ensemble": (
        ensemble(f"step {{ {STEP} }}", "instance_group { }"),
        "instance_group",
        "instance group should not be specified for ensemble 'm'",
    ),
    "optimization of an ensemble": (
        ensemble(f"step {{ {STEP} }}", "optimization { }"),
        "optimization",
        "optimization should not be specified for ensemble 'm'",
    ),
    "warmup of an ensemble": (
        ensemble(f"step {{ {STEP} }}", "model_warmup { }"),
        "model_warmup",
        "model_warmup can not be specified for ensemble 'm'",
    ),
    "no steps": (ensemble(""), "ensemble_scheduling", "must specify 'step' for ensemble 'm'"),
    "step without a model": (
        ensemble('step { input_map { key: "x" value: "X" } output_map { key: "y" value: "Y" } }'),
        "ensemble_scheduling.step[0]",
        "must specify 'model_name' in step 0 of ensemble 'm'",
    ),
    "step without inputs": (
        ensemble('step { model_name: "a" output_map { key: "y" value: "Y" } }'),
        "ensemble_scheduling.step[0]",
        "must specify 'input_map' in step 0 of ensemble 'm'",
    ),
    "tensor written twice": (
        ensemble(f"step {{ {STEP} }} step {{ {STEP} }}"),
        'ensemble_scheduling.step[1].output_map["y"]',
        "ensemble tensor 'Y' can appear in an output map only once for ensemble 'm' step 1",
    ),
    "tensor that comes from the client and from a step": (
        ensemble(f'step {{ {STEP} output_map {{ key: "z" value: "X" }} }}'),
        'ensemble_scheduling.step[0].output_map["z"]',
        "ensemble tensor 'X' is an input of ensemble 'm' and can not appear in an output map, as in step 0",
    ),
    "unused input": (
        ensemble(f"step {{ {STEP} }}", 'input { name: "Z" data_type: TYPE_FP32 dims: 1 }'),
        "input[1]",
        "ensemble input 'Z' for ensemble m' is not used",
    ),
    "unused output": (
        ensemble(f"step {{ {STEP} }}", 'output { name: "Z" data_type: TYPE_FP32 dims: 1 }'),
        "output[1]",
        "ensemble output 'Z' for ensemble m' is not used",
    ),
    "tensors that only make each other": (
        ensemble(
            f"step {{ {STEP} }}"
            ' step { model_name: "b" input_map { key: "x" value: "U" } output_map { key: "y" value: "V" } }'
            ' step { model_name: "b" input_map { key: "x" value: "V" } output_map { key: "y" value: "U" } }'
        ),
        'ensemble_scheduling.step[1].output_map["y"]',
        "ensemble tensor 'V' is unused in ensemble 'm'",
    ),
    "unused tensor": (
        ensemble(f'step {{ {STEP} output_map {{ key: "z" value: "Z" }} }}'),
        'ensemble_scheduling.step[0].output_map["z"]',
        "ensemble tensor 'Z' is unused in ensemble 'm'",
    ),
    "starving output": (
        ensemble(f'step {{ {STEP} input_map {{ key: "z" value: "Z" }} }}'),
        "output[0]",
        "output 'Y' for ensemble 'm' is not written: at least one of its depending tensors, 'Z', is not connected",
    ),
}


@pytest.mark.parametrize(("text", "field", "message"), RULES.values(), ids=RULES)
def test_refuses(text: str, field: str, message: str) -> None:
    assert (field, message) in faults(text)


GOOD = {
    "python": PYTHON,
    "ensemble": ensemble(f"step {{ {STEP} }}"),
    "custom platform": f'platform: "mine" backend: "mine" {X} {Y}',
    "platform of another backend beside one without platforms": f'platform: "onnxruntime_onnx" backend: "python" {X} {Y}',
    "scalar": f'backend: "python" {X} max_batch_size: 1 '
    'output { name: "Y" data_type: TYPE_FP32 dims: 1 reshape { shape: [ ] } }',
    "reshape": f'backend: "python" {X} '
    'output { name: "Y" data_type: TYPE_FP32 dims: [ 2, 2, -1, 3 ] reshape { shape: [ 4, -1, 3, 1 ] } }',
    "priorities": f"{PYTHON} dynamic_batching {{ priority_levels: 2 default_priority_level: 2 "
    "priority_queue_policy { key: 1 value { max_queue_size: 3 } } }",
    "batch input": f'{PYTHON} batch_input {{ target_name: "Q" data_type: TYPE_INT32 source_input: "X" }}',
    "slot utilization": sequence("direct { minimum_slot_utilization: 0.5 }"),
    "sequences": sequence(
        "oldest { preferred_batch_size: [ 1, 4 ] } "
        'control_input { name: "S" control { fp32_false_true: [ 0, 1 ] } } '
        'control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } '
        'state { input_name: "i" output_name: "o" data_type: TYPE_FP32 dims: -1 '
        'initial_state { name: "z" data_type: TYPE_FP32 dims: 1 zero_data: true } }'
    ),
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_accepts(text: str) -> None:
    assert faults(text) == []


CONTROLS = {
    "no values": ("", "sequence batching must specify either"),
    "two lists": (
        "int32_false_true: [ 0, 1 ] bool_false_true: [ false, true ]",
        "sequence batching specifies more than one from",
    ),
    "one value": ("int32_false_true: 1", "must have exactly 2 entries"),
    "values for a correlation id": (
        "kind: CONTROL_SEQUENCE_CORRID int32_false_true: [ 0, 1 ]",
        "sequence batching must not specify either",
    ),
    "float as a correlation id": (
        "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32",
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64",
    ),
}


@pytest.mark.parametrize(("text", "part"), CONTROLS.values(), ids=CONTROLS)
def test_refuses_controls(text: str, part: str) -> None:
    found = faults(sequence(f'control_input {{ name: "S" control {{ {text} }} }}'))
    assert any(part in message for _, message in found)


def test_lists_the_gpus_there_are() -> None:
    group = 'instance_group { name: "g" count: 1 kind: KIND_GPU gpus: [ 1, 7 ] }'
    assert [message for _, message in faults(PYTHON + group, gpu_count=2)] == [
        "instance group g of model m specifies invalid or unsupported gpu id 7. GPUs with at least the minimum "
        "required CUDA compute compatibility of 6.0 are: 0 1"
    ]


@pytest.mark.parametrize("name", ["a", "a b", "größe", "a.b", ".a", "x" * 255, "@#%"])
def test_accepts_names(name: str) -> None:
    assert check_name(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0", "a\n", " a", "a ", "x" * 256, "\x1b[31m"])
def test_refuses_names(name: str) -> None:
    assert check_name(name) is not None


STATE = 'state {{ input_name: "i" output_name: "o" data_type: TYPE_FP32 dims: 2 {} }}'
INITIAL = 'initial_state {{ name: "z" data_type: TYPE_FP32 dims: {} zero_data: true }}'
STATES = {
    "size": (
        INITIAL.format("3"),
        "'initial_state' dim for input name 'i' doesn't match 'state' dim description. 3 != 2",
    ),
    "rank": (
        INITIAL.format("[ 2, 1 ]"),
        "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'i'. 2 != 1",
    ),
    "-1": (INITIAL.format("[2, -1]"), "'initial_state' field for state input name 'i' contains variable dimensions."),
    "growable": ("use_growable_memory: true", "'use_growable_memory' needs 'use_same_buffer_for_input_output' for m"),
    "two": (
        INITIAL.format("2") * 2,
        "initial_state field for state input 'i' must contain exactly one or zero element. Found '2' elements.",
    ),
    "no data": (
        'initial_state { name: "z" data_type: TYPE_FP32 dims: 2 }',
        "initial_state setting expects state'i' to have state_data set",
    ),
    "name": (
        "initial_state { data_type: TYPE_FP32 dims: 2 zero_data: true }",
        "Field 'name' must be set when using initial_state for state input 'i'.",
    ),
    "data type": (
        'initial_state { name: "z" data_type: TYPE_INT32 dims: 2 zero_data: true }',
        "The data type used for 'initial_state' field of state 'i' does not match the state data type.",
    ),
}


@pytest.mark.parametrize(("text", "expected"), STATES.values(), ids=STATES)
def test_refuses_states(text: str, expected: str) -> None:
    assert expected in [message for _, message in faults(sequence(STATE.format(text)))]


def test_an_ensemble_has_no_backend() -> None:
    text = 'backend: "python" platform: "ensemble"'
    assert ("backend", "Ensemble model 'm' must have platform type 'ensemble' and empty backend type") in faults(text)
