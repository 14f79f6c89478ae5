"""Has a Python model complete its configuration on a node that it may run on: only there may be what it needs."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any, Final

import ray
from ray import serve
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from deployments.backends.auto_complete import TIMEOUT_S, complete
from deployments.backends.backend import ModelLoadError
from deployments.replica.kept_files import KeptFiles
from deployments.replica.node_folder import NodeFolder
from deployments.replica.override_files import OverrideFiles
from deployments.serve_internals import ClusterTable
from protocol.errors import ServingError
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.overrides import OverrideError, read_overrides
from repository_loader.package import moved
from repository_loader.storage.model_source import ModelSource, provide, source_of
from repository_loader.storage.remote_store import StorageError
from repository_loader.waits import waiting

_TIMEOUT_S: Final = TIMEOUT_S + 360.0
"""A node starts a process, fetches the model and unpacks its environment before it runs its code."""


class NodeCompleter:
    """Completes configurations in a cluster; blocks, on any number of threads."""

    def __init__(self, facts: ClusterFacts) -> None:
        self._facts = facts

    def __call__(self, config: ModelConfig, model_path: str, version_path: str, file_path: str) -> ModelConfig:
        """Return the configuration with what the model added; see `complete`.

        It is asked here where the model may run here, or nowhere yet.

        Raises:
            ModelLoadError: with the model's reason, or because the node did not answer.
        """
        node_ids = [node.node_id for node in possible_nodes(config, self._facts)]
        with waiting(f"running auto_complete_config of model '{config.name}'"):
            if not any(node_ids) or ray.get_runtime_context().get_node_id() in node_ids:
                return complete(config, model_path, version_path, file_path)
            owner = serve.get_replica_context().app_name
            return complete_there(node_ids[0], owner, config, model_path, version_path, file_path)


def complete_there(
    node_id: str, owner: str, config: ModelConfig, model_path: str, version_path: str, file_path: str
) -> ModelConfig:
    """Have a node complete a configuration; blocks. `owner` is whose files of clients there are.

    Raises:
        ModelLoadError: with the model's reason, or because the node did not answer.
    """
    source = source_of(model_path)
    paths = {"model_path": model_path, "version_path": version_path, "file_path": file_path}
    task = {
        "owner": owner,
        "config": config.SerializeToString(),
        "package": {"name": os.path.basename(model_path), **paths},
        "label_files": {},
        "source": None if source is None else source.to_dict(),
    }
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": there}
    try:
        answer = ray.get(ray.remote(complete_on_node).options(**options).remote(task), timeout=_TIMEOUT_S)
    except Exception as error:  # of the task, its node or its time
        raise ModelLoadError(
            f"auto_complete_config of model '{config.name}' could not be run on node {node_id}: {type(error).__name__}"
        ) from error
    if answer["error"]:
        raise ModelLoadError(answer["error"])
    return ModelConfig.FromString(answer["config"])


def possible_nodes(config: ModelConfig, facts: ClusterFacts) -> Sequence[NodeFacts]:
    """Return the nodes that a model may run on, as its configuration says before it is complete."""
    try:
        asked = read_overrides(config)
    except OverrideError:
        return facts.nodes  # which the model's validation says
    nodes = [node for node in asked.needs.met_by(facts.nodes) if node.num_cpus >= (asked.num_cpus or 0.0)]
    kinds = {group.kind for group in config.instance_group if not group.passive} or {ModelInstanceGroup.KIND_AUTO}
    if kinds == {ModelInstanceGroup.KIND_CPU} or not facts.num_gpus:
        return nodes
    return [node for node in nodes if node.num_gpus]


def complete_on_node(task: dict[str, Any]) -> dict[str, Any]:
    """Complete a configuration with the files of this node; a task of Ray's."""
    package = task["package"]
    try:
        with contextlib.ExitStack() as held:
            if task["source"] is None:
                folder = NodeFolder(ray.get_runtime_context().get_node_id())
                held.enter_context(folder.used())
                OverrideFiles(folder.path, KeptFiles(ClusterTable(), task["owner"])).bring(task)
            else:
                old = package["model_path"]
                new, descriptor = provide(ModelSource.from_dict(task["source"]), old)
                held.callback(os.close, descriptor)
                package |= {key: moved(package[key], old, new) for key in ("model_path", "version_path", "file_path")}
            paths = package["model_path"], package["version_path"], package["file_path"]
            completed = complete(ModelConfig.FromString(task["config"]), *paths)
    except (ModelLoadError, StorageError, ServingError) as error:
        return {"error": str(error), "config": b""}
    return {"error": "", "config": completed.SerializeToString()}


complete_on_node.__module__ = "eagleray"
