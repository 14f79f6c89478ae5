"""The rate limiter's decisions, against its rules."""

import random
from collections import Counter

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.core.arbiter import Arbiter
from deployments.core.rate_limit import ALL_DEVICES, Needs, Resource, needs_of
from repository_loader.package import InstanceSpec


def needs(*resources, priority=1):
    return Needs(tuple(Resource(name, device, count) for name, device, count in resources), priority)


def arbiter_of(given=(), **instances):
    arbiter = Arbiter(given)
    for key, wanted in instances.items():
        arbiter.add(key, wanted)
        arbiter.want(key)
    return arbiter


ONE = needs(("R", 0, 1))


def test_without_given_counts_the_largest_need_is_the_limit():
    arbiter = arbiter_of(a=ONE, b=ONE, big=needs(("R", 0, 2)))
    assert sorted(arbiter.grants()) == ["a", "b"]
    arbiter.done("a")
    assert arbiter.grants() == []
    arbiter.done("b")
    assert arbiter.grants() == ["big"]


def test_devices_have_resources_of_their_own_unless_these_are_global():
    arbiter = arbiter_of((("R", None, 1), ("G", None, 1)), a=ONE, b=needs(("R", 1, 1)), c=needs(("R", 1, 1)))
    assert arbiter.grants() == ["a", "b"]
    arbiter = arbiter_of(
        (("R", None, 1), ("G", None, 1)), d=needs(("G", ALL_DEVICES, 1)), e=needs(("G", ALL_DEVICES, 1))
    )
    assert arbiter.grants() == ["d"]
    arbiter = arbiter_of((("G", 0, 2), ("G", 1, 1)), **{key: needs(("G", ALL_DEVICES, 1)) for key in "def"})
    assert arbiter.grants() == ["d", "e"]


def test_a_device_may_be_given_another_count():
    arbiter = arbiter_of((("R", None, 1), ("R", 1, 2)), a=ONE, b=ONE, c=needs(("R", 1, 2)))
    assert arbiter.grants() == ["a", "c"]


def test_turns_go_by_priority():
    arbiter = arbiter_of(once=needs(("R", 0, 1), priority=1), half=needs(("R", 0, 1), priority=2))
    turns = Counter()
    for _ in range(300):
        (key,) = arbiter.grants()
        turns[key] += 1
        arbiter.done(key)
        arbiter.want(key)
    assert turns == {"once": 200, "half": 100}


def test_with_as_many_turns_the_higher_priority_is_first():
    arbiter = arbiter_of(half=needs(("R", 0, 1), priority=2), once=needs(("R", 0, 1), priority=1))
    order = []
    for _ in range(6):
        order += arbiter.grants()
        arbiter.done(order[-1])
        arbiter.want(order[-1])
    assert order == ["once", "once", "half", "once", "once", "half"]


def test_who_comes_late_takes_turns_with_who_has_had_many():
    arbiter = arbiter_of(old=ONE, idle=ONE)
    arbiter.done("idle")
    for _ in range(100):
        assert arbiter.grants() == ["old"]
        arbiter.done("old")
        arbiter.want("old")
    arbiter.add("new", needs(("R", 0, 1), priority=2))
    arbiter.want("new")
    turns = Counter()
    for _ in range(30):
        (key,) = arbiter.grants()
        turns[key] += 1
        arbiter.done(key)
        arbiter.want(key)
    assert turns["old"] in (19, 20) and turns["new"] in (10, 11)


def test_what_needs_much_is_not_starved_and_holds_up_nobody_else():
    arbiter = arbiter_of(small=ONE, other=needs(("S", 0, 1)))
    assert sorted(arbiter.grants()) == ["other", "small"]
    arbiter.add("big", needs(("R", 0, 2)))
    arbiter.add("late", ONE)
    arbiter.want("big")
    arbiter.want("late")
    arbiter.done("other")
    arbiter.want("other")
    assert arbiter.grants() == ["other"]
    arbiter.done("small")
    assert arbiter.grants() == ["big"]


def test_who_is_gone_holds_nothing():
    arbiter = arbiter_of(a=ONE, b=ONE)
    assert arbiter.grants() == ["a"]
    arbiter.remove("a")
    assert arbiter.grants() == ["b"]


def test_who_is_gone_says_nothing_about_the_limits():
    arbiter = arbiter_of(a=ONE, b=ONE, big=needs(("R", 0, 2)), everywhere=needs(("G", ALL_DEVICES, 1)))
    arbiter.remove("big")
    arbiter.remove("everywhere")
    assert arbiter.check(needs(("G", 0, 1))) == ""
    assert arbiter.grants() == ["a"]


def test_what_can_never_run_is_refused_in_tritons_words():
    assert Arbiter((("S", None, 1),)).check(needs(("R", 0, 4))) == (
        'Resource count for "R" is limited to 0 which will prevent scheduling of one or more model instances, the '
        "minimum required count is 4"
    )
    limited = Arbiter((("R", None, 3),))
    assert limited.check(needs(("R", 0, 3))) == ""
    assert 'Resource count for "R" is limited to 3' in limited.check(needs(("R", 0, 4)))
    assert "the minimum required count is 4" in limited.check(needs(("R", 0, 2), ("R", 0, 2)))
    arbiter = arbiter_of(a=ONE)
    assert arbiter.check(needs(("R", ALL_DEVICES, 1))) == (
        'Resource "R" is present as both global and device-specific resource in the model configuration.'
    )


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_given_twice_and_all_get_their_turn(seed):
    rng = random.Random(seed)
    instances = {
        f"i{number}": needs(
            *{
                name: (name, rng.choice([0, 1]) if name != "G" else ALL_DEVICES, rng.randint(1, 3))
                for name in rng.sample("RSTG", rng.randint(1, 3))
            }.values(),
            priority=rng.randint(1, 3),
        )
        for number in range(8)
    }
    arbiter = arbiter_of(**instances)
    limits = Counter()
    for each in instances.values():
        for resource in each.resources:
            place = resource.name, resource.device
            limits[place] = max(limits[place], resource.count)
    held, turns = [], Counter()
    for _ in range(400):
        for key in arbiter.grants():
            held.append(key)
            turns[key] += 1
        used = Counter()
        for key in held:
            for resource in instances[key].resources:
                used[resource.name, resource.device] += resource.count
        assert all(count <= limits[place] for place, count in used.items())
        assert held, "something always runs"
        done = held.pop(rng.randrange(len(held)))
        arbiter.done(done)
        arbiter.want(done)
    assert min(turns[key] for key in instances) > 10


def test_reads_the_needs_of_an_instance_from_its_group(monkeypatch):
    text = (
        'instance_group { name: "a" kind: KIND_CPU count: 2 rate_limiter { resources { name: "R" count: 2 } '
        'resources { name: "G" global: true count: 1 } resources { name: "none" } } } '
        'instance_group { name: "a_b" kind: KIND_GPU rate_limiter { resources { name: "R" count: 1 } priority: 3 } } '
        'instance_group { name: "free" kind: KIND_CPU }'
    )
    config = text_format.Parse(text, ModelConfig())
    on_gpu = InstanceSpec("a_b_0_gpu1", "GPU", 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-9d3c,GPU-7f1e")
    assert needs_of(config, on_gpu) == needs(("R", 1, 1), priority=3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert needs_of(config, on_gpu) == needs(("R", 5, 1), priority=3)
    assert needs_of(config, InstanceSpec("a_1", "CPU", 0)) == needs(("R", 0, 2), ("G", ALL_DEVICES, 1))
    assert needs_of(config, InstanceSpec("free_0", "CPU", 0)) is None
