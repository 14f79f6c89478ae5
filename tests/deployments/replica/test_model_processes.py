"""Python models whose instances run in processes of their own: their deaths, and what they do to each other."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from deployments.backends.python.process.restart import Restart
from protocol.errors import Internal, ServingError
from tests.deployments.replica.hosted_models import unfrozen as unfrozen
from tests.deployments.replica.own_processes import Models
from tests.deployments.replica.own_processes import models as models
from tests.serving import wait_until

DIES = """
def answer(self, how):
    if how == 1:
        os._exit(3)
    if how == 2:
        ctypes.string_at(0)
    if how == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return [os.getpid()]
"""


@pytest.mark.parametrize(
    ("how", "ending"), [(1, "ended with exit code 3"), (2, "was ended by SIGSEGV"), (3, "was ended by SIGKILL")]
)
def test_a_death_costs_its_own_batch_and_the_instance_comes_back(models: Models, how: int, ending: str) -> None:
    async def run() -> None:
        models.add("dies", DIES).add("other", "def answer(self, x): return [x + 1]")
        async with models.hosted() as call:
            [before] = await call("dies", 0)
            error = await call.error("dies", how)
            assert type(error) is Internal
            assert error.message == (
                "Failed to process the request(s) for model instance 'dies_0', message: "
                f"the process of model instance 'dies_0' {ending}"
            )
            assert ("dies", False) in call.changes
            assert await call("other", 1) == [2]
            await call.change("dies", True)
            assert await call("dies", 0) != [before]

    asyncio.run(run())


def test_a_process_that_has_lost_its_gpu_answers_its_batch_and_is_started_again_for_the_next(models: Models) -> None:
    fault = "CUDA error: an illegal memory access was encountered"

    async def run() -> None:
        models.add(
            "loses", f"def answer(self, x):\n    if x:\n        raise RuntimeError('{fault}')\n    return [os.getpid()]"
        )
        models.add("other", "def answer(self, x): return [x + 1]")
        async with models.hosted() as call:
            [before] = await call("loses", 0)
            error, next_one = await asyncio.gather(call.error("loses", 1), call("loses", 0))
            assert error.message.endswith(f"RuntimeError: {fault}")
            assert next_one != [before]
            assert call.changes[-2:] == [("loses", False), ("loses", True)]

    asyncio.run(run())


LOSES_LATER = """
    {kind} execute(self, requests):
        {wait}
        if requests[0].inputs()[0].as_numpy()[0]:
            raise RuntimeError('CUDA error: an illegal memory access was encountered')
        sender = requests[0].get_response_sender()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([os.getpid()], np.int32))]))
        sender.send(flags=1)
"""


@pytest.mark.parametrize(("kind", "wait"), [("def", "pass"), ("async def", "await __import__('asyncio').sleep(0)")])
def test_a_decoupled_model_that_has_lost_its_gpu_is_started_again(models: Models, kind: str, wait: str) -> None:
    async def run() -> None:
        code = textwrap.dedent(LOSES_LATER.format(kind=kind, wait=wait))
        models.add("loses", code, "model_transaction_policy { decoupled: true }")
        async with models.hosted() as call:
            before = await call.responses("loses", 0)
            with pytest.raises(Internal, match="an illegal memory access was encountered"):
                await call.responses("loses", 1)
            await call.change("loses", False)
            await call.change("loses", True)
            assert await call.responses("loses", 0) != before

    asyncio.run(run())


def test_other_instances_serve_while_one_is_started_again(models: Models) -> None:
    async def run() -> None:
        models.add("dies", DIES, "instance_group { count: 2 kind: KIND_CPU }")
        async with models.hosted("isolated") as call:
            assert call.host.target("dies") is not None
            seen = {(await call("dies", 0))[0]}
            outcomes = await asyncio.gather(call.error("dies", 1), *(call("dies", 0) for _ in range(20)))
            assert "exit code 3" in outcomes[0].message
            for pids in outcomes[1:]:
                seen |= set(pids)
            assert len(seen) in (2, 3)
            assert ("dies", False) not in call.changes

    asyncio.run(run())


class Turns:
    """A clock without a loop: notes what was put off, and for how long."""

    def __init__(self) -> None:
        self.time_ns = 0
        self.delays_s: list[float] = []

    def now_ns(self) -> int:
        return self.time_ns

    def call_later(self, delay_s: float, call: Any) -> None:
        self.delays_s.append(delay_s)


def test_a_process_that_dies_again_and_again_is_started_less_and_less_often() -> None:
    clock = Turns()
    restart = Restart(clock, lambda: None)
    for _ in range(9):
        restart.begin()
        clock.time_ns += 1_000_000_000
    assert clock.delays_s == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    restart.started()
    clock.time_ns += 31_000_000_000
    restart.begin()
    assert clock.delays_s[-1] == 0


def test_a_process_that_cannot_be_started_again_is_tried_less_and_less_often_however_long_it_has_lived() -> None:
    clock = Turns()
    restart = Restart(clock, lambda: None)
    clock.time_ns += 60_000_000_000
    for _ in range(9):
        restart.begin()
        clock.time_ns += int(clock.delays_s[-1] * 1e9) + 1_000_000_000
    assert clock.delays_s == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]


def test_the_sequences_of_an_instance_that_dies_are_over(models: Models) -> None:
    async def run() -> None:
        models.add("counts", DIES, "sequence_batching { max_sequence_idle_microseconds: 60000000 }")
        async with models.hosted() as call:
            await call.in_sequence("counts", 0, id=1, start=True)
            await call.in_sequence("counts", 0, id=1)
            with pytest.raises(ServingError, match="exit code 3"):
                await call.in_sequence("counts", 1, id=1)
            await call.change("counts", True)
            with pytest.raises(ServingError, match="must specify the START flag"):
                await call.in_sequence("counts", 0, id=1)
            await call.in_sequence("counts", 0, id=1, start=True)

    asyncio.run(run())


def test_what_waited_for_an_instance_that_dies_does_not_go_on_in_the_next(models: Models) -> None:
    async def run() -> None:
        models.add("counts", DIES, "sequence_batching { oldest { max_candidate_sequences: 3 } }")
        async with models.hosted() as call:
            for number in (1, 2, 3):
                await call.in_sequence("counts", 0, id=number, start=True)
            outcomes = await asyncio.gather(
                *(call.in_sequence("counts", int(number == 1), id=number) for number in (1, 2, 3)),
                return_exceptions=True,
            )
            assert "exit code 3" in str(outcomes[0])
            assert ["has died; the sequence may start anew" in str(each) for each in outcomes[1:]] == [True, True]
            await call.change("counts", True)
            with pytest.raises(ServingError, match="must specify the START flag"):
                await call.in_sequence("counts", 0, id=2)
            await call.in_sequence("counts", 0, id=3, start=True)

    asyncio.run(run())


def test_count_is_instances_behind_one_queue_which_run_at_the_same_time(models: Models) -> None:
    async def run() -> None:
        models.add(
            "meets",
            """
            def answer(self, x):
                folder = self.args["model_repository"]
                open(f"{folder}/{os.getpid()}.here", "w").close()
                while sum(name.endswith(".here") for name in os.listdir(folder)) < 3:
                    time.sleep(0.001)
                return [os.getpid()]
            """,
            "instance_group { count: 3 kind: KIND_CPU }",
        )
        async with models.hosted("isolated") as call:
            pids = [pid for [pid] in await asyncio.gather(*(call("meets", n) for n in range(3)))]
            assert len({*pids, os.getpid()}) == 4
            version = call.host.core.resolve("meets")
            assert version.pool is not None
            assert version.pool.instance_count == 3
            assert version.statistics.counts.success_count == 3

    asyncio.run(run())


def test_passive_instances_are_initialized_and_finalized_and_never_asked(models: Models) -> None:
    async def run() -> None:
        models.add(
            "m",
            """
            def initialize(self, args):
                self.args = args
                self.note("initialized")
            def note(self, what):
                path = os.path.join(self.args["model_repository"], f"{self.args['model_instance_name']}.{what}")
                open(path, "x").close()
            def answer(self, x):
                return [self.args["model_instance_name"] == "works_0"]
            def finalize(self):
                self.note("finalized")
            """,
            """
            instance_group [ { name: "works" count: 1 }, { name: "rests" count: 2 passive: true } ]
            model_warmup { name: "w" batch_size: 1 inputs { key: "X" value { data_type: TYPE_INT32 dims: 1 zero_data: true } } }
            """,
        )
        async with models.hosted("isolated") as call:
            assert await asyncio.gather(*(call("m", n) for n in range(20))) == [[1]] * 20
            version = call.host.core.resolve("m")
            assert version.pool is not None
            assert version.pool.instance_count == 1
            assert version.statistics.counts.success_count == 21
            said = {path.name for path in (models.root / "m").iterdir()}
            assert {f"{name}.initialized" for name in ("works_0", "rests_0", "rests_1")} <= said

    asyncio.run(run())
    said = {path.name for path in (models.root / "m").iterdir()}
    assert {f"{name}.finalized" for name in ("works_0", "rests_0", "rests_1")} <= said


def test_a_batch_that_hangs_is_ended(models: Models) -> None:
    async def run() -> None:
        models.add(
            "hangs",
            """
            def answer(self, x):
                while x:
                    pass
                return [7]
            """,
            'parameters { key: "eagleray.execution_timeout_ms" value { string_value: "300" } }',
        )
        async with models.hosted("isolated") as call:
            error = await call.error("hangs", 1)
            assert error.message.endswith("was ended because it ran one batch for more than 300 ms")
            await call.change("hangs", True)
            assert await call("hangs", 0) == [7]

    asyncio.run(run())


def test_what_one_model_does_to_its_process_is_nothing_to_another(models: Models) -> None:
    async def run() -> None:
        helper = "class Kept:\n    value = VALUE\n\ndef doubled(x):\n    return 2 * x\n"
        for name, value in (("first", "1"), ("second", "2")):
            models.add(
                name,
                """
                def answer(self, x):
                    import utils
                    os.chdir(self.args["model_repository"])
                    path = os.path.join(os.getcwd(), "kept.pickle")
                    with open(path, "wb") as file:
                        pickle.dump(utils.Kept(), file)
                    with open(path, "rb") as file:
                        kept = pickle.load(file)
                    with multiprocessing.get_context("spawn").Pool(1) as pool:
                        spawned = pool.map(utils.doubled, [x])
                    with multiprocessing.get_context("fork").Pool(1) as pool:
                        forked = pool.map(doubled, [x])
                    return [kept.value, *spawned, *forked, os.path.basename(os.getcwd()) == self.args["model_name"]]
                """,
                files={"1/utils.py": helper.replace("VALUE", value)},
            )
            path = models.root / name / "1" / "model.py"
            path.write_text(path.read_text() + "\n\ndef doubled(x):\n    return 2 * x\n")
        async with models.hosted() as call:
            first, second = await asyncio.gather(call("first", 4), call("second", 5))
            assert (first, second) == ([1, 8, 8, 1], [2, 10, 10, 1])

    asyncio.run(run())


def test_large_tensors_come_and_go_through_shared_memory(models: Models) -> None:
    async def run() -> None:
        models.add(
            "adds",
            """
            kept = []
            def answer(self, *values):
                return np.array(values, np.int32) + 1
            """,
        )
        async with models.hosted() as call:
            values = list(range(300_000))
            for _ in range(3):
                assert await call("adds", *values) == [value + 1 for value in values]

    asyncio.run(run())


def test_closing_calls_finalize_and_leaves_no_process(models: Models) -> None:
    async def run() -> list[int]:
        models.add(
            "ends",
            """
            def answer(self, x):
                self.child = os.fork()
                if not self.child:
                    time.sleep(600)
                return [os.getpid(), self.child]
            def finalize(self):
                open(os.path.join(self.args["model_repository"], "finalized"), "w").close()
            """,
        )
        async with models.hosted() as call:
            return await call("ends", 1)

    pids = asyncio.run(run())
    assert (models.root / "ends" / "finalized").exists()
    wait_until(lambda: not [pid for pid in pids if _lives(pid)], "the processes of the models end")


@pytest.mark.parametrize(
    "busy",
    ["while True: pass", "__import__('re').fullmatch('(a+)+b', 'a' * 99)"],
    ids=["a loop", "the interpreter held"],
)
def test_the_death_of_the_replica_ends_its_processes(models: Models, busy: str) -> None:
    models.add("stays", f"def answer(self, x):\n    {busy}")
    code = f"""
        import asyncio, sys
        from pathlib import Path
        from tests.deployments.replica.own_processes import Models
        async def run():
            async with Models(Path({str(models.root)!r})).hosted() as call:
                running = call.start("stays", 1)
                pool = call.host.core.resolve("stays").pool
                print(pool._workers[0].remote._child.process.pid, flush=True)
                await running
        asyncio.run(run())
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as replica:
        assert replica.stdout is not None
        pid = int(replica.stdout.readline())
        assert _lives(pid)
        replica.send_signal(signal.SIGKILL)
    wait_until(lambda: not _lives(pid), "the processes of the models end")


def _lives(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_new_sequences_go_to_instances_that_live(models: Models) -> None:
    loads = """
    def initialize(self, args):
        while os.path.exists(os.path.join(args["model_repository"], "hold")):
            time.sleep(0.01)
    """
    batching = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"

    async def run() -> None:
        models.add("counts", DIES + textwrap.dedent(loads), f"instance_group {{ count: 2 kind: KIND_CPU }} {batching}")
        async with models.hosted("isolated") as call:
            hold = models.root / "counts" / "hold"
            hold.touch()
            await call.in_sequence("counts", 0, id=1, start=True)
            with pytest.raises(ServingError, match="exit code 3"):
                await call.in_sequence("counts", 1, id=1)
            async with asyncio.timeout(10):
                await call.in_sequence("counts", 0, id=2, start=True)
            third = asyncio.create_task(call.in_sequence("counts", 0, id=3, start=True))
            await call.in_sequence("counts", 0, id=2)
            assert not third.done()
            hold.unlink()
            await third

    asyncio.run(run())
