"""The models of one process: loads what it is told to, offers them on lanes and to an ingress of the same process."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import ModelLoadError
from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from deployments.host_router import HostRouter
from deployments.lane.fleet import Fleet
from deployments.served_model import LocalTarget, ServedModel
from deployments.shared_memory import Regions
from protocol.http_infer import HttpInferCodec
from protocol.limits import Limits
from protocol.signature import Signature
from repository_loader.package import InstanceSpec, ModelPackage
from repository_loader.serialisation import package_from_dict, package_to_dict, spec_from_dict, spec_to_dict

logger = logging.getLogger(__name__)

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A model version to host, and for an ensemble the configurations of the models in its steps."""

    package: ModelPackage
    specs: tuple[InstanceSpec, ...]
    steps: dict[str, ModelConfig] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as it travels in Serve's user_config."""
        return {
            "package": package_to_dict(self.package),
            "specs": [spec_to_dict(spec) for spec in self.specs],
            "steps": {
                name: json_format.MessageToDict(config, preserving_proto_field_name=True)
                for name, config in self.steps.items()
            },
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "HostedModel":
        """Rebuild from `to_dict`."""
        return cls(
            package_from_dict(data["package"]),
            tuple(map(spec_from_dict, data["specs"])),
            {name: json_format.ParseDict(config, ModelConfig()) for name, config in data["steps"].items()},
        )


class ModelHost:
    """Loads and unloads model versions; methods run on the loop's thread, loading itself on worker threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fleet: Fleet | None, limits: Limits) -> None:
        self._loop = loop
        self._limits = limits
        self._clock = LoopClock(loop)
        self._present: dict[Key, dict[str, Any]] = {}
        self._lock = asyncio.Lock()
        self.core = Core(self._clock)
        self.regions = Regions()
        self.router = HostRouter(self.core, fleet)
        self.served: dict[Key, ServedModel] = {}
        self.failures: dict[Key, str] = {}
        self.seconds: dict[Key, float] = {}

    async def apply(self, models: Sequence[dict[str, Any]]) -> None:
        """Make the hosted models be these (as `HostedModel.to_dict` writes them).

        What is hosted already and has not changed is left alone; a model that fails to load is noted in `failures`
        and harms no other. New versions are ready before old ones go.
        """
        async with self._lock:
            wanted: dict[Key, dict[str, Any]] = {}
            for data in models:
                package = data["package"]
                wanted[(package["name"], int(package["version"]))] = data
            fresh = [key for key, data in wanted.items() if self._present.get(key) != data]
            await asyncio.gather(*(self._load(key, HostedModel.from_dict(wanted[key])) for key in fresh))
            for key in [key for key in self._present if key not in wanted]:
                await self._unload(key)
            self._present = wanted

    async def _load(self, key: Key, hosted: HostedModel) -> None:
        started = time.monotonic()
        name, version = key
        signatures = {step: Signature.from_config(config) for step, config in hosted.steps.items()}
        self.router.set_signatures(signatures)
        try:
            model = await loader.load(hosted.package, hosted.specs, self._clock, self.router, signatures)
            codec = HttpInferCodec(
                model.signature, str(version), self._limits, read_labels(hosted.package), self.regions
            )
        except ModelLoadError as error:
            self._fail(key, error.reason)
            return
        except Exception as error:
            logger.exception("failed to load '%s' version %d", name, version)
            self._fail(key, f"{type(error).__name__}: {error}")
            return
        self.failures.pop(key, None)
        self.seconds[key] = time.monotonic() - started
        old = self.served.get(key)
        self.served[key] = ServedModel(model, (codec,))
        replaced = self.core.add(model)
        logger.info("successfully loaded '%s' version %d", name, version)
        if old is not None:
            old.ready = False
        if replaced is not None:
            await replaced.close()

    def _fail(self, key: Key, reason: str) -> None:
        name, version = key
        self.failures[key] = reason
        self.core.set_failed(name, version, reason)
        logger.error("failed to load '%s' version %d: %s", name, version, reason)

    async def _unload(self, key: Key) -> None:
        self.failures.pop(key, None)
        served = self.served.pop(key, None)
        if served is not None:
            served.ready = False
            self.core.remove(*key)
            await served.model.close()

    def target(self, name: str, version: int = -1) -> LocalTarget | None:
        """Return a target for a hosted model (-1: the highest version), None when it is not hosted."""
        if version == -1:
            version = max((served_version for served, served_version in self.served if served == name), default=-1)
        served = self.served.get((name, version))
        return None if served is None else LocalTarget(served)

    def report(self) -> list[list[Any]]:
        """Return name, version, reason ("" when loaded) and seconds of every version that was tried."""
        rows: list[list[Any]] = [[*key, "", self.seconds.get(key, 0.0)] for key in self.served]
        return rows + [[*key, reason, 0.0] for key, reason in self.failures.items()]

    def snapshot(self) -> Any:
        """Return the statistics of every hosted version, as plain data."""
        return self.core.snapshot()

    async def close(self) -> None:
        """Finish what is under way and free every model."""
        async with self._lock:
            for key in tuple(self.served):
                await self._unload(key)


def read_labels(package: ModelPackage) -> dict[str, list[str]]:
    """Return the labels of each output that has a label file; line N names index N.

    Raises:
        ModelLoadError: the file cannot be read or lies outside the model's folder.
    """
    labels: dict[str, list[str]] = {}
    root = Path(package.model_path).resolve()
    for output in package.config.output:
        if not output.label_filename:
            continue
        path = (root / output.label_filename).resolve()
        if not path.is_relative_to(root):
            raise ModelLoadError(f"label file of output '{output.name}' escapes the model's folder")
        try:
            labels[output.name] = path.read_text("utf-8", "replace").splitlines()
        except OSError as error:
            raise ModelLoadError(f"unable to read label file '{output.label_filename}': {error.strerror}") from error
    return labels
