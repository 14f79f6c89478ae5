"""Whatever is wanted of a process in whatever order: in the end it serves just what was wanted last."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.backends.backend import ModelLoadError
from deployments.core.counts import Totals
from deployments.replica.changes import Key
from deployments.replica.hosted_model import KEEPS_FORMER, HostedModel, key_of
from deployments.replica.model_host import ModelHost
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.limits import Limits
from repository_loader.backend_traits import BACKENDS, BackendTraits
from repository_loader.package import InstanceSpec, ModelPackage
from tests.deployments.core.doubler import Doubler
from tests.deployments.fakes import config_of

MODELS = [("a", 1), ("a", 2), ("b", 1), ("c", 1)]
ENSEMBLES = {("two", 1): ("a", "b"), ("three", 1): ("two", "c")}
STEP = """
step {{ model_name: "{}" model_version: -1 input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "M" }} }}
step {{ model_name: "{}" model_version: -1 input_map {{ key: "X" value: "M" }} output_map {{ key: "Y" value: "Y" }} }}
"""
CONFIGS = {name: config_of(f'name: "{name}" backend: "gated"') for name, _ in MODELS} | {
    name: config_of(f'name: "{name}" platform: "ensemble" ensemble_scheduling {{ {STEP.format(*steps)} }}')
    for (name, _), steps in ENSEMBLES.items()
}


class Gate:
    """Where a load waits until it is told to end."""

    def __init__(self) -> None:
        self.fails = False
        self._opened = threading.Event()

    def open(self, *, fails: bool = False) -> None:
        self.fails = fails
        self._opened.set()

    def wait(self) -> None:
        assert self._opened.wait(30)


class GatedBackend:
    """The backend `gated`, whose loads end when, and as, the test says."""

    gates: list[Gate]
    loads: Counter[tuple[Key, str]]
    """By version and revision."""
    made: list[Doubler]
    closed = False
    """Whether loads wait at gates."""

    def __init__(self, clock: Any = None) -> None:
        del clock

    @classmethod
    def begin(cls) -> None:
        cls.gates, cls.loads, cls.made, cls.closed = [], Counter(), [], True

    @classmethod
    def open_all(cls) -> None:
        cls.closed = False
        while cls.gates:
            cls.gates.pop().open()

    def load(self, package: ModelPackage, specs: list[InstanceSpec]) -> list[Doubler]:
        self.loads[(package.name, package.version), package.revision] += 1
        gate = Gate()
        self.gates.append(gate)
        if not self.closed:
            gate.open()
        gate.wait()
        if gate.fails:
            raise ModelLoadError("by chance")
        made = [Doubler(spec) for spec in specs]
        self.made.extend(made)
        return made


@pytest.fixture(autouse=True, scope="module")
def gated() -> Iterator[None]:
    BACKENDS["gated"] = BackendTraits("gated", implementation=f"{__name__}:GatedBackend")
    yield
    del BACKENDS["gated"]


class Changing:
    """A host of which one thing after the other is wanted."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._number = 0
        self._revisions: dict[Key, int] = {}
        self._before: dict[Key, int] = {}
        self._tried: dict[Key, int] = {}
        """What was wanted of the versions that are on trial before they were."""
        self._kept: dict[Key, int] = {}
        """What of it served then."""
        self._back: dict[tuple[Key, int], int] = {}
        """What of it was wanted again, and how often it had been loaded."""
        self._asked: set[asyncio.Task[Any]] = set()
        self._told: dict[Key, str] = {}
        self._served: Set[Key] = set()
        self._as_told: dict[Key, str] = {}
        self.wanted: dict[Key, str] = {}
        self.host = ModelHost(
            asyncio.get_running_loop(),
            None,
            Limits(),
            Totals(),
            Regions(OwnTable()),
            shared=False,
            changed=lambda *_: None,
            retry_count=chance.choice([0, 0, 1]),
            thread_count=chance.choice([1, 3]),
        )

    def step(self) -> None:
        """Want something else, end a load, or have something tried again."""
        what = self._chance.choice(["want", "end", "end", "end", "try", "trial"])
        if what == "want":
            self._want()
        elif what == "trial" and self._tried:
            self._end_trial(fails=self._chance.random() < 0.5)
        elif what == "trial":
            self._begin_trial()
        elif what == "end" and GatedBackend.gates:
            gate = GatedBackend.gates.pop(self._chance.randrange(len(GatedBackend.gates)))
            gate.open(fails=self._chance.random() < 0.3)
        elif what == "try":
            self._ask(self.host.try_again([*self.host.failures]))

    def _want(self) -> None:
        before = dict(self._revisions)
        others = [key for key in [*MODELS, *ENSEMBLES] if key not in self._tried]
        for key in self._chance.sample(others, min(len(others), self._chance.randint(1, 3))):
            self._number += 1
            self._revisions[key] = self._number
            if self._chance.random() < 0.3:
                del self._revisions[key]
        if self._chance.random() < 0.3:
            tried = {key: revision for key, revision in self._revisions.items() if key in self._tried}
            self._revisions = self._before | tried  # as it was
        self._before = before
        self._apply()

    def _begin_trial(self) -> None:
        """Want other versions of some of what is wanted, which are kept until the trial ends."""
        serves = self._loaded_as_wanted()
        for key in self._chance.sample([*self._revisions], self._chance.randint(0, len(self._revisions))):
            self._number += 1
            self._tried[key], self._revisions[key] = self._revisions[key], self._number
        self._kept = {key: revision for key, revision in self._tried.items() if key in serves}
        self._apply()

    def _end_trial(self, *, fails: bool) -> None:
        """Go on with what was tried, or want what was there before: what of that serves is not loaded again."""
        tried, self._tried = self._tried, {}
        for key, revision in tried.items():
            self._before.pop(key, None)
            if fails:
                self._revisions[key] = revision
            if fails and key in self._kept:
                self._back[key, revision] = GatedBackend.loads[key, str(revision)]
        self._apply()

    def _apply(self) -> None:
        rows = [
            self._row(key, revision) | ({KEEPS_FORMER: str(self._tried[key])} if key in self._tried else {})
            for key, revision in self._revisions.items()
        ]
        self.wanted = {key_of(row): row["digest"] for row in rows}
        wanted = {*self._revisions.items(), *self._tried.items()}
        self._back = {key: count for key, count in self._back.items() if key in wanted}
        self._ask(self._tell(rows))

    async def _tell(self, rows: Sequence[dict[str, Any]]) -> None:
        self._told = {key_of(row): row["digest"] for row in rows}
        await self.host.apply(rows)

    @staticmethod
    def _row(key: Key, revision: int) -> dict[str, Any]:
        name, version = key
        package = ModelPackage(name, version, CONFIGS[name], "", "", "", revision=str(revision))
        steps = {step: CONFIGS[step] for step in ENSEMBLES.get(key, ())}
        return HostedModel(package, () if steps else (InstanceSpec("0", "CPU", 0),), steps).to_dict()

    def _ask(self, change: Any) -> None:
        self._asked.add(task := asyncio.get_running_loop().create_task(change))
        task.add_done_callback(self._asked.discard)

    def check(self) -> None:
        """What is wanted as before and served goes on being served."""
        loaded, told = dict(self._loaded()), self._told
        assert self._as_told.items() & told.items() <= loaded.items()
        assert self._served & told.keys() <= loaded.keys()
        self._as_told = dict(loaded.items() & told.items())
        self._served = loaded.keys() & told.keys()
        for (key, revision), count in self._back.items():
            assert GatedBackend.loads[key, str(revision)] == count, "it had been kept"

    def _loaded_as_wanted(self) -> set[Key]:
        return {key for key, digest in self._loaded() if self.wanted.get(key) == self._told.get(key) == digest}

    def _loaded(self) -> Iterator[tuple[Key, str]]:
        return (((row[0], row[1]), row[4]) for row in self.host.report() if not row[2])

    async def settle(self) -> None:
        """Have all loads end."""
        GatedBackend.open_all()
        await asyncio.gather(*self._asked)
        GatedBackend.closed = True
        self.check()

    async def end(self) -> None:
        """Have everything end, and what has failed be loaded."""
        GatedBackend.open_all()
        await asyncio.gather(*self._asked)
        await self.host.try_again([*self.host.failures])
        self.check()
        assert dict(self._loaded()) == self.wanted
        assert not self.host.failures and not self.host.loading

    async def close(self) -> None:
        """Close the host, whatever is under way."""
        closing = asyncio.create_task(self.host.close(5.0))
        await asyncio.sleep(0)
        GatedBackend.open_all()
        await asyncio.gather(closing, *self._asked)
        assert not self.host.served
        assert all(instance.closed == 1 for instance in GatedBackend.made)


@given(st.integers(0, 1 << 64))
def test_what_was_wanted_last_is_served_in_the_end_and_what_is_wanted_all_the_while(seed: int) -> None:
    chance = random.Random(seed)

    async def check() -> None:
        GatedBackend.begin()
        changing = Changing(chance)
        for _ in range(chance.randint(1, 40)):
            changing.step()
            if chance.random() < 0.2:
                await changing.settle()
            for _ in range(chance.choice([0, 1, 3, 10])):
                await asyncio.sleep(0)
                changing.check()
        if chance.random() < 0.7:
            await changing.end()
        await changing.close()

    asyncio.run(check())
