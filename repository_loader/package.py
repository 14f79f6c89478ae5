"""A model version, complete and checked, ready to be loaded somewhere."""

from dataclasses import dataclass, field, replace
from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.storage.model_source import ModelSource

IN_PLACE_FIELDS: Final = ("version_policy", "instance_group")
"""Fields of a configuration whose change alone needs no loading of a version that runs already."""
IN_PLACE_PARAMETERS: Final = frozenset(
    f"eagleray.{name}"
    for name in (
        "traffic",
        "shadow",
        "replicas",
        "autoscaling.min_replicas",
        "autoscaling.max_replicas",
        "autoscaling.target_ongoing_requests",
        "autoscaling.target_latency_ms",
        "autoscaling.downscale_delay_s",
        "autoscaling.start_timeout_s",
    )
)
"""Keys of `parameters` of which the same is true."""


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """What a backend needs to load one version of one model.

    `config` is the completed configuration (as `GET …/config` shows it). `model_path` is `<repository>/<model>`,
    `version_path` the version's folder inside it, `file_path` the model file or folder that the backend opens ("" for
    ensembles), relative names already resolved. `source` says where another node gets the folder from; without one it
    is on every node. Another `revision` says that it is to be loaded again, though nothing else here differs: its files
    have changed. With `--model-namespacing`, `namespace` is what the identifiers of its repository's models end in.
    """

    name: str
    version: int
    config: ModelConfig
    model_path: str
    version_path: str
    file_path: str
    backend_settings: dict[str, str] = field(default_factory=dict)
    source: ModelSource | None = None
    revision: str = ""
    namespace: str = ""

    def runs_as(self, other: "ModelPackage") -> bool:
        """Whether another package differs at most in what needs no loading."""
        return replace(self, config=lasting(self.config)) == replace(other, config=lasting(other.config))

    def moved_to(self, model_path: str) -> "ModelPackage":
        """Return the package with its folder at another place."""
        version_path = moved(self.version_path, self.model_path, model_path)
        file_path = moved(self.file_path, self.model_path, model_path)
        return replace(self, model_path=model_path, version_path=version_path, file_path=file_path)


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One instance of a model, as `instance_group` asks for it.

    `kind` is CPU, GPU or MODEL. `device` is the CUDA device as the process sees it (0 under Ray, which hides the
    others), 0 for CPU. `name` is `<group>_<index>`, as in Triton's messages. `own_process` says that a Python model's
    instance has a process to itself, because others would share the replica's with it. A `passive` one is loaded and
    gets no requests.
    """

    name: str
    kind: str
    device: int
    own_process: bool = False
    passive: bool = False


def lasting(config: ModelConfig) -> ModelConfig:
    """Return a configuration without what may change while its versions run."""
    copy = ModelConfig()
    copy.CopyFrom(config)
    for name in IN_PLACE_FIELDS:
        copy.ClearField(name)
    for key in IN_PLACE_PARAMETERS & copy.parameters.keys():
        del copy.parameters[key]
    return copy


def moved(path: str, old: str, new: str) -> str:
    """Return where a path below one folder is below another; others stay."""
    return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path
