"""A model version, complete and checked, ready to be loaded somewhere."""

from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """What a backend needs to load one version of one model.

    `config` is the completed configuration (as `GET …/config` shows it). `model_path` is `<repository>/<model>`,
    `version_path` the version's folder inside it, `file_path` the model file or folder that the backend opens ("" for
    ensembles), relative names already resolved.
    """

    name: str
    version: int
    config: ModelConfig
    model_path: str
    version_path: str
    file_path: str
    backend_settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One instance of a model, as `instance_group` asks for it.

    `kind` is CPU, GPU or MODEL. `device` is the CUDA device as the process sees it (0 under Ray, which hides the
    others), 0 for CPU. `name` is `<group>_<index>`, as in Triton's messages.
    """

    name: str
    kind: str
    device: int
