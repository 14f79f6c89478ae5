import pytest
from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.core.statistics_document import documents
from protocol import grpc_messages
from tests.protocol.test_model_metadata import CONFIG


def config() -> ModelConfig:
    return text_format.Parse(CONFIG, ModelConfig())


def test_model_config_is_the_whole_configuration() -> None:
    assert grpc_messages.model_config_response(config()).config == config()


def test_model_statistics_of_a_version_that_has_run() -> None:
    totals = Totals()
    ModelStatistics("m", 3, totals).record_failure("BACKEND", 5)
    (snapshot,) = documents(totals)
    snapshot["batch_stats"] = [{"batch_size": 4, "compute_infer": {"count": 2, "ns": 7}}]
    snapshot["response_stats"] = {"0": {"success": {"count": 1, "ns": 9}}}
    snapshot["memory_usage"] = [{"type": "GPU", "id": 1, "byte_size": 2**40}]
    (stats,) = grpc_messages.model_statistics_response([snapshot]).model_stats
    assert (stats.name, stats.version, stats.inference_stats.fail.count, stats.inference_stats.fail.ns) == (
        "m",
        "3",
        1,
        5,
    )
    assert (stats.batch_stats[0].batch_size, stats.batch_stats[0].compute_infer.ns) == (4, 7)
    assert stats.response_stats["0"].success.ns == 9
    assert stats.memory_usage[0].byte_size == 2**40


def test_model_statistics_of_none() -> None:
    assert len(grpc_messages.model_statistics_response([]).model_stats) == 0


def test_repository_index() -> None:
    rows = [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "b", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]
    response = grpc_messages.repository_index_response([*rows, {"name": "c"}])
    assert [MessageToDict(row) for row in response.models] == [*rows, {"name": "c"}]


def test_members_without_a_place_are_an_error() -> None:
    with pytest.raises(ValueError, match="other"):
        grpc_messages.repository_index_response([{"name": "a", "other": "x"}])
