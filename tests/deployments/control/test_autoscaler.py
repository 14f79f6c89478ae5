from collections.abc import Collection
from dataclasses import dataclass

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.control.autoscaler import Autoscaler
from repository_loader.autoscaling import Autoscaling
from repository_loader.deployment_plan import DeploymentPlan, ModelPlan
from repository_loader.package import ModelPackage

KEY = ("m", "v1")


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def deployment(rules: Autoscaling | None, count: int = 1) -> DeploymentPlan:
    package = ModelPackage("m", 1, ModelConfig(), "/m", "/m/1", "")
    model = ModelPlan("m", 1, package, "isolated", (), 0)
    return DeploymentPlan("m", "v1", "isolated", (model,), count, 0.1, 0.0, 0, autoscaling=rules)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def autoscaler(clock: Clock) -> Autoscaler:
    made = Autoscaler(clock)
    made.follow([deployment(Autoscaling(0, 6, target_ongoing_requests=4, downscale_delay_s=10))], {})
    return made


def test_more_replicas_at_once_and_fewer_after_the_delay(autoscaler: Autoscaler, clock: Clock) -> None:
    autoscaler.take("ingress", {"m/1": (12.0, 100.0)})
    assert autoscaler.decide() == {KEY: 3}
    counts = []
    for _ in range(24):
        clock.now_s += 0.5
        autoscaler.take("ingress", {"m/1": (4.0, 100.0)})
        counts.append(autoscaler.decide().get(KEY))
    assert [count for count in counts if count is not None] == [1]
    assert counts.index(1) in (20, 21)  # 10 s after three were wanted last


def test_a_dip_takes_no_replica_away(autoscaler: Autoscaler, clock: Clock) -> None:
    for ongoing in (12.0, 1.0, 1.0, 12.0) * 20:
        clock.now_s += 2
        autoscaler.take("ingress", {"m/1": (ongoing, 100.0)})
        assert autoscaler.decide() in ({KEY: 3}, {})
    assert autoscaler.count(KEY) == 3


def test_a_controller_that_stood_still_takes_no_replica_away_before_it_has_heard_of_the_load(
    autoscaler: Autoscaler, clock: Clock
) -> None:
    for _ in range(10):
        clock.now_s += 0.5
        autoscaler.take("ingress", {"m/1": (12.0, 100.0)})
        autoscaler.decide()
    clock.now_s += 60.0  # the reports of this time lie in its sockets
    assert autoscaler.decide() == {}
    autoscaler.take("ingress", {"m/1": (12.0, 100.0)})
    clock.now_s += 0.5
    assert autoscaler.decide() == {} and autoscaler.count(KEY) == 3


def test_after_a_standstill_the_delay_goes_on_where_it_was(autoscaler: Autoscaler, clock: Clock) -> None:
    autoscaler.take("ingress", {"m/1": (12.0, 100.0)})
    assert autoscaler.decide() == {KEY: 3}
    for _ in range(10):
        clock.now_s += 0.5
        assert autoscaler.decide() == {}
    clock.now_s += 60.0
    decided = []
    for _ in range(20):
        decided.append(autoscaler.decide().get(KEY))
        clock.now_s += 0.5
    assert decided.index(0) in (16, 17)  # the load was forgotten after 3 s


def test_loads_of_all_ingresses_count_and_those_that_are_gone_do_not(autoscaler: Autoscaler, clock: Clock) -> None:
    for name in "ab":
        autoscaler.take(name, {"m/1": (8.0, 10.0), "other/1": (100.0, 1.0)})
    assert autoscaler.decide() == {KEY: 4}
    decided = []
    for _ in range(40):
        clock.now_s += 0.5
        autoscaler.take("a", {"m/1": (8.0, 10.0)})
        decided += autoscaler.decide().values()
    assert decided == [2]


def test_silence_is_no_load_and_the_first_request_wakes(autoscaler: Autoscaler, clock: Clock) -> None:
    for _ in range(5):
        assert autoscaler.decide() == {}
        clock.now_s += 2
    clock.now_s += 1
    assert autoscaler.decide() == {KEY: 0}
    autoscaler.take("ingress", {"m/1": (0.2, 2.0)})
    assert autoscaler.decide() == {KEY: 1}


def test_requests_that_are_answered_before_anybody_looks_wake_and_keep_a_replica(
    autoscaler: Autoscaler, clock: Clock
) -> None:
    assert idle(autoscaler, clock, 6) == [0]
    counts = []
    for _ in range(20):
        clock.now_s += 2
        autoscaler.take("ingress", {"m/1": (0.0, 2.0)})
        counts += autoscaler.decide().values()
    assert counts == [1]


def idle(autoscaler: Autoscaler, clock: Clock, times: int, starting: Collection[tuple[str, str]] = ()) -> list[int]:
    """Return what is decided while nobody asks, every two seconds."""
    counts: list[int] = []
    for _ in range(times):
        clock.now_s += 2
        counts += autoscaler.decide(starting).values()
    return counts


def test_a_first_replica_that_starts_stays_and_its_delay_begins_when_it_serves(
    autoscaler: Autoscaler, clock: Clock
) -> None:
    autoscaler.take("ingress", {"m/1": (12.0, 100.0)})
    assert autoscaler.decide({KEY}) == {KEY: 3} and not autoscaler.unasked
    assert idle(autoscaler, clock, 50, {KEY}) == [1] and autoscaler.unasked == {KEY}
    assert idle(autoscaler, clock, 5) == []
    assert idle(autoscaler, clock, 1) == [0] and not autoscaler.unasked


def test_what_is_tried_has_a_replica_and_its_delay_begins_when_that_ends(autoscaler: Autoscaler, clock: Clock) -> None:
    deployed = [deployment(Autoscaling(0, 6, target_ongoing_requests=4, downscale_delay_s=10))]
    assert idle(autoscaler, clock, 6) == [0]
    autoscaler.follow(deployed, {}, tried=[KEY])
    assert autoscaler.count(KEY) == 1
    assert idle(autoscaler, clock, 50) == [] and not autoscaler.unasked
    autoscaler.follow(deployed, {})
    assert idle(autoscaler, clock, 5) == [] and autoscaler.unasked == {KEY}
    assert idle(autoscaler, clock, 1) == [0]


def test_a_first_replica_stays_where_who_asked_is_gone_and_there_is_no_delay(clock: Clock) -> None:
    autoscaler = Autoscaler(clock)
    autoscaler.follow([deployment(Autoscaling(0, 6, 4, downscale_delay_s=0))], {KEY: 0})
    autoscaler.take("ingress", {"m/1": (1.0, 2.0)})
    assert autoscaler.decide() == {KEY: 1}
    clock.now_s += 2
    assert autoscaler.decide() == {}
    clock.now_s += 2
    assert autoscaler.decide() == {} and autoscaler.unasked == {KEY}
    clock.now_s += 0.5
    assert autoscaler.decide({KEY}) == {}
    clock.now_s += 0.5
    assert autoscaler.decide() == {KEY: 0}


def test_a_new_controller_goes_on_with_what_runs(clock: Clock) -> None:
    autoscaler = Autoscaler(clock)
    autoscaler.follow([deployment(Autoscaling(1, 6, 4, downscale_delay_s=10))], {KEY: 5})
    assert autoscaler.count(KEY) == 5
    for _ in range(5):
        assert autoscaler.decide() == {}  # it has heard of no load yet
        clock.now_s += 2
    clock.now_s += 1
    assert autoscaler.decide() == {KEY: 1}


@pytest.mark.parametrize(("bounds", "count"), [((1, 3), 3), ((5, 8), 5)], ids=["at most", "at least"])
def test_other_bounds_hold_at_once(autoscaler: Autoscaler, clock: Clock, bounds: tuple[int, int], count: int) -> None:
    autoscaler.take("ingress", {"m/1": (16.0, 100.0)})
    assert autoscaler.decide() == {KEY: 4}
    rules = [deployment(Autoscaling(*bounds, target_ongoing_requests=4, downscale_delay_s=86400))]
    autoscaler.follow(rules, {})
    assert autoscaler.count(KEY) == count
    successor = Autoscaler(clock)
    successor.follow(rules, {KEY: 4})
    assert successor.count(KEY) == count


def test_what_does_not_scale_is_left_alone(clock: Clock) -> None:
    autoscaler = Autoscaler(clock)
    autoscaler.follow([deployment(None)], {KEY: 5})
    autoscaler.take("ingress", {"m/1": (100.0, 1.0)})
    assert autoscaler.idle and autoscaler.decide() == {} and autoscaler.count(KEY) is None
