"""The models of one process: loads them as planned, offers them on lanes and to an ingress of the same process."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

from deployments.backends.python import metric
from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import LATEST, Core
from deployments.core.counts import LOAD_FAILURE, BucketCount, IsGone, Label, Rows
from deployments.core.metrics_options import DEFAULT_OPTIONS, MetricsOptions
from deployments.core.model_version import DRAIN_TIMEOUT_S, GRACE_S, UNLOAD_TIMEOUT_S, ModelVersion
from deployments.core.rate_limit import RateLimiter
from deployments.core.request_meter import RequestMeters
from deployments.core.response_cache import ResponseCache
from deployments.lane.fleet import Fleet
from deployments.lane.work_queue import WorkQueue
from deployments.log.line_format import about
from deployments.replica.changes import Changes, Key, in_order, wait_for
from deployments.replica.former_models import FormerModels
from deployments.replica.host_router import HostRouter
from deployments.replica.hosted_loads import HostedLoads
from deployments.replica.hosted_model import KEEPS_FORMER, key_of, release
from deployments.replica.late_loads import LateLoads, asked_steps
from deployments.replica.model_calls import ModelCalls
from deployments.replica.node_counters import NodeCounters
from deployments.replica.process_memory import collect_long_lived_objects, spare_long_lived_objects
from deployments.replica.readiness import Readiness
from deployments.replica.served_model import LocalTarget, ServedModel
from deployments.replica.shared_memory import Regions
from deployments.replica.stall_guard import StallGuard
from protocol.limits import Limits
from repository_loader.backend_traits import traits_of
from repository_loader.ensemble_graph import step_models
from repository_loader.overrides import read_overrides

logger = logging.getLogger(__name__)

_Load = Callable[[Key, dict[str, Any]], Coroutine[Any, Any, None]]

_POLL_S = 0.05
_DOWN = "the process of each of its instances has died; they are started again"


class ModelFaultError(Exception):
    """A loaded model has stopped to serve."""


class ModelHost:
    """Loads and unloads model versions; methods run on the loop's thread, loading itself on worker threads.

    `counters` is where statistics are kept, `regions` the clients' shared memory; `shared` says that the loop has other
    work than these models'; `cache` is for the responses of models that want theirs kept; `max_queue_s` bounds their
    queues (`QueueBound`). A model that does not load is tried `retry_count` times more; `thread_count` load at the same
    time; `metrics` says which latencies are counted, `gpu_uuid` which GPU the process has. `changed` is told of each
    version that is served from now on, and (None) no longer, before what served it until then finishes its requests.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fleet: Fleet | None,
        limits: Limits,
        counters: Rows,
        regions: Regions,
        *,
        shared: bool,
        changed: Callable[[str, int, ServedModel | None], None],
        cache: ResponseCache | None = None,
        retry_count: int = 0,
        thread_count: int = 4,
        max_queue_s: float = 0.0,
        limiter: RateLimiter | None = None,
        metrics: MetricsOptions = DEFAULT_OPTIONS,
        gpu_uuid: str = "",
    ) -> None:
        self._loop = loop
        self._changed = changed
        self._shared = shared
        self._alone = False
        self._counters = counters
        metric.export_to(lambda: counters, counters.folder if isinstance(counters, NodeCounters) else "")
        self._clock = LoopClock(loop)
        self._retry_count = retry_count
        self._threads = asyncio.Semaphore(thread_count)
        self._slow_queue = WorkQueue(self._loop, "slow codec", 1)
        self.changes = Changes(loop)
        self.core = Core(self._clock)
        self.regions = regions
        self.router = HostRouter(self.core, fleet, self._clock, self._slow_queue)
        self.calls = ModelCalls(loop, self.core, self.router, self._clock, self._threads)
        self.loads = HostedLoads(
            self._clock,
            self.router,
            self.calls,
            self._slow_queue,
            limits,
            counters,
            regions,
            cache=cache,
            max_queue_s=max_queue_s,
            limiter=limiter,
            metrics=metrics,
            gpu_uuid=gpu_uuid,
        )
        self._readiness = Readiness(loop, self._says)
        self.served: dict[Key, ServedModel] = {}
        self.copies: Collection[Key] = ()
        self.meters: RequestMeters | None = None
        self.guard: StallGuard | None = None
        self.unload_timeout_s = UNLOAD_TIMEOUT_S
        self.loading: set[Key] = set()
        self.failures: dict[Key, tuple[str, str]] = {}
        self.faults: dict[Key, str] = {}
        self._down: set[Key] = set()
        self._wanted: dict[Key, dict[str, Any]] = {}
        self.former = FormerModels(self.core, loop.time)
        self.late = LateLoads(loop, self.router)
        self.loaded_late: Callable[[], None] = lambda: None
        """Is told when an ensemble has been loaded, or has failed, after `apply` has returned."""

    async def apply(self, models: Sequence[dict[str, Any]], copies: Collection[Key] = ()) -> None:
        """Make the hosted models be these (as `HostedModel.to_dict` writes them); `copies` have replicas elsewhere.

        What is hosted already and has the same digest is left alone; a model that fails to load is noted in `failures`
        and harms no other: what served in its place serves on. New versions are ready before old ones go.

        It may be called again before it has returned, and waits for none of the loads that were begun before. What is
        wanted no longer when it has been loaded is not served.
        """
        self.copies = copies
        self._wanted = wanted = {key_of(data): data for data in models}
        self._alone = len(wanted) == 1 and not self._shared
        for served in self.served.values():
            self._allow_inline(served.model)
        for key, data in wanted.items():
            if self._digest(key) == data["digest"]:
                self.failures.pop(key, None)  # of something else, which is wanted no more
        for former in self.former.past_trial(wanted):
            self._finish(former)
        self.late.give_up()
        fresh = {key: data for key, data in wanted.items() if data["digest"] not in self._known(key)}
        await self._load_all(fresh, self._load_after_steps)

    async def try_again(self, keys: Collection[Key]) -> bool:
        """Load what failed here, as far as it is still wanted as it was; returns whether there was such a version."""
        failed = {key: self._wanted[key] for key in keys if self._has_failed(key)}
        await self._load_all(failed, partial(self._load, again=True))
        if failed:
            await self.apply([*self._wanted.values()], self.copies)  # ensembles that were left as they were
        return bool(failed)

    async def _load_all(self, fresh: Mapping[Key, dict[str, Any]], load: _Load) -> None:
        """Load versions, then unload what has gone, of which what takes long goes on behind the caller's back."""
        await asyncio.gather(*(self.changes.begin(key, data["digest"], load(key, data)) for key, data in fresh.items()))
        gone = self._gone()
        await self._unload_in_order(gone, self.unload_timeout_s, DRAIN_TIMEOUT_S)
        if gone:
            collect_long_lived_objects()
        elif fresh:
            spare_long_lived_objects()

    def _gone(self) -> list[Key]:
        """Return what is wanted no longer, but for what serves until others are loaded, and all that it asks."""
        stays = more = {key[0] for key in self._wanted if self._is_loading(key)}
        while more:
            going = (key for key in self.served if key[0] in more and not self._wants(key, self._digest(key)))
            more = {name for key in going for name in self._asked_by(key)} - stays
            stays = stays | more
        known = {**self.served, **self.failures}.keys() - self._wanted.keys()
        return [key for key in known if key[0] not in stays and not self.changes.unloads(key)]

    def _asked_by(self, key: Key) -> tuple[str, ...]:
        """Return the models that a version asks which serves, an ensemble."""
        return step_models(self.served[key].model.package.config) if key in self.served else ()

    def _is_loading(self, key: Key) -> bool:
        """Whether what is wanted as a version is under way."""
        return self._wants(key, self.changes.digest(key)) or self.late.waits(key)

    def _has_failed(self, key: Key) -> bool:
        digest = self._wanted[key]["digest"] if key in self._wanted else ""
        return bool(digest) and self.failed(*key, digest) and self.changes.digest(key) != digest

    def _stays(self, key: Key) -> bool:
        """Whether what serves as a version stays, as what is wanted, or one of its steps, has failed."""
        return key in self._wanted and not self._wants(key, self._digest(key)) and not self._is_loading(key)

    def _wants(self, key: Key, digest: str) -> bool:
        return key in self._wanted and self._wanted[key]["digest"] == digest

    def _digest(self, key: Key) -> str:
        """Return the digest of what serves as a version, "" where nothing does."""
        served = self.served.get(key)
        return "" if served is None else served.digest

    def _known(self, key: Key) -> tuple[str, ...]:
        """Return the digests of what serves as this version, of what failed to load for it last, and of what loads."""
        return self._digest(key), self.failures.get(key, ("", ""))[1], self.changes.digest(key)

    async def _load_after_steps(self, key: Key, data: dict[str, Any]) -> None:
        """Load a version; an ensemble that serves stays as it is until its steps are loaded, or when one of them stays.

        Else it would ask the steps that serve for what those to come take and give. Nobody waits for the steps that
        load in other processes.
        """
        steps, tried = data["steps"] if key in self.served else (), set[Key]()
        while loads := {each: load for each, load in self.changes.loads(steps).items() if self._is_loading(each)}:
            tried |= loads.keys()
            await asyncio.wait(loads.values())
        if any(map(self._stays, tried)):
            return
        asked = await asyncio.to_thread(asked_steps, data) if steps else []
        if self.late.fits(asked):
            await self._load(key, data)
        elif self._wants(key, data["digest"]):
            self.late.begin(key, asked, partial(self._load_late, key, data))

    async def _load_late(self, key: Key, data: dict[str, Any]) -> None:
        await self._load_all({key: data}, self._load_after_steps)
        self.loaded_late()

    async def _load(self, key: Key, data: dict[str, Any], *, again: bool = False) -> None:
        """Load what is wanted as a version, unless it is there; what has failed only if it is tried `again`."""
        digest = data["digest"]
        async with self.changes.turn(key):
            while self._wants(key, digest) and self._digest(key) != digest:
                if self.failed(*key, digest) and not again:
                    return
                if (former := self.former.take_back(key, digest)) is not None:
                    self._put_back(key, former)
                    return
                self.loading.add(key)
                try:
                    with self._patiently():
                        reason = await self._try_often(key, data)
                finally:
                    self.loading.discard(key)
                again = False
                if reason and self._wants(key, digest):
                    self._fail(key, reason, digest)

    async def _try_often(self, key: Key, data: dict[str, Any]) -> str:
        async with self._threads:
            reason = await self._try(key, data)
            for _ in range(self._retry_count):
                if reason and self._wants(key, data["digest"]):
                    logger.warning("'%s' version %d is tried again: %s", *key, reason, extra=about(*key))
                    reason = await self._try(key, data)
        return reason

    async def _try(self, key: Key, data: dict[str, Any]) -> str:
        """Load a version and serve it; returns why that is not possible, "" when it is, or it is wanted no longer."""
        result = await self.loads.load(data, partial(self._wants, key, data["digest"]))
        if result is None or isinstance(result, str):
            return result or ""
        self._allow_inline(result.model)
        old = self.served.get(key)
        if old is not None and old.sequence_idle_us and old.model.package.runs_as(result.model.package):
            result.go_on_with_sequences(old.model)
        self._serve(key, result)
        return ""

    def _serve(self, key: Key, served: ServedModel) -> None:
        """Give a version that has been loaded all requests from now on, in place of what has had them."""
        self.failures.pop(key, None)
        self.faults.pop(key, None)
        self._down.discard(key)
        model, old = served.model, self.served.get(key)
        self.served[key] = served
        self.core.add(model)
        level = logging.DEBUG if key in self.copies else logging.INFO
        logger.log(level, "successfully loaded '%s' version %d", *key, extra=about(*key))
        self._readiness.follow(served)
        if old is not None:
            old.ready = False
            self._readiness.forget(old)
        self._changed(*key, served)
        self.late.routes_changed()
        if old is not None and not self.former.keep(old, self._wanted[key].get(KEEPS_FORMER)):
            self._finish(old)
        if model.pool is not None:
            model.pool.when_alive_changes(partial(self._alive_changed, key, served))

    def _put_back(self, key: Key, former: ServedModel) -> None:
        """Serve what a version was before its trial, whose files may be others by now."""
        tried = self.served[key].model
        tried.forget(former.model)  # what it has left there is here
        former.ready = True
        if former.sequence_idle_us and former.model.package.runs_as(tried.package):
            former.go_on_with_sequences(tried)
        self._serve(key, former)
        self._alive_changed(key, former)

    def _finish(self, old: ServedModel) -> None:
        """Have what a version was until now answer what it has taken."""
        new = self.served[old.model_name, old.version].model
        self.changes.finish(self._close(old, new), step_models(old.model.package.config))

    def _patiently(self) -> AbstractContextManager[None]:
        return nullcontext() if self.guard is None else self.guard.patient()

    def _alive_changed(self, key: Key, served: ServedModel) -> None:
        """Offer a version only while it has an instance that lives; those that die are started again."""
        pool = served.model.pool
        if self.served.get(key) is not served or pool is None or pool.alive == served.ready:
            return
        served.ready = pool.alive
        if pool.alive:
            self._down.discard(key)
        else:
            self._down.add(key)
        self._changed(*key, served if served.ready else None)

    async def _close(self, old: ServedModel, new: ModelVersion) -> None:
        """Let a version that is served no more finish what it has; nobody but its steps waits for it."""
        if old.interface != new.interface:
            await self.former.until_unasked(old)
        await old.slow.all_decoded(DRAIN_TIMEOUT_S)
        while new.comes_before(old.model) and old.model.sequence_count:
            await asyncio.sleep(_POLL_S)
        old.model.older = None  # of which nothing is left either
        new.forget(old.model)
        await old.model.close(self.unload_timeout_s)
        release(old.held)
        collect_long_lived_objects()

    def _allow_inline(self, model: ModelVersion) -> None:
        """Say whether a model may run on the loop's thread.

        Nothing bounds how long a Python model's code takes, however quick it has been: where others wait for the same
        loop, or for a place in its queue or their time there, it runs there only if its configuration says so.
        """
        if model.pool is None:
            return
        given = read_overrides(model.package.config).inline
        alone = self._alone and not loader.has_queue_policy(model.package)
        bounded = alone or traits_of(model.package.config).bounded
        model.pool.may_run_inline = bounded if given is None else given

    def _fail(self, key: Key, reason: str, digest: str) -> None:
        name, version = key
        cast(BucketCount, self._counters.row(Label(LOAD_FAILURE, name, version))).count += 1
        self.failures[key] = (reason, digest)
        if key not in self.served:
            self.core.note_failed(name, version)
        logger.error("failed to load '%s' version %d: %s", name, version, reason, extra=about(name, version))

    async def _unload_in_order(self, gone: Collection[Key], timeout_s: float, patience_s: float | None = None) -> None:
        """Unload versions, each when no ensemble that goes, or went before, may ask it for what is under way."""
        deadline_s = self._loop.time() + timeout_s
        unloads = []
        for key, asks in in_order({key: self._asked_by(key) for key in gone}):
            unload = self._unload(key, deadline_s, self.changes.asking(key[0]))
            unloads.append(self.changes.begin(key, "", unload, asks))
        await wait_for(unloads, patience_s)

    async def _unload(self, key: Key, deadline_s: float, asking: Collection[asyncio.Task[None]]) -> None:
        last_s = max(self._loop.time() + GRACE_S, deadline_s)
        # One that is wanted again takes requests again, for which the next unload waits.
        while asking and key not in self._wanted and self._loop.time() < last_s:
            _, asking = await asyncio.wait(asking, timeout=_POLL_S)
        await self._until_answered(key[0], deadline_s)
        timeout_s = max(GRACE_S, deadline_s - self._loop.time())
        async with self.changes.turn(key):
            if key in self._wanted:
                return
            former = self.former.drop(key)
            self.failures.pop(key, None)
            self.faults.pop(key, None)
            self._down.discard(key)
            served = self.served.pop(key, None)
            if served is not None:
                served.ready = False
                self._readiness.forget(served)
                self.core.remove(*key)
                self._changed(*key, None)
        # They may be loaded again meanwhile.
        await asyncio.gather(*(self._close_unloaded(each, timeout_s) for each in (served, former) if each is not None))

    async def _until_answered(self, name: str, deadline_s: float) -> None:
        """Wait for what ensembles that stay have taken, which may ask for a model that goes, unless it is to stay."""
        stay = [served.model for served in self.served.values() if name in step_models(served.model.package.config)]
        taken = [(model.running, set(model.running)) for model in stay]
        while any(not left.isdisjoint(running) for running, left in taken) and self._loop.time() < deadline_s:
            if any(wanted[0] == name for wanted in self._wanted):
                return
            await asyncio.sleep(_POLL_S)

    @property
    def is_answering(self) -> bool:
        """Whether something that was unloaded, or lacks a step since, has not yet answered what it has taken."""
        unloaded = self.calls.neighbours.unloaded
        ensembles = [served.model for served in self.served.values() if served.model.running]
        return self.changes.answering or any(
            unloaded(step, LATEST) for each in ensembles for step in step_models(each.package.config)
        )

    async def _close_unloaded(self, served: ServedModel, timeout_s: float) -> None:
        self.core.forget_former(served.model)
        self.former.gone(served)
        with self._patiently():
            await served.slow.all_decoded(timeout_s)
            await served.model.close(timeout_s)
        counts = served.model.statistics.counts
        counts.load_duration_ns = counts.cache_count = 0
        release(served.held)

    def let_go(self, is_gone: IsGone) -> None:
        """Have models that were unloaded count in their rows no longer, where their version is gone."""
        self.loads.let_go(is_gone, self.served)

    def target(self, name: str, version: int = -1) -> LocalTarget | None:
        """Return a target for a hosted model (-1: the highest version), None when it is not hosted."""
        if version == -1:
            version = max((served_version for served, served_version in self.served if served == name), default=-1)
        served = self.served.get((name, version))
        if served is None:
            return None
        return LocalTarget(served, None if self.meters is None else self.meters.of(name, version), self.regions)

    def copies_now(self, name: str, version: int, digest: str) -> bool:
        """Whether a hosted version is a copy of what has this digest."""
        return bool(digest) and self._digest((name, version)) == digest

    def failed(self, name: str, version: int, digest: str) -> bool:
        """Whether what has this digest failed to load here."""
        return self.failures.get((name, version), ("", ""))[1] == digest

    def check(self, limit_s: float) -> None:
        """Look for versions of which an instance is stuck or dead; none of them takes requests any more.

        Raises:
            ModelFaultError: there are such versions. Only a new process makes them whole: no thread can be ended.
        """
        for key, served in self.served.items():
            fault = served.model.check(limit_s)
            if fault:
                self.faults[key] = fault
                served.ready = False
        if self.faults:
            raise ModelFaultError("; ".join(self.faults.values()))

    def _says(self, served: ServedModel) -> None:
        """Tell of what a version says of itself, but not while it is not offered at all."""
        key = served.model_name, served.version
        if served.ready and self.served.get(key) is served:
            self._changed(*key, served)

    def says_ready(self, name: str, version: int) -> bool:
        """Whether a hosted version says of itself that it is ready; true for all others."""
        served = self.served.get((name, version))
        return served is None or served.says_ready

    def fault(self, name: str, version: int) -> str:
        """Return why a hosted version does not serve, "" for all others."""
        return self.faults.get((name, version), _DOWN if (name, version) in self._down else "")

    def failure(self, name: str, version: int) -> str:
        """Return why a version failed to load here, "" for all others."""
        return self.failures.get((name, version), ("", ""))[0]

    def report(self) -> list[list[Any]]:
        """Return name, version, reason ("" when loaded), seconds and digest of what is served, and of what failed.

        Copies are not of them. A version that serves on although its successor failed has two rows.
        """
        rows: list[list[Any]] = [[*key, "", each.load_s, each.digest] for key, each in self.served.items()]
        rows += [[*key, reason, 0.0, digest] for key, (reason, digest) in self.failures.items()]
        return [row for row in rows if (row[0], row[1]) not in self.copies]

    async def close(self, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Finish what is under way and free every model within `timeout_s` and some seconds."""
        self._wanted = {}
        self.late.give_up()
        deadline_s = self._loop.time() + timeout_s
        await self._unload_in_order(self.served, timeout_s)
        await self.changes.ended(max(GRACE_S, deadline_s - self._loop.time()))
        self._slow_queue.close()
