"""Packages as plain JSON values, so that they can travel in a deployment's `user_config`."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.package import ModelPackage
from repository_loader.python_based_backend import file_here
from repository_loader.storage.model_source import ModelSource

Json = dict[str, Any]


def package_to_dict(package: ModelPackage) -> Json:
    """Return the package with its configuration in protobuf's JSON form."""
    return {
        "name": package.name,
        "version": package.version,
        "config": json_format.MessageToDict(package.config, preserving_proto_field_name=True),
        "model_path": package.model_path,
        "version_path": package.version_path,
        "file_path": package.file_path,
        "backend_settings": dict(package.backend_settings),
        "source": None if package.source is None else package.source.to_dict(),
        "revision": package.revision,
        "namespace": package.namespace,
    }


def package_from_dict(values: Mapping[str, Any]) -> ModelPackage:
    """Rebuild what `package_to_dict` took apart, on a node perhaps where Eagleray is installed elsewhere."""
    config = json_format.ParseDict(values["config"], ModelConfig())
    source = None if values["source"] is None else ModelSource.from_dict(values["source"])
    file_path = file_here(values["file_path"])
    return ModelPackage(**{**values, "config": config, "source": source, "file_path": file_path})
