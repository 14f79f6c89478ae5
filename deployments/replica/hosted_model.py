"""A model version that a process is to host; it travels in Serve's user_config as plain data."""

import hashlib
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import orjson
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import ModelLoadError
from protocol.signature import Signature
from repository_loader.deployment_plan import ModelPlan, Plan
from repository_loader.overrides import PREFIX
from repository_loader.package import (
    IN_PLACE_FIELDS,
    IN_PLACE_PARAMETERS,
    InstanceSpec,
    ModelPackage,
    lasting,
    moved,
)
from repository_loader.serialisation import package_from_dict, package_to_dict
from repository_loader.storage.model_source import ModelSource, provide
from repository_loader.storage.remote_store import StorageError

KEEPS_FORMER: Final = "keeps_former"
"""The revision of which a version is to be kept, when it is replaced; the version is the same without it."""


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A model version to host.

    `steps` are the configurations of the models in an ensemble's steps, `label_files` the paths of the outputs' label
    files; an output of an ensemble without one of its own has that of the step which makes it, and `label_sources`
    says where other nodes get that file from. `mixed` are the steps whose versions differ in inputs or outputs.
    """

    package: ModelPackage
    specs: tuple[InstanceSpec, ...]
    steps: dict[str, ModelConfig] = field(default_factory=dict)
    label_files: dict[str, str] = field(default_factory=dict)
    label_sources: dict[str, ModelSource] = field(default_factory=dict)
    mixed: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: ModelPlan, packages: "Packages") -> "HostedModel":
        """Return a planned model; `packages` are all models of the plan."""
        steps = {name: _as_step(packages[name].config) for name in model.dependencies if name in packages}
        files = _label_files(model.package, packages, {})
        sources = {
            output: maker.source.only(os.path.relpath(path, maker.model_path))
            for output, path in files.items()
            for maker in packages.values()
            if maker.source is not None and path.startswith(f"{maker.model_path}/") and maker.name != model.name
        }
        return cls(model.package, model.specs, steps, files, sources, tuple(sorted(packages.mixed & steps.keys())))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; what has another `digest` has to be loaded anew."""
        data = self._to_dict()
        config = data["package"]["config"]
        alike = {name: value for name, value in config.items() if name not in IN_PLACE_FIELDS}
        parameters = {
            key: value for key, value in config.get("parameters", {}).items() if key not in IN_PLACE_PARAMETERS
        }
        alike["parameters"] = parameters
        instances = [{**spec, "name": ""} for spec in data["specs"]]
        loaded = data | {"package": data["package"] | {"config": alike}, "specs": instances}
        digest = hashlib.sha256(orjson.dumps(loaded, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
        return data | {"digest": digest}

    def _to_dict(self) -> dict[str, Any]:
        return {
            "package": package_to_dict(self.package),
            "specs": [asdict(spec) for spec in self.specs],
            "steps": {
                name: json_format.MessageToDict(config, preserving_proto_field_name=True)
                for name, config in self.steps.items()
            },
            "label_files": self.label_files,
            "label_sources": {output: source.to_dict() for output, source in self.label_sources.items()},
        } | ({"mixed": self.mixed} if self.mixed else {})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "HostedModel":
        """Rebuild what `to_dict` took apart."""
        return cls(
            package_from_dict(data["package"]),
            tuple(InstanceSpec(**spec) for spec in data["specs"]),
            {name: json_format.ParseDict(config, ModelConfig()) for name, config in data["steps"].items()},
            dict(data["label_files"]),
            {output: ModelSource.from_dict(source) for output, source in data["label_sources"].items()},
            tuple(data.get("mixed", ())),
        )

    def step_signatures(self) -> dict[str, Signature]:
        """Return by what each step is asked."""
        signatures = {name: Signature.from_config(config) for name, config in self.steps.items()}
        return signatures | {name: replace(signatures[name], of_one_version=True) for name in self.mixed}

    def provided(self) -> "tuple[HostedModel, list[int]]":
        """Have every file on this node; returns the model with its paths here, and descriptors that keep them here.

        A model without a source is where it says. Blocks while files are fetched.

        Raises:
            ModelLoadError: a file cannot be had.
        """
        held: list[int] = []
        package, labels = self.package, dict(self.label_files)
        try:
            if package.source is not None:
                folder, descriptor = provide(package.source, package.model_path)
                held.append(descriptor)
                package = package.moved_to(folder)
                labels = {output: moved(path, self.package.model_path, folder) for output, path in labels.items()}
            for output, source in self.label_sources.items():
                ((name, _, _, _),) = source.files
                folder, descriptor = provide(source, self.label_files[output].removesuffix(f"/{name}"))
                held.append(descriptor)
                labels[output] = f"{folder}/{name}"
        except StorageError as error:
            release(held)
            raise ModelLoadError(f"unable to load model '{package.name}': {error}") from error
        return replace(self, package=package, label_files=labels), held

    def read_labels(self) -> dict[str, list[str]]:
        """Return the labels of each output that has a label file; line N names index N.

        Nothing but a line's end divides labels; bytes that are not UTF-8 are kept as with `surrogateescape`.

        Raises:
            ModelLoadError: a file cannot be read.
        """
        labels: dict[str, list[str]] = {}
        for output, path in self.label_files.items():
            try:
                lines = Path(path).read_bytes().splitlines()
            except OSError as error:
                name = Path(path).name
                raise ModelLoadError(f"unable to read label file '{name}': {error.strerror}") from error
            labels[output] = [line.decode("utf-8", "surrogateescape") for line in lines]
        return labels


def key_of(data: Mapping[str, Any]) -> tuple[str, int]:
    """Return name and version of a model as `HostedModel.to_dict` writes it."""
    package = data["package"]
    return package["name"], int(package["version"])


def _as_step(config: ModelConfig) -> ModelConfig:
    """Return what an ensemble is loaded with of a step: nothing of where and how often that runs."""
    step = lasting(config)
    for key in [key for key in step.parameters if key.startswith(PREFIX)]:
        del step.parameters[key]
    return step


def release(held: Sequence[int]) -> None:
    """Keep files of a model no longer."""
    for descriptor in held:
        os.close(descriptor)


class Packages(dict[str, ModelPackage]):
    """Every model of a plan, the highest version of each; `mixed` are those whose versions are not asked alike.

    Of versions whose former revisions `may_come_back` the processes keep those, as long as they are told so.
    """

    def __init__(
        self,
        packages: Mapping[str, ModelPackage] = MappingProxyType({}),
        mixed: Set[str] = frozenset(),
        may_come_back: Mapping[tuple[str, int], str] = MappingProxyType({}),
    ) -> None:
        super().__init__(packages)
        self.mixed = mixed
        self._may_come_back = may_come_back
        self._told: dict[int, tuple[ModelPlan, dict[str, Any]]] = {}

    def told(self, model: ModelPlan) -> dict[str, Any]:
        """Return what a process is told that hosts a model of the plan, which is not to be changed."""
        known = self._told.get(id(model))
        if known is None:
            known = self._told[id(model)] = (model, HostedModel.of(model, self).to_dict())
        former = self._may_come_back.get((model.name, model.version))
        return known[1] if former is None else known[1] | {KEEPS_FORMER: former}

    def take_told(self, former: "Packages", plan: Plan) -> None:
        """Take what is told of those models that an earlier plan had too; of ensembles it follows from their steps."""
        stay = [model for model in plan.models if id(model) in former._told and not model.dependencies]
        self._told.update({id(model): former._told[id(model)] for model in stay})


def packages_by_name(plan: Plan, may_come_back: Mapping[tuple[str, int], str] = MappingProxyType({})) -> Packages:
    """Return the models of a plan; of one that leaves its place, what will be."""
    ordered = sorted(plan.models, key=lambda model: (model.version, not model.leaving))
    packages = {model.name: model.package for model in ordered}
    others = [model for model in ordered if model.version != packages[model.name].version and not model.leaving]
    mixed = {
        other.name
        for other in others
        if Signature.from_config(other.package.config).interface
        != Signature.from_config(packages[other.name].config).interface
    }
    return Packages(packages, mixed, may_come_back)


def _label_files(
    package: ModelPackage, packages: Mapping[str, ModelPackage], known: dict[str, dict[str, str]]
) -> dict[str, str]:
    """Return the label files by output, and note them in `known`: a model may be a step in many places."""
    if package.name in known:
        return known[package.name]
    files = {
        output.name: str(Path(package.model_path, output.label_filename))
        for output in package.config.output
        if output.label_filename
    }
    for step in package.config.ensemble_scheduling.step:
        maker = packages.get(step.model_name)
        if maker is None:
            continue
        made = _label_files(maker, packages, known)
        for output, tensor in step.output_map.items():
            if output in made:
                files.setdefault(tensor, made[output])
    outputs = {output.name for output in package.config.output}
    known[package.name] = {tensor: path for tensor, path in files.items() if tensor in outputs}
    return known[package.name]
