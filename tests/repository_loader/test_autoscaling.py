import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.autoscaling import Autoscaling
from repository_loader.overrides import OverrideError, read_overrides
from repository_loader.parameters import ignored_parameters

RULES = Autoscaling(min_replicas=1, max_replicas=8, target_ongoing_requests=4)
QUICK = Autoscaling(min_replicas=1, max_replicas=8, target_ongoing_requests=100, target_latency_ms=50)


@pytest.mark.parametrize(
    ("rules", "ongoing", "sent_per_s", "running", "wanted"),
    {
        "nothing": (RULES, 0, 0, 3, 1),
        "nothing, to zero": (Autoscaling(0, 8), 0, 0, 3, 0),
        "the first": (Autoscaling(0, 8), 0.2, 1, 0, 1),
        "quicker than anybody looks": (Autoscaling(0, 8), 0, 2, 1, 1),
        "as many as the target": (RULES, 4, 40, 1, 1),
        "one more": (RULES, 4.1, 40, 1, 2),
        "three times": (RULES, 12, 120, 1, 3),
        "at most": (RULES, 1000, 120, 1, 8),
        "quick enough": (QUICK, 4, 100, 2, 2),
        "too slow": (QUICK, 8, 100, 2, 4),
        "much too slow": (QUICK, 90, 100, 2, 4),
        "slow, but alone": (QUICK, 1, 2, 1, 1),
    }.values(),
)
def test_replicas_follow_from_the_load(
    rules: Autoscaling, ongoing: float, sent_per_s: float, running: int, wanted: int
) -> None:
    assert rules.wanted(ongoing, sent_per_s, running) == wanted


def config(**parameters: str) -> ModelConfig:
    rows = (
        f'parameters {{ key: "eagleray.{k.replace("__", ".")}" value {{ string_value: "{v}" }} }}'
        for k, v in parameters.items()
    )
    return text_format.Parse(f'name: "m" {" ".join(rows)}', ModelConfig())


def test_parameters_are_read() -> None:
    given = config(
        autoscaling__min_replicas="0",
        autoscaling__max_replicas="3",
        autoscaling__target_ongoing_requests="2.5",
        autoscaling__target_latency_ms="50",
        autoscaling__downscale_delay_s="5",
        autoscaling__start_timeout_s="600",
    )
    assert read_overrides(given).autoscaling == Autoscaling(0, 3, 2.5, 50.0, 5.0, 600.0)
    assert read_overrides(config(autoscaling__max_replicas="3")).autoscaling == Autoscaling(1, 3)
    assert read_overrides(config()).autoscaling is None


def test_replicas_stay_as_long_as_a_sequence_may_be_idle() -> None:
    given = config(autoscaling__max_replicas="3", autoscaling__downscale_delay_s="5")
    for idle_us, delay_s in ((1_000_000, 5), (20_000_000, 20)):
        given.sequence_batching.max_sequence_idle_microseconds = idle_us
        rules = read_overrides(given).autoscaling
        assert rules is not None and rules.downscale_delay_s == delay_s


@pytest.mark.parametrize("placement", ["packed", "embedded"])
def test_what_shares_a_process_does_not_scale_which_is_said(placement: str) -> None:
    given = config(placement=placement, autoscaling__min_replicas="0")
    given.backend = "python"
    given.parameters["autoscaling.max_replicas"].string_value = "3"
    given.parameters["autoscaling.of_the_model"].string_value = "its own"
    assert [fault.message for fault in ignored_parameters(given)] == [
        f"parameter '{key}' of model 'm' has no effect: only isolated models scale, and 'eagleray.placement' is "
        f"'{placement}'"
        for key in ("autoscaling.max_replicas", "eagleray.autoscaling.min_replicas")
    ]
    given.parameters["eagleray.placement"].string_value = "isolated"
    assert not list(ignored_parameters(given))


def test_an_embedded_model_has_no_replicas_of_its_own_which_is_said() -> None:
    given = config(placement="embedded", replicas="3", num_cpus="1", memory_bytes="1", inline="false")
    given.backend = "python"
    assert [fault.message for fault in ignored_parameters(given)] == [
        f"parameter 'eagleray.{key}' of model 'm' has no effect: an embedded model has no replicas of its own, but "
        "runs in every ingress"
        for key in ("memory_bytes", "num_cpus", "replicas")
    ]
    given.sequence_batching.SetInParent()
    assert not list(ignored_parameters(given)), "one with sequences is packed in its place"
    given.ClearField("sequence_batching")
    given.parameters["eagleray.placement"].string_value = "packed"
    assert not list(ignored_parameters(given))


def test_parameters_may_be_written_without_our_name_and_the_others_win() -> None:
    given = config(autoscaling__max_replicas="3", autoscaling__target_latency_ms="50")
    for key, value in {"autoscaling.min_replicas": "0", "autoscaling.max_replicas": "9"}.items():
        given.parameters[key].string_value = value
    given.backend = "onnxruntime"
    assert read_overrides(given).autoscaling == Autoscaling(0, 3, target_latency_ms=50.0)
    (ignored,) = ignored_parameters(given)
    assert ignored.message == (
        "parameter 'autoscaling.max_replicas' of model 'm' has no effect: 'eagleray.autoscaling.max_replicas' stands "
        "beside it"
    )
    del given.parameters["eagleray.autoscaling.max_replicas"]
    assert read_overrides(given).autoscaling == Autoscaling(0, 9, target_latency_ms=50.0)
    given.parameters["autoscaling.max_replicas"].string_value = "many"
    with pytest.raises(OverrideError, match=r"^parameter 'autoscaling\.max_replicas' of m must be a whole number"):
        read_overrides(given)


@pytest.mark.parametrize(
    "parameters",
    [
        {"autoscaling__min_replicas": "1"},
        {"autoscaling__min_replicas": "3", "autoscaling__max_replicas": "2"},
        {"autoscaling__max_replicas": "0"},
        {"autoscaling__max_replicas": "2", "autoscaling__target_ongoing_requests": "0"},
        {"autoscaling__max_replicas": "2", "replicas": "2"},
    ],
)
def test_parameters_that_make_no_sense_are_refused(parameters: dict[str, str]) -> None:
    with pytest.raises(OverrideError, match=r"parameter 'eagleray\.autoscaling"):
        read_overrides(config(**parameters))
