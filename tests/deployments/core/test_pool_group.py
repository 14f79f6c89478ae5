from deployments.backends.gpu_fault import GpuFault
from deployments.core.instance_pool import InstancePool
from deployments.core.pool_group import PoolGroup
from tests.deployments.core.test_instance_pool import batch_of
from tests.deployments.core.test_limited_pool import FakeProcess
from tests.deployments.fakes import FakeClock, FakeInstance


def group_of(clock, *instances):
    pools = [InstancePool([instance], clock) for instance in instances]
    for pool in pools:
        pool.finished = lambda _: None
    return PoolGroup(pools)


def test_a_fault_of_any_instance_is_one_of_the_group():
    clock = FakeClock()
    instances = [FakeInstance(clock, f"m_{number}") for number in range(3)]
    group = group_of(clock, *instances)
    assert group.check(1.0) == ""
    for instance, pool in list(zip(instances, group.pools, strict=True))[1:]:
        instance.error = GpuFault("illegal address")
        pool.run(batch_of())
        clock.wait_for_thread()
    assert group.check(1.0) == "; ".join(
        f"model instance '{name}' has lost its GPU: illegal address" for name in ("m_1", "m_2")
    )
    assert group.instance_count == 3 and group.instances == instances
    group.close()
    assert [instance.closed for instance in instances] == [1, 1, 1]


def test_a_group_is_alive_while_one_of_its_instances_is():
    processes = [FakeProcess(), FakeProcess()]
    group = group_of(FakeClock(), *processes)
    seen = []
    group.when_alive_changes(lambda: seen.append(group.alive))
    processes[0].set_alive(False)
    processes[1].set_alive(False)
    processes[0].set_alive(True)
    assert seen == [True, False, True]


def test_no_instance_of_a_group_runs_inline_where_it_may_not():
    group = group_of(FakeClock(), *(FakeInstance(FakeClock()) for _ in range(2)))
    assert group.may_run_inline
    group.pools[1].may_run_inline = False
    assert not group.may_run_inline
    group.may_run_inline = True
    assert [pool.may_run_inline for pool in group.pools] == [True, True]
