"""A repository as it was found: every model, loadable or not, with what there is to say about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig

from protocol.by_name import ByName
from repository_loader.findings import Finding
from repository_loader.package import ModelPackage
from repository_loader.storage.model_cache import DEFAULT_CACHE_DIR


@dataclass(frozen=True, slots=True)
class LoaderOptions(ByName):
    """How a repository is read.

    `gpu_count` GPUs may be used, by the numbers from 0. `kind_gpu_fallback_to_cpu` turns Triton's
    error for KIND_GPU without a GPU into a warning. `model_config_name` is `--model-config-name`. `backend_settings`
    are `--backend-config` values by backend; the key "" is for all backends. `cache_dir` is where remote repositories
    are mirrored, `backend_directory` where Python-based backends are, "" nowhere. `namespacing` is
    `--model-namespacing`. `names` are those of models that are not called as their folders, by repository and folder.
    """

    disable_auto_complete_config: bool = False
    gpu_count: int = 0
    model_config_name: str = ""
    kind_gpu_fallback_to_cpu: bool = False
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cache_dir: str = DEFAULT_CACHE_DIR
    backend_directory: str = ""
    namespacing: bool = False
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Override:
    """What takes the place of a model's config.pbtxt and, with a `model_path`, of its folder in the repository."""

    config: ModelConfig
    model_path: str = ""


@dataclass(frozen=True, slots=True)
class RepositoryModel:
    """One model of a repository.

    `config` is the completed configuration of the highest version, None if there is none that makes sense. `packages`
    are the versions to serve, ascending; empty when `failure` says why the model cannot be loaded; `failed_version` is
    then the version that was looked at, if it was one. `fingerprint` changes with any of its files. With
    `--model-namespacing`, `namespace` is the repository's path or address. `config_path` and the findings name the
    files of a remote model by its address, where no program finds them.
    """

    name: str
    model_path: str
    config: ModelConfig | None
    packages: tuple[ModelPackage, ...]
    findings: tuple[Finding, ...]
    failure: str | None
    config_path: str = ""
    fingerprint: str = ""
    namespace: str = ""
    failed_version: int | None = None

    def package(self, version: int) -> ModelPackage | None:
        """Return one version, the highest for -1."""
        if version == -1:
            return self.packages[-1] if self.packages else None
        return next((package for package in self.packages if package.version == version), None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All models by name, and findings that belong to no model."""

    models: dict[str, RepositoryModel]
    findings: tuple[Finding, ...] = ()
