"""From a model package to a model version: what may block first, what belongs to the event loop after."""

import asyncio
import importlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import cast

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import Backend, ModelInstance, ModelLoadError
from deployments.backends.python.server import ModelServer
from deployments.core.clock import Clock
from deployments.core.counts import Totals
from deployments.core.instance_pool import InstancePool
from deployments.core.limited_pool import LimitedPool
from deployments.core.model_version import ModelVersion
from deployments.core.pool_group import PoolGroup
from deployments.core.rate_limit import RateLimiter, needs_of
from deployments.core.response_cache import ResponseCache
from deployments.core.router import Router
from deployments.core.statistics import ModelStatistics
from deployments.core.warmup import warm_up
from deployments.schedulers.cached import CachedScheduler
from deployments.schedulers.default import DefaultScheduler
from deployments.schedulers.dynamic import DynamicBatcher, needs_policies
from deployments.schedulers.ensemble import ensemble_scheduler
from deployments.schedulers.fifo import FifoBatcher
from deployments.schedulers.implicit_states import ImplicitStates
from deployments.schedulers.scheduler import PoolScheduler, Scheduler
from deployments.schedulers.sequence import SequenceScheduler
from protocol.signature import Signature
from repository_loader.backend_traits import traits_of
from repository_loader.fingerprint import take_fingerprint
from repository_loader.loadability import check_loadable
from repository_loader.model_files import is_ensemble
from repository_loader.package import InstanceSpec, ModelPackage
from repository_loader.parameters import ParameterError

log = logging.getLogger(__name__)

MakePool = Callable[[Sequence[ModelInstance]], InstancePool]


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A package whose instances are loaded and warm; it has no scheduler yet, which knows nothing of `passive` ones."""

    package: ModelPackage
    signature: Signature
    instances: list[ModelInstance]
    passive: list[ModelInstance]
    statistics: ModelStatistics
    states: ImplicitStates | None
    files: str
    """What its files looked like; "" when they have changed meanwhile, and for a model whose responses are not kept."""


async def load(
    package: ModelPackage,
    specs: Sequence[InstanceSpec],
    clock: Clock,
    router: Router,
    step_signatures: Mapping[str, Signature] | None = None,
    cache: ResponseCache | None = None,
    max_queue_s: float = 0.0,
    server: ModelServer | None = None,
    limiter: RateLimiter | None = None,
) -> ModelVersion:
    """Prepare a package on a thread of its own and assemble it on the loop's.

    A model may wait as it loads for another that it has loaded, and must not keep a thread from that.

    Raises:
        ModelLoadError: with the reason that the repository index shows.
    """
    thread = ThreadPoolExecutor(1, f"load {package.name}")
    try:
        prepared = await asyncio.get_running_loop().run_in_executor(thread, prepare, package, specs, clock, server)
    finally:
        thread.shutdown(wait=False)
    pool_of = None if limiter is None else await _limited(prepared, specs, clock, limiter)
    return assemble(prepared, clock, router, step_signatures, cache, max_queue_s, pool_of)


async def _limited(
    prepared: PreparedModel, specs: Sequence[InstanceSpec], clock: Clock, limiter: RateLimiter
) -> MakePool | None:
    """Make the instances known to the rate limiter that need resources; return their pool, None if there are none."""
    package = prepared.package
    keys = {}
    try:
        for spec in [spec for spec in specs if not spec.passive]:
            needs = needs_of(package.config, spec)
            if needs is not None:
                key = f"{package.name}/{package.version}/{spec.name}/{secrets.token_hex(4)}"
                await limiter.add(key, needs)
                keys[spec.name] = key
    except BaseException:
        for key in keys.values():
            limiter.remove(key)
        await asyncio.to_thread(_close, [*prepared.instances, *prepared.passive])
        raise
    if not keys:
        return None
    return lambda instances: LimitedPool(instances, clock, limiter, [keys.get(each.name, "") for each in instances])


def prepare(
    package: ModelPackage,
    specs: Sequence[InstanceSpec],
    clock: Clock | None = None,
    server: ModelServer | None = None,
) -> PreparedModel:
    """Load the instances and warm them up; blocks, and may run on any thread but that of `clock`.

    `clock` is needed by decoupled models only, whose responses it brings to the loop; `server` by models that call
    others.

    Raises:
        ModelLoadError: the configuration or the backend is not supported, or not installed, or the model does not
            load or fails its warm-up.
    """
    started_ns = time.monotonic_ns()
    for fault in check_loadable(package.config, package.backend_settings):
        raise ModelLoadError(fault.message)
    signature = Signature.from_config(package.config)
    statistics = ModelStatistics(package.name, package.version, Totals())
    states = ImplicitStates.of(package)
    files = _files(package)
    loaded = [] if is_ensemble(package.config) else _load_instances(package, specs, clock, server)
    passive = [instance for instance, spec in zip(loaded, specs, strict=False) if spec.passive]
    instances = [instance for instance in loaded if instance not in passive]
    try:
        warm_up(package, signature, instances, statistics)
    except BaseException:
        _close(loaded)
        raise
    statistics.counts.load_duration_ns = time.monotonic_ns() - started_ns
    kept_files = files if files == _files(package) else ""
    return PreparedModel(package, signature, instances, passive, statistics, states, kept_files)


def assemble(
    prepared: PreparedModel,
    clock: Clock,
    router: Router,
    step_signatures: Mapping[str, Signature] | None = None,
    cache: ResponseCache | None = None,
    max_queue_s: float = 0.0,
    pool_of: MakePool | None = None,
) -> ModelVersion:
    """Give a prepared model its scheduler; quick, on the loop's thread.

    `step_signatures` holds the signatures of an ensemble's models by name. `cache` keeps the responses of a model that
    wants that, for all processes that load the same files. A queue holds what its model does in `max_queue_s` (0:
    anything), unless the model has a queue policy. `pool_of` makes pools of instances that are not free to run whenever
    they are idle.

    Raises:
        ModelLoadError: an ensemble does not fit its models.
    """
    package, signature, statistics = prepared.package, prepared.signature, prepared.statistics
    pool_of = pool_of or partial(InstancePool, clock=clock)
    passive = InstancePool(prepared.passive, clock) if prepared.passive else None

    def cached(scheduler: Scheduler) -> Scheduler:
        if cache is None or not package.config.response_cache.enable:
            return scheduler
        of_files = cache.of(prepared.files or secrets.token_hex(), signature.outputs)
        return CachedScheduler(scheduler, of_files, statistics, clock)

    if is_ensemble(package.config):
        ensemble = ensemble_scheduler(package.config, step_signatures or {}, router, statistics, clock)
        return ModelVersion(package, signature, statistics, cached(ensemble), None, clock, running=ensemble.running)
    if package.config.HasField("sequence_batching"):
        pools = PoolGroup([pool_of([instance]) for instance in prepared.instances])
        sequences = SequenceScheduler(package.config, pools.pools, statistics, clock, prepared.states)
        return ModelVersion(package, signature, statistics, sequences, pools, clock, passive)
    pool = pool_of(prepared.instances)
    scheduler = _scheduler(package, signature, pool, statistics, clock)
    if max_queue_s and not has_queue_policy(package):
        scheduler.bound_queue(max_queue_s)
    return ModelVersion(package, signature, statistics, cached(scheduler), pool, clock, passive)


def _scheduler(
    package: ModelPackage, signature: Signature, pool: InstancePool, statistics: ModelStatistics, clock: Clock
) -> PoolScheduler:
    config = package.config
    if not config.HasField("dynamic_batching"):
        return DefaultScheduler(pool, statistics, clock)
    if needs_policies(config.dynamic_batching, config.max_batch_size):
        return DynamicBatcher(config.dynamic_batching, signature, pool, statistics, clock)
    return FifoBatcher(signature, pool, statistics, clock)


def has_queue_policy(package: ModelPackage) -> bool:
    """Whether the model's configuration says which requests may wait, or for how long."""
    batching = package.config.dynamic_batching
    return batching.HasField("default_queue_policy") or bool(batching.priority_levels)


def _load_instances(
    package: ModelPackage, specs: Sequence[InstanceSpec], clock: Clock | None, server: ModelServer | None
) -> list[ModelInstance]:
    try:
        return _backend(package.config, clock, server).load(package, specs)
    except ModelLoadError:
        raise
    except ParameterError as error:  # of --backend-config
        raise ModelLoadError(str(error)) from error
    except ImportError as error:
        raise _not_installed(package, error) from error
    except Exception as error:
        log.exception("backend '%s' failed to load model '%s'", package.config.backend, package.name)
        raise ModelLoadError(f"unable to load model '{package.name}': {type(error).__name__}: {error}") from error


def _backend(config: ModelConfig, clock: Clock | None, server: ModelServer | None) -> Backend:
    """Return the one object that loads a backend's models for a core."""
    traits = traits_of(config)
    module, _, kind = traits.implementation.partition(":")
    make = getattr(importlib.import_module(module), kind)
    return cast(Backend, make(clock, server) if traits.calls_models else make(clock))


def _not_installed(package: ModelPackage, error: ImportError) -> ModelLoadError:
    missing = (error.name or "").partition(".")[0]
    requires = traits_of(package.config).requires
    if missing not in requires:
        return ModelLoadError(f"unable to load model '{package.name}': {error}")
    return ModelLoadError(
        f"unable to load model '{package.name}', backend '{package.config.backend}' needs '{missing}', which is not "
        f"installed; install it with: pip install '{requires[missing]}'"
    )


def _files(package: ModelPackage) -> str:
    """Return what tells the files of a model apart from changed ones, "" for a model whose responses are not kept."""
    return take_fingerprint(package.model_path).whole if package.config.response_cache.enable else ""


def _close(instances: Sequence[ModelInstance]) -> None:
    for instance in instances:
        try:
            instance.close()
        except Exception:
            log.exception("instance %s did not close cleanly", instance.name)
