"""The Python backend: loads a `model.py` into instances."""

import logging
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final

from deployments.backends.backend import ModelInstance, ModelLoadError
from deployments.backends.python import pb_utils  # noqa: F401, models import pb_utils by its own name
from deployments.backends.python.home_thread import HomeThread
from deployments.backends.python.loading import NEEDS_MAIN_THREAD, load_instance
from deployments.backends.python.model_module import ModelModule
from deployments.backends.python.process.child import LoadOrder
from deployments.backends.python.process.environment import Environment, environment_at
from deployments.backends.python.process.exchange import signature_fields
from deployments.backends.python.process.process_instance import ProcessInstance
from deployments.backends.python.reply_queue import ReplyQueue
from deployments.backends.python.server import ModelServer, NamespacedServer
from deployments.core.clock import Clock
from protocol.signature import Signature
from repository_loader.config_json import config_to_json
from repository_loader.gpu_inputs import keeps_inputs_on_gpus
from repository_loader.model_files import shown_path
from repository_loader.overrides import read_overrides
from repository_loader.package import InstanceSpec, ModelPackage
from repository_loader.side_files import named_environment

_LOG = logging.getLogger(__name__)

_MAY_WAIT = re.compile(
    r"\bInferenceRequest\b|\bget_response_sender\b|\basync_exec\b|\.exec\(|\b(?:un)?load_model\b|\bis_model_ready\b"
    r"|\bis_cancelled\b"
)
"""Words in a model's code that say it may wait for the event loop, or for what that hears, or a thread of its own."""
_KNOWS_ITS_THREAD = re.compile(
    r"\b(?:asyncio|contextvars|decimal|seterr|sqlite3|threading|cuda|cupy|jax|mxnet|paddle|pycuda|tensorflow|torch)\b"
)
"""Words that say it may have something that is bound to a thread, of its own or in a library."""
_SETS_HANDLERS = re.compile(r"\bsignal\.signal\b|\bfrom signal import\b|\badd_signal_handler\b")
"""Words in a model's files that say it needs a main thread; what others call for it, its `initialize` tells."""
_STARTS_PROCESSES = re.compile(
    r"\bmultiprocess(?:ing)?\b|\bProcessPoolExecutor\b|\bos\.fork\b|\bfrom os import\b.*\bfork\b"
    r"|\bjoblib\b.*\bParallel\b"
)
"""Words that say it may fork or spawn: the connections of a replica would be copied, and what is spawned finds a
model's functions by the plain names of their modules, which those of a model in a replica do not have."""
_MAX_FILES: Final = 1000
"""Of a model's folders that are looked at for such words."""

_LOADING_COUNT: Final = 4
"""Processes of one model that load at the same time."""


class PythonBackend:
    """Loads Python models; each instance imports the model anew, as each process of Triton does.

    `clock` is the core's; without one decoupled models, which answer from any thread at any time, cannot be loaded.
    `server` is what models may ask, None: they cannot call others.
    """

    def __init__(self, clock: Clock | None = None, server: ModelServer | None = None) -> None:
        self._clock = clock
        self._server = server

    def load(self, package: ModelPackage, specs: Sequence[InstanceSpec]) -> list[ModelInstance]:
        """Import the model and call `initialize`, once for each spec.

        Raises:
            ModelLoadError: the file or its class is missing, or the model's own code raised; the reason names the
                exception and its message, the log has the traceback.
        """
        check_file(package.model_path, package.file_path)
        signature = Signature.for_backend(package.config)
        if signature.decoupled and self._clock is None:
            raise ModelLoadError(f"decoupled model '{package.name}' needs a core that brings responses to its loop")
        instances: list[ModelInstance] = []
        failure: BaseException | None = None
        # Only what has a process of its own can be loaded beside others.
        apart = all(spec.own_process for spec in specs)
        with ThreadPoolExecutor(_LOADING_COUNT if apart else 1) as threads:
            begun: list[Future[ModelInstance]] = []
            try:
                begun += (threads.submit(self._load_instance, package, signature, spec) for spec in specs)
            except RuntimeError as error:  # the system has no more threads
                failure = error
            for loading in begun:
                try:
                    instances.append(loading.result())
                except BaseException as error:
                    failure = failure or error
        if failure is not None:
            for instance in instances:
                instance.close()
            raise failure
        return instances

    def _load_instance(self, package: ModelPackage, signature: Signature, spec: InstanceSpec) -> ModelInstance:
        server = self._server
        if server is not None and package.namespace:
            server = NamespacedServer(server, package.namespace)
        if spec.own_process or _needs_process(package):
            return _load_apart(package, signature, spec, server)
        try:
            return self._load_here(package, signature, spec, server)
        except ModelLoadError as error:
            if NEEDS_MAIN_THREAD not in error.reason:
                raise
        _LOG.info("model instance '%s' sets signal handlers, for which it gets a process of its own", spec.name)
        return _load_apart(package, signature, spec, server)

    def _load_here(
        self, package: ModelPackage, signature: Signature, spec: InstanceSpec, server: ModelServer | None
    ) -> ModelInstance:
        module = ModelModule(package.model_path, package.version_path, server)
        replies = None
        if signature.decoupled:
            assert self._clock is not None
            replies = ReplyQueue(self._clock.call_soon_threadsafe)
        load = partial(
            load_instance,
            module,
            package.file_path,
            spec.name,
            initialize_args(package, spec),
            signature,
            replies,
            opens_devices=keeps_inputs_on_gpus(package.config, spec),
            answers_late=self._clock is not None and _answers_late(package, signature),
        )
        home = HomeThread(spec.name)
        try:
            instance = home.call(load)
        except BaseException:
            home.end()
            raise
        code = [file for file in module.source_files() if file.endswith(".py")]
        may_leave = read_overrides(package.config).inline or not _any_has(_KNOWS_ITS_THREAD, code)
        instance.may_run_inline = instance.may_run_inline and may_leave and not _any_has(_MAY_WAIT, code)
        if instance.may_run_inline:
            home.end()
        else:
            instance.stay_on(home)
        return instance


def check_file(model_path: str, file_path: str) -> None:
    """Check that the model file is there and is Python.

    Raises:
        ModelLoadError: with the path inside the repository.
    """
    shown = shown_path(file_path, model_path)
    if not file_path.endswith(".py"):
        raise ModelLoadError(f"the model name in 'default_model_filename' must end with '.py', got '{shown}'")
    if not os.path.isfile(file_path):
        raise ModelLoadError(f"Python model file not found in '{shown}'")


def initialize_args(package: ModelPackage, spec: InstanceSpec) -> dict[str, str]:
    """Return what `initialize` of an instance is given."""
    return {
        "model_config": config_to_json(package.config),
        "model_instance_kind": spec.kind,
        "model_instance_name": spec.name,
        "model_instance_device_id": str(spec.device),
        "model_repository": package.model_path,
        "model_version": str(package.version),
        "model_name": package.name,
    }


def _load_apart(
    package: ModelPackage, signature: Signature, spec: InstanceSpec, server: ModelServer | None
) -> ModelInstance:
    timeout_ms = read_overrides(package.config).execution_timeout_ms or 0.0
    order = _load_order(package, signature, spec, _environment(package))
    return ProcessInstance(order, server, timeout_ms / 1000)


def _environment(package: ModelPackage) -> Environment | None:
    value = named_environment(package.config)
    return environment_at(value, package.model_path) if value else None


def _load_order(
    package: ModelPackage, signature: Signature, spec: InstanceSpec, environment: Environment | None
) -> LoadOrder:
    return LoadOrder(
        spec.name,
        package.file_path,
        package.version_path,
        package.model_path,
        signature_fields(signature),
        initialize_args(package, spec),
        signature.decoupled,
        environment,
        keeps_inputs_on_gpus(package.config, spec),
        _answers_late(package, signature),
    )


def _answers_late(package: ModelPackage, signature: Signature) -> bool:
    """Return whether an instance may take its next batch while senders of the one before are unused, as in Triton.

    Not where the next request depends on the answer to this one, or a batch has to end in time.
    """
    config = package.config
    ordered = config.HasField("sequence_batching") or config.dynamic_batching.preserve_ordering
    timed = read_overrides(config).execution_timeout_ms is not None
    return not (signature.decoupled or ordered or timed)


def _needs_process(package: ModelPackage) -> bool:
    """Return whether the model's files say that it sets signal handlers or starts processes."""
    folders = dict.fromkeys((Path(package.file_path).parent, Path(package.version_path)))
    own = chain.from_iterable(chain(folder.glob("*.py"), folder.glob("*/*.py")) for folder in folders)
    helpers = chain(own, Path(package.model_path).glob("*.py"))
    files = (file for file in helpers if file.is_file())
    code = [Path(package.file_path), *islice(files, _MAX_FILES)]
    return _any_has(_SETS_HANDLERS, code) or _any_has(_STARTS_PROCESSES, code)


def _any_has(words: re.Pattern[str], files: Iterable[str | Path]) -> bool:
    return any(words.search(Path(file).read_text(errors="replace")) for file in files)
