"""Models of the same name in several repositories: with `--model-namespacing` each is known by an identifier.

Source: core's ModelIdentifier and its model repository manager, whose texts these are. There an identifier is
`<repository>::<model>`; here it is short and has no slash, as it names a Serve application too.
"""

import hashlib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.snapshot import RepositoryModel

_MAX_TAIL: Final = 40
_IDENTIFIER: Final = re.compile(r"(.+)@[A-Za-z0-9_.-]*-[0-9a-f]{8}", re.DOTALL)


def identifier(name: str, repository: str) -> str:
    """Return what a model is known by whose name another repository has too."""
    tail = os.path.basename(repository.partition("?")[0].rstrip("/")).rpartition("@")[2]
    digest = hashlib.sha256(repository.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{name}@{re.sub('[^A-Za-z0-9_.-]', '_', tail)[:_MAX_TAIL]}-{digest}"


def shared_name(known: str) -> str:
    """Return the name that the repositories have for what is known by an identifier, "" for any other name."""
    found = _IDENTIFIER.fullmatch(known)
    return found[1] if found else ""


def identifiers(name: str, known: Collection[str]) -> list[str]:
    """Return the identifiers among names for models of one name, in order."""
    start = f"{name}@"
    return sorted(each for each in known if each.startswith(start) and shared_name(each) == name)


def meant_by(name: str, known: Collection[str], *, namespacing: bool) -> list[str]:
    """Return what a name stands for: itself where it is known, else the models that share it; none is possible.

    Without namespaces a name that looks like an identifier is one like any other.
    """
    if name in known:
        return [name]
    return identifiers(name, known) if namespacing else []


def ambiguous(name: str, count: int) -> str:
    """Return Triton's text for a request that names several models."""
    return (
        f"There are {count} identifiers of model '{name}' in global map, model namespace must be provided to resolve "
        "ambiguity."
    )


@dataclass(frozen=True, slots=True)
class FoundModels:
    """The folders of each model, by the name that it is known by, the repository that each is in, and its own name."""

    folders: Mapping[str, list[str]]
    repositories: Mapping[str, str]
    names: Mapping[str, str]

    def placed(self, model: RepositoryModel, known: str) -> RepositoryModel:
        """Return a model as it is known; an ensemble has its steps from its own repository where that has them.

        A step that is neither there nor in exactly one other stays as it is, which no model is known by.
        """
        steps = {} if model.config is None else self._steps(model.config, known)
        repository = self.repositories.get(known, "")
        namespace = identifier("", repository)
        packages = tuple(
            replace(package, name=known, config=_with_steps(package.config, steps), namespace=namespace)
            for package in model.packages
        )
        config = model.config and _with_steps(model.config, steps)
        return replace(model, name=known, config=config, packages=packages, namespace=repository)

    def _steps(self, config: ModelConfig, known: str) -> dict[str, str]:
        own = {
            step.model_name: identifier(step.model_name, self.repositories.get(known, ""))
            for step in config.ensemble_scheduling.step
        }
        return {name: preferred for name, preferred in own.items() if preferred in self.folders}


def _with_steps(config: ModelConfig, steps: Mapping[str, str]) -> ModelConfig:
    if not steps:
        return config
    copy = ModelConfig.FromString(config.SerializeToString())
    for step in copy.ensemble_scheduling.step:
        step.model_name = steps.get(step.model_name, step.model_name)
    return copy
