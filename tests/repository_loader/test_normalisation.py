import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.normalisation import normalise

LATEST = "version_policy { latest { num_versions: 1 } }"
PINNED = "optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }"


def config(text: str) -> ModelConfig:
    return text_format.Parse(f'name: "m" {text}', ModelConfig())


GROUPS = {
    "implicit on the CPU": ("", 0, 'name: "m" kind: KIND_CPU count: 1'),
    "implicit on GPUs": ("", 2, 'name: "m" kind: KIND_GPU count: 1 gpus: [ 0, 1 ]'),
    "onnxruntime has two on the CPU": ('backend: "onnxruntime"', 0, 'name: "m" kind: KIND_CPU count: 2'),
    "onnxruntime has one on a GPU": ('backend: "onnxruntime"', 1, 'name: "m" kind: KIND_GPU count: 1 gpus: 0'),
    "a backend without GPUs": ('backend: "identity"', 2, 'name: "m" kind: KIND_CPU count: 1'),
    "a count below 1": ("instance_group { count: -1 }", 0, 'name: "m_0" kind: KIND_CPU count: 1'),
    "unnamed": ("instance_group { count: 3 }", 0, 'name: "m_0" kind: KIND_CPU count: 3'),
    "auto with gpus that are not there": ("instance_group { gpus: 5 }", 2, 'name: "m_0" kind: KIND_CPU count: 1'),
    "auto with gpus that are there": ("instance_group { gpus: 1 }", 2, 'name: "m_0" kind: KIND_GPU count: 1 gpus: 1'),
    "named": ('instance_group { name: "a" kind: KIND_MODEL }', 2, 'name: "a" kind: KIND_MODEL count: 1'),
    "GPU without GPUs is for validation": (
        "instance_group { kind: KIND_GPU }",
        0,
        'name: "m_0" kind: KIND_GPU count: 1',
    ),
}


@pytest.mark.parametrize(("given", "gpu_count", "group"), GROUPS.values(), ids=GROUPS)
def test_resolves_instance_groups(given: str, gpu_count: int, group: str) -> None:
    actual = config(given)
    assert list(normalise(actual, range(gpu_count))) == []
    assert list(actual.instance_group) == list(config(f"instance_group {{ {group} }}").instance_group)


def test_falls_back_to_the_cpu_when_asked() -> None:
    actual = config("instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU gpus: [ 0, 1 ] count: 2 } ]")
    (remark,) = normalise(actual, range(0), kind_gpu_fallback_to_cpu=True)
    assert remark.field == "instance_group[1].kind"
    assert (
        actual.instance_group[1] == config('instance_group { name: "m_1" kind: KIND_CPU count: 2 }').instance_group[0]
    )


SCHEDULERS = {
    "preferred size": (
        "max_batch_size: 8 dynamic_batching { }",
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: 8 }",
    ),
    "given sizes stay": (
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 4 ] }",
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 4 ] }",
    ),
    "no batches": ("dynamic_batching { }", "dynamic_batching { }"),
    "sequences": (
        "sequence_batching { }",
        "sequence_batching { max_sequence_idle_microseconds: 1000000 }",
    ),
    "oldest": (
        "max_batch_size: 2 sequence_batching { oldest { } max_sequence_idle_microseconds: 7 }",
        "max_batch_size: 2 sequence_batching { oldest { preferred_batch_size: 2 } max_sequence_idle_microseconds: 7 }",
    ),
}


@pytest.mark.parametrize(("given", "normal"), SCHEDULERS.values(), ids=SCHEDULERS)
def test_fills_the_scheduler(given: str, normal: str) -> None:
    actual = config(given)
    list(normalise(actual, range(0)))
    group = 'instance_group { name: "m" kind: KIND_CPU count: 1 }'
    assert actual == config(f"{normal} {LATEST} {PINNED} {group}")


def test_leaves_ensembles_alone() -> None:
    actual = config('platform: "ensemble"')
    list(normalise(actual, range(1)))
    assert actual == config(f'platform: "ensemble" {LATEST}')


def test_sends_zeros_for_inputs_that_a_warmup_leaves_out() -> None:
    actual = config(
        'input { name: "A" data_type: TYPE_INT64 dims: [ -1, 4 ] } input { name: "B" optional: true } '
        'input { name: "C" } model_warmup { name: "w" batch_size: 1 inputs { key: "C" value { random_data: true } } }'
    )
    (remark,) = normalise(actual, range(0))
    assert remark.field == "model_warmup[0].inputs"
    assert set(actual.model_warmup[0].inputs) == {"A", "C"}
    made = actual.model_warmup[0].inputs["A"]
    assert (list(made.dims), made.zero_data, made.data_type) == ([1, 4], True, actual.input[0].data_type)


def test_leaves_a_warmup_that_is_never_run_as_it_is() -> None:
    actual = config('input { name: "A" data_type: TYPE_INT64 dims: 4 } model_warmup { name: "w" }')
    assert list(normalise(actual, range(0))) == []
    assert not actual.model_warmup[0].inputs


def test_normalising_twice_changes_nothing() -> None:
    actual = config('backend: "onnxruntime" max_batch_size: 3 dynamic_batching { }')
    list(normalise(actual, range(2)))
    again = config("")
    again.CopyFrom(actual)
    list(normalise(again, range(2)))
    assert again == actual
