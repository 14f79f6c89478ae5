import json

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.config_json import ConfigJsonError, config_from_json, config_to_dict, config_to_json


def printed(text: str) -> dict[str, object]:
    return config_to_dict(text_format.Parse(text, ModelConfig()))


def test_prints_every_primitive_field_and_no_absent_message() -> None:
    shown = printed('name: "m" input { name: "X" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: 4 } }')
    assert shown["max_batch_size"] == 0
    assert (shown["output"], shown["parameters"], shown["cc_model_filenames"]) == ([], {}, {})
    assert not {"dynamic_batching", "optimization", "version_policy", "response_cache"} & shown.keys()
    assert shown["input"] == [
        {
            "name": "X",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": [-1, 4],
            "reshape": {"shape": [4]},
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ]


NUMBERS = {
    "queue delay": (
        "dynamic_batching { max_queue_delay_microseconds: 5 }",
        ("dynamic_batching", "max_queue_delay_microseconds"),
        5,
    ),
    "versions": (
        "version_policy { specific { versions: [ 1, 9007199254740993 ] } }",
        ("version_policy", "specific", "versions"),
        [1, 9007199254740993],
    ),
    "queue policy": (
        "dynamic_batching { priority_queue_policy { key: 1 value { default_timeout_microseconds: 7 } } }",
        ("dynamic_batching", "priority_queue_policy", "1", "default_timeout_microseconds"),
        7,
    ),
    "step version": (
        "ensemble_scheduling { step { model_version: -1 } }",
        ("ensemble_scheduling", "step", 0, "model_version"),
        -1,
    ),
    "warmup dims": (
        'model_warmup { inputs { key: "a" value { dims: 3 } } }',
        ("model_warmup", 0, "inputs", "a", "dims"),
        [3],
    ),
    "floats": (
        "sequence_batching { control_input { control { fp32_false_true: [ -1, 0.5, 999999, 1e9 ] } } }",
        ("sequence_batching", "control_input", 0, "control", 0, "fp32_false_true"),
        [-1, 0.5, 999999, 1e9],
    ),
    "state dims": ("sequence_batching { state { dims: 3 } }", ("sequence_batching", "state", 0, "dims"), [3]),
    "initial state dims stay strings": (
        "sequence_batching { state { initial_state { dims: 3 } } }",
        ("sequence_batching", "state", 0, "initial_state", 0, "dims"),
        ["3"],
    ),
    "graph dims stay strings": (
        'optimization { cuda { graph_spec { input { key: "a" value { dim: 3 } } } } }',
        ("optimization", "cuda", "graph_spec", 0, "input", "a", "dim"),
        ["3"],
    ),
    "device ids stay strings": (
        "instance_group { secondary_devices { device_id: 3 } }",
        ("instance_group", 0, "secondary_devices", 0, "device_id"),
        "3",
    ),
}


@pytest.mark.parametrize(("text", "path", "expected"), NUMBERS.values(), ids=NUMBERS)
def test_prints_numbers_as_triton_does(text: str, path: tuple[str | int, ...], expected: object) -> None:
    value: object = printed(text)
    for step in path:
        value = value[step]  # type: ignore[index]
    assert json.dumps(value) == json.dumps(expected)


def test_reads_what_it_prints() -> None:
    config = text_format.Parse(
        'name: "größe" input { name: "X" data_type: TYPE_STRING dims: -1 } max_batch_size: 2 '
        'parameters { key: "a" value { string_value: "b" } } sequence_batching { state { initial_state { dims: 3 } } }',
        ModelConfig(),
    )
    assert config_from_json(config_to_json(config)) == config
    assert json.loads(config_to_json(config)) == config_to_dict(config)


def test_reads_enum_names_in_any_case_and_numbers_as_strings() -> None:
    config = config_from_json('{"input": [{"data_type": "type_fp32", "dims": ["4", 5]}]}')
    assert config == text_format.Parse("input { data_type: TYPE_FP32 dims: [ 4, 5 ] }", ModelConfig())


@pytest.mark.parametrize(
    ("given", "read"), [('"True"', "true"), ('"0"', "false"), ('"yes"', "true"), ("false", "false")]
)
def test_reads_bools_as_texts(given: str, read: str) -> None:
    control = f'{{"control": {{"bool_false_true": [{given}, {given}]}}}}'
    config = config_from_json(
        f'{{"response_cache": {{"enable": {given}}}, "sequence_batching": {{"control_input": [{control}]}}}}'
    )
    assert config == text_format.Parse(
        f"response_cache {{ enable: {read} }} "
        f"sequence_batching {{ control_input {{ control {{ bool_false_true: [ {read}, {read} ] }} }} }}",
        ModelConfig(),
    )


def test_reads_json_as_leniently_as_triton() -> None:
    config = config_from_json("{name: 'm', sequence_batching: {direct: {},}, 'input': [{name: \"X\", dims: [1,]},],}")
    assert config == text_format.Parse(
        'name: "m" sequence_batching { direct { } } input { name: "X" dims: 1 }', ModelConfig()
    )


def test_fields_come_in_the_order_of_the_schema() -> None:
    config = text_format.Parse(
        'backend: "b" dynamic_batching { priority_queue_policy { key: 4294967296 value { max_queue_size: 10 '
        "allow_timeout_override: true } } } max_batch_size: 2",
        ModelConfig(),
    )
    text = config_to_json(config)
    assert text.startswith('{"name":"","platform":"","backend":"b","runtime":"","max_batch_size":2,"input":[],')
    assert (
        '"4294967296":{"timeout_action":"REJECT","default_timeout_microseconds":0,"allow_timeout_override":true,'
        '"max_queue_size":10}'
    ) in text


def test_one_value_stands_for_a_list_of_it() -> None:
    config = config_from_json(
        '{"instance_group": {"kind": "kind_cpu", "count": 5, "gpus": 1}, "input": {"name": "X", "dims": "16"},'
        ' "parameters": {"k": {"string_value": "v"}}, "output": null}'
    )
    assert config == text_format.Parse(
        'instance_group { kind: KIND_CPU count: 5 gpus: 1 } input { name: "X" dims: 16 } '
        'parameters { key: "k" value { string_value: "v" } }',
        ModelConfig(),
    )


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        "null",
        '{"foo": 1}',
        '{"max_batch_size": "x"}',
        '{"input": 3}',
        '{"input": [{"optional": 1}]}',
        '{"input": [{"optional": "maybe"}]}',
        '{"instance_group": ""}',
        '{"input": [{"data_type": "TYPE_X"}]}',
        '{"instance_group": [{"kind": 9}]}',
        '{"instance_group": [{"kind": Infinity}]}',
        '{"instance_group": [{"kind": NaN}]}',
        r'{"instance_group": [{"kind": "\ud800"}]}',
        r'{"\ud800": 1}',
        r'{"name": "\ud800"}',
        '{"max_batch_size": 1e400}',
        "[" * 100_000,
    ],
)
def test_refuses_what_is_no_configuration(document: str) -> None:
    with pytest.raises(ConfigJsonError):
        config_from_json(document)


def test_says_in_one_line_which_field_there_is_not() -> None:
    with pytest.raises(ConfigJsonError) as refused:
        config_from_json({"dynamic_batching": {"foo": 1}})
    assert '"foo"' in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("document", "meant"),
    [
        ({"model_version_policy": {}}, 'Did you mean "version_policy"?'),
        ({"input": [{"name": "X", "data_type": "TYPE_BYTES"}]}, "].data_type. Did you mean TYPE_STRING?"),
        ({"instance_group": [{"kind": "CPU"}]}, "Did you mean KIND_CPU?"),
        ({"rate_limiter": {}}, 'It is a field of "instance_group".'),
    ],
)
def test_says_what_is_probably_meant(document: dict[str, object], meant: str) -> None:
    with pytest.raises(ConfigJsonError) as caught:
        config_from_json(json.dumps(document))
    assert str(caught.value).endswith(meant)


@pytest.mark.parametrize("name", ["a for enum type b at c", 'Message type "a" has no field named "b" at c'])
def test_says_nothing_of_what_only_reads_like_a_complaint(name: str) -> None:
    for document in ({name: 1}, {"input": [{"data_type": name}]}, {"parameters": {name: {"string_value": 1}}}):
        with pytest.raises(ConfigJsonError) as caught:
            config_from_json(document)
        assert "Did you mean" not in str(caught.value)


def test_what_is_corrected_in_a_file_is_corrected_here(caplog: pytest.LogCaptureFixture) -> None:
    accelerator = {"name": "cuda", "parameters": {"enable_cuda_graph": "1", "gpu_mem_limit": "9"}}
    accelerators = {"execution_accelerators": {"gpu_execution_accelerator": [accelerator]}}
    config = config_from_json({"name": "m", "optimization": accelerators})
    (left,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert dict(left.parameters) == {"gpu_mem_limit": "9"}
    assert "'enable_cuda_graph' is ignored" in caplog.text
