import time

import pytest

from repository_loader.config_text import MAX_CONFIG_BYTES, parse_config_text

REFUSED = {
    "unknown field": ("\nfoo: 1", "2:1", 'has no field named "foo"'),
    "unknown enum value": (
        "input {\n  data_type: TYPE_X\n}",
        "2:14",
        'Unknown enumeration value of "TYPE_X" for field "data_type".',
    ),
    "quoted enum value": (
        'input {\n  data_type: "TYPE_FP32"\n}',
        "2:14",
        'Expected integer or identifier, got: "TYPE_FP32"; it stands without quotes',
    ),
    "enum value in single quotes": (
        "instance_group [ { kind: 'KIND CPU' } ]",
        "1:26",
        "Expected integer or identifier, got: 'KIND CPU'; it stands without quotes",
    ),
    "unknown enum values in a list": (
        "model_warmup { name: 'a' }\ninstance_group [ { kind: KIND_CPU }, { kind: KIND_NONE } ]",
        "2:46",
        'Unknown enumeration value of "KIND_NONE" for field "kind".',
    ),
    "unknown number of an enum": (
        "instance_group [ { kind: 1 }, { kind: 9 } ]",
        "1:33",
        'Unknown enumeration value of "9" for field "kind".',
    ),
    "unknown number of an enum in a map": (
        "dynamic_batching { priority_queue_policy { key: 1 value { timeout_action: 7 } } }",
        "1:59",
        'Unknown enumeration value of "7" for field "timeout_action".',
    ),
    "an escape that is none": ('name: "C:\\models"', "1:10", "Invalid escape sequence in string literal."),
    "a hexadecimal escape without a digit": ("name: 'a\\x'", "1:9", "Invalid escape sequence in string literal."),
    "wrong type": ("max_batch_size: many", "1:17", "Couldn't parse integer: many"),
    "repeated scalar": ("max_batch_size: 1\nmax_batch_size: 2", "2:17", "should not have multiple"),
    "list on a single message": ("dynamic_batching [ { } ]", "1:18", 'Expected "{"'),
    "two schedulers": ("dynamic_batching {}\nsequence_batching {}", "2:1", "another member of oneof"),
    "open string": ('name: "a', "1:7", "ending quote"),
    "open message": ('input {\n name: "a"\n', "2:8", 'Expected "}"'),
    "stray brace": ('name: "a" }', "1:11", ""),
    "nesting": ("input {" * 1000, "1:455", "nested more than 64 deep"),
    "not text": (b'name: "a"\n  \xff', "2:3", "not UTF-8"),
    "not text behind a comment that is none": (b"# \xff\nname: '#\xff'", "2:9", "not UTF-8"),
    "alias of the wrong kind": ('rate_limit_resources { name: "a" size: 1 }', "1:34", "'size' means nothing"),
    "alias without a name": ("rate_limit_resources { count: 1 }", "1:22", "must have a 'name'"),
}


MEANT = {
    "a protocol's datatype": ("input { data_type: TYPE_BYTES }", 'field "data_type". Did you mean TYPE_STRING?'),
    "a datatype without its prefix": ("output { data_type: FP32 }", 'field "data_type". Did you mean TYPE_FP32?'),
    "NumPy's datatype": ("input [ { data_type: float64 } ]", 'field "data_type". Did you mean TYPE_FP64?'),
    "another word for strings": ("input { data_type: TYPE_UTF8 }", 'field "data_type". Did you mean TYPE_STRING?'),
    "a kind without its prefix": ("instance_group [ { kind: CPU } ]", 'field "kind". Did you mean KIND_CPU?'),
    "a misspelt kind": ("instance_group [ { kind: KIND_GPUS } ]", 'field "kind". Did you mean KIND_GPU?'),
    "another width": ("input { data_type: TYPE_INT4 }", 'for field "data_type".'),
    "no width": ("input { data_type: TYPE_INT }", 'for field "data_type".'),
    "a misspelt datatype": ("input { data_type: TYPE_UNIT32 }", 'field "data_type". Did you mean TYPE_UINT32?'),
    "a kind like two": ("instance_group { kind: KIND_NPU }", 'for field "kind".'),
    "no datatype": ("input { data_type: TYPE_X }", 'for field "data_type".'),
    "a misspelt field": (
        "dynamic_batching { prefered_batch_size: [ 4 ] }",
        'no field named "prefered_batch_size". Did you mean "preferred_batch_size"?',
    ),
    "another server's field": (
        "model_version_policy { all { } }",
        'no field named "model_version_policy". Did you mean "version_policy"?',
    ),
    "another word for a field": ("input { shape: [ 1 ] }", 'no field named "shape". Did you mean "dims"?'),
    "a field in the wrong place": (
        "rate_limiter { }",
        'no field named "rate_limiter". It is a field of "instance_group".',
    ),
    "a field of several": ("dynamic_batching { kind: KIND_CPU }", 'no field named "kind".'),
    "a field of the whole in a part": ('input { platform: "a" }', 'no field named "platform".'),
    "a placeholder": (
        "max_batch_size: ${triton_max_batch_size}",
        "Couldn't parse integer: $; a value must take the place of ${triton_max_batch_size}",
    ),
    "a placeholder for a truth value": (
        "model_transaction_policy {\n  decoupled: {{ decoupled }}\n}",
        'Expected "true" or "false"; a value must take the place of {{ decoupled }}',
    ),
    "a placeholder for a kind": ("instance_group { kind: $KIND }", "; a value must take the place of $KIND"),
}


@pytest.mark.parametrize(("text", "message"), MEANT.values(), ids=MEANT)
def test_says_what_is_probably_meant(text: str, message: str) -> None:
    (finding,) = parse_config_text(text.encode(), "c").findings
    assert finding.message.endswith(message)


@pytest.mark.parametrize("long", ["a" * 40_000, "a:[" * 40_000 + "]"], ids=["word", "lists"])
def test_what_stands_before_a_misspelt_value_takes_no_time(long: str) -> None:
    started_s = time.process_time()
    (finding,) = parse_config_text(f"# {long}\ninstance_group {{ kind: GPU }}".encode(), "c").findings
    assert finding.message.endswith("Did you mean KIND_GPU?") and time.process_time() - started_s < 2


@pytest.mark.parametrize(("text", "place", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses_with_line_and_column(text: str | bytes, place: str, message: str) -> None:
    read = parse_config_text(text.encode() if isinstance(text, str) else text, "m/config.pbtxt")
    assert read.config is None
    (finding,) = read.findings
    assert str(finding).startswith(f"m/config.pbtxt:{place}: error: ")
    assert message in finding.message


def test_limits_the_size_of_a_file() -> None:
    comment = b"#" * (MAX_CONFIG_BYTES - 10)
    assert parse_config_text(b'name: "a"\n' + comment, "c").config is not None
    larger = parse_config_text(b'name: "a" \n' + comment, "c")
    assert larger.config is None
    # Of one that is larger still, no more is read, so that its size is not known.
    assert [finding.message for finding in larger.findings] == ["the file has more than the allowed 1048576 bytes"]


LENIENT = {
    "resources of the model": (
        'instance_group [ { count: 1 }, { count: 2 } ]\nrate_limit_resources [ { name: "R" global: true } ]',
        'instance_group { count: 1 rate_limiter { resources { name: "R" global: true count: 1 } } }'
        'instance_group { count: 2 rate_limiter { resources { name: "R" global: true count: 1 } } }',
        "2:1: warning: 'rate_limit_resources'",
    ),
    "resources of the model without groups": (
        'rate_limit_resources { name: "R" count: 3 }',
        'instance_group { rate_limiter { resources { name: "R" count: 3 } } }',
        "1:1: warning: 'rate_limit_resources'",
    ),
    "resources of a group": (
        'instance_group {\n rate_limit_resources: ["A", "B"] # { ignored\n kind: KIND_CPU }\n',
        "instance_group { kind: KIND_CPU rate_limiter "
        '{ resources { name: "A" count: 1 } resources { name: "B" count: 1 } } }',
        "2:2: warning: 'rate_limit_resources'",
    ),
    "resources between commas": (
        'instance_group [ { count: 1, rate_limit_resources: [ { name: "A" } ] , kind: KIND_CPU; } ]',
        'instance_group { count: 1 kind: KIND_CPU rate_limiter { resources { name: "A" count: 1 } } }',
        "1:30: warning: 'rate_limit_resources'",
    ),
    "agents as a list": (
        'model_repository_agents [ { kind: "checksum" parameters { key: "MD5:1/m" value: "x" } } ]',
        'model_repository_agents { agents { name: "checksum" parameters { key: "MD5:1/m" value: "x" } } }',
        "1:1: warning: 'model_repository_agents'",
    ),
    "kind of an agent": (
        'model_repository_agents { agents [ { kind: "checksum" } ] }',
        'model_repository_agents { agents { name: "checksum" } }',
        "1:1: warning: 'model_repository_agents'",
    ),
    "unknown agent": (
        'model_repository_agents { agents [ { name: "nonesuch" } ] }',
        'model_repository_agents { agents { name: "nonesuch" } }',
        "1:36: warning: unknown repository agent 'nonesuch'",
    ),
    "short compute capability": (
        'cc_model_filenames { key: "75" value: "a" }',
        'cc_model_filenames { key: "7.5" value: "a" }',
        "1:20: warning: compute capability '75'",
    ),
    "compute capability of a compiler": (
        'cc_model_filenames [ { key: "sm_120" value: "a" } ]',
        'cc_model_filenames { key: "12.0" value: "a" }',
        "1:22: warning: compute capability 'sm_120'",
    ),
    "ensemble without a platform": (
        "\nensemble_scheduling { }",
        'platform: "ensemble" ensemble_scheduling { }',
        "2:1: warning: 'platform' is missing",
    ),
    "ensemble as a backend": ('\n\nbackend: "ensemble"', 'platform: "ensemble"', "3:1: warning: backend 'ensemble'"),
    "accelerator without a name": (
        'optimization { execution_accelerators {\n gpu_execution_accelerator : [ { name: "cuda" },\n'
        ' { parameters { key: "a" value: "b" } } ] } }',
        'optimization { execution_accelerators { gpu_execution_accelerator { name: "cuda" } } }',
        "3:2: warning: gpu_execution_accelerator",
    ),
    "CUDA graphs": (
        'optimization { execution_accelerators {\n gpu_execution_accelerator { name: "cuda"\n'
        ' parameters { key: "enable_cuda_graph" value: "1" } parameters { key: "gpu_mem_limit" value: "9" } } } }',
        'optimization { execution_accelerators { gpu_execution_accelerator { name: "cuda"'
        ' parameters { key: "gpu_mem_limit" value: "9" } } } }',
        "2:2: warning: 'enable_cuda_graph' is ignored",
    ),
}


@pytest.mark.parametrize(("text", "meaning", "warning"), LENIENT.values(), ids=LENIENT)
def test_accepts_with_a_warning(text: str, meaning: str, warning: str) -> None:
    read = parse_config_text(text.encode(), "c")
    assert read.config == parse_config_text(meaning.encode(), "c").config
    assert read.config is not None
    assert [str(finding) for finding in read.findings if f"c:{warning}" in str(finding)]
    assert all(finding.severity == "warning" for finding in read.findings)


def test_positions_stay_right_behind_an_alias() -> None:
    read = parse_config_text(b'rate_limit_resources [\n { name: "R" } ] max_batch_size: x', "c")
    assert str(read.findings[0]).startswith("c:2:34: error:")


TRICKY = {
    "alias in a comment": 'name: "a" # rate_limit_resources [ { name: "x" } ]',
    "alias in a string": "name: \"rate_limit_resources [ { name: 'x' } ]\"",
    "escaped quote": 'name: "a\\"b { # }"',
    "single quotes, semicolons, angle brackets": "name: 'a'; input < name: 'x', dims: -1 >",
    "adjacent strings": 'name: "a"\n "b"',
    "byte order mark": '﻿name: "a"',
    "nothing": "",
    "agents as they should be": 'model_repository_agents { agents { name: "checksum" } }',
}


@pytest.mark.parametrize("text", TRICKY.values(), ids=TRICKY)
def test_reads_legal_text_without_remarks(text: str) -> None:
    read = parse_config_text(text.encode(), "c")
    assert read.config is not None
    assert read.findings == ()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "gbk"])
def test_reads_comments_in_any_encoding(encoding: str) -> None:
    text = '# ü "×\nname: "m\\"#" # \'ü×\'\n\t#ü\nmax_batch_size: x'.encode(encoding)
    read = parse_config_text(text, "c")
    assert str(read.findings[0]).startswith("c:4:17: error:")
    read = parse_config_text(text[:-1] + b"3", "c")
    assert read.config is not None and (read.config.name, read.config.max_batch_size) == ('m"#', 3)


TEXT = b"""name: "m"
input [
  { name: "A" dims: [ 1, 2 ] },
  {
    name: "B"
  }
]
parameters { key: "k" value { string_value: "v" } }
input { name: "C" }
"""


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("name", (1, 1)),
        ("input", (2, 1)),
        ("input[0]", (3, 3)),
        ("input[0].dims", (3, 15)),
        ("input[1].name", (5, 5)),
        ("input[1].data_type", (4, 3)),
        ("input[2]", (9, 1)),
        ('parameters["k"]', (8, 12)),
        ('parameters["other"]', (8, 1)),
        ("max_batch_size", (1, 1)),
        ("", (1, 1)),
    ],
)
def test_finds_fields_and_falls_back_to_their_parents(path: str, place: tuple[int, int]) -> None:
    assert parse_config_text(TEXT, "c").positions.position(path) == place
