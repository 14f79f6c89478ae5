"""What the console shows of the model that is open: its tensors, its configuration, and, of an ensemble, its graph."""

from typing import Any

import orjson
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

from app.service.model_control import NoModelControl
from app.service.service import Service
from deployments.log.model_log import failed_lines
from protocol.datatypes import name_of
from protocol.errors import NotFound
from protocol.model_metadata import model_metadata
from repository_loader.config_sentences import config_sentences
from repository_loader.ensemble_conditions import ConditionError, read_conditions

_LOG_LINES = 400


class ModelDetails:
    """Answers from the directory; `manages` says whether the port serves the admin API."""

    def __init__(self, service: Service, *, manages: bool) -> None:
        self._service = service
        self._manages = manages

    def document(self, name: str) -> dict[str, Any]:
        """Return the details of a model, whatever its state.

        Raises:
            NotFound: no such model is known.
            Unavailable: nothing is known of any model yet.
        """
        models = self._service.models
        models.require_known()
        entry = models.directory.models.get(name)
        if entry is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        may_load = self._manages and not isinstance(self._service.control, NoModelControl)
        document: dict[str, Any] = {"id": name, "may_load": may_load, "may_shift_traffic": False}
        config = entry.model_config
        if config is None:
            return document
        document |= model_metadata(config, models.ready_versions(name))
        for shown, tensor in zip(document["inputs"], config.input, strict=True):
            shown |= _more_of(tensor)
        for shown, tensor in zip(document["outputs"], config.output, strict=True):
            shown |= _more_of(tensor)
        document |= {
            "max_batch_size": config.max_batch_size,
            "decoupled": config.model_transaction_policy.decoupled,
            "sequences": config.HasField("sequence_batching"),
            "config": config_sentences(config),
        }
        if config.ensemble_scheduling.step:
            document["graph"] = self._graph(config)
        if len(entry.versions) > 1:
            document["traffic"] = self._service.traffic.show(name)
            document["may_shift_traffic"] = self._manages
        return document

    def _graph(self, config: ModelConfig) -> dict[str, Any]:
        """Return the steps of an ensemble, and the datatype and shape of each tensor between them."""
        try:
            conditions = read_conditions(config).when
        except ConditionError:
            conditions = {}
        tensors = {each.name: _shape(each) for each in (*config.input, *config.output)}
        steps = []
        for number, step in enumerate(config.ensemble_scheduling.step):
            model = self._service.models.config(step.model_name)
            made = {} if model is None else {each.name: _shape(each) for each in model.output}
            for own, tensor in step.output_map.items():
                tensors.setdefault(tensor, made.get(own, ""))
            condition = conditions.get(number)
            steps.append(
                {
                    "model": step.model_name,
                    "version": step.model_version,
                    "takes": sorted(set(step.input_map.values())),
                    "makes": sorted(step.output_map.values()),
                    "when": f"{condition.tensor} {condition.comparison} {condition.value}" if condition else "",
                }
            )
        return {
            "inputs": [each.name for each in config.input],
            "outputs": [each.name for each in config.output],
            "steps": steps,
            "tensors": tensors,
        }

    async def log(self, name: str) -> dict[str, Any]:
        """Return the last lines that a model has logged on each node, and which of them say what went wrong.

        Raises:
            NotFound: no such model is known.
        """
        if name not in self._service.models.directory.models:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        nodes = []
        for node in await self._service.cluster.logs(name, _LOG_LINES):
            lines = [line for _, line in node.lines]
            nodes.append({"node": node.node_id, "lines": lines, "failed": failed_lines(lines, name)})
        return {"nodes": nodes}


def _more_of(tensor: ModelInput | ModelOutput) -> dict[str, Any]:
    if isinstance(tensor, ModelInput):
        return {"optional": tensor.optional, "format": ModelInput.Format.Name(tensor.format)}
    return {"labels": bool(tensor.label_filename)}


def _shape(tensor: ModelInput | ModelOutput) -> str:
    return f"{name_of(tensor.data_type)} {orjson.dumps(list(tensor.dims)).decode()}"
