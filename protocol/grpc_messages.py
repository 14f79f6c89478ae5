"""Triton's protobuf messages about servers and models, made from the documents that HTTP answers with."""

from collections.abc import Iterable, Mapping
from typing import Any

from tritonclient.grpc import service_pb2
from tritonclient.grpc.model_config_pb2 import ModelConfig


def request_parameters(parameters: Mapping[str, str]) -> bytes:
    """Return fields that give a serialised ModelInferRequest, when they are put behind it, these parameters too."""
    message = service_pb2.ModelInferRequest()
    for name, value in parameters.items():
        message.parameters[name].string_param = value
    fields: bytes = message.SerializeToString()
    return fields


def model_config_response(config: ModelConfig) -> service_pb2.ModelConfigResponse:
    """Return the answer to ModelConfig for a completed configuration."""
    return service_pb2.ModelConfigResponse(config=config)


def model_statistics_response(snapshots: Iterable[Mapping[str, Any]]) -> service_pb2.ModelStatisticsResponse:
    """Return the answer to ModelStatistics from the statistics object of every version.

    Raises:
        ValueError: an object has a member that the message has not.
    """
    return service_pb2.ModelStatisticsResponse(model_stats=list(snapshots))


def repository_index_response(rows: Iterable[Mapping[str, str]]) -> service_pb2.RepositoryIndexResponse:
    """Return the answer to RepositoryIndex from rows of name and, where known, version, state and reason.

    Raises:
        ValueError: a row has a member that the message has not.
    """
    return service_pb2.RepositoryIndexResponse(models=[dict(row) for row in rows])
