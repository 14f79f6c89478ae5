"""The response cache of a server, over both protocols."""

from typing import Any

import numpy as np
import tritonclient.grpc

from tests.serving import Client, Server, tensor


def runs(client: Client, *values: int, **more: Any) -> int:
    answer = client.infer("cached", tensor("X", "INT32", [len(values)], values), **more)
    assert answer.status == 200, answer.body
    return int(answer.json["outputs"][0]["data"][0])


def cache_counts(server: Server) -> tuple[int, int]:
    stats = server.statistics("cached", 1)["inference_stats"]
    return stats["cache_hit"]["count"], stats["cache_miss"]["count"]


def test_the_same_request_runs_once_whatever_protocol_brings_it(server: Server) -> None:
    hits, misses = cache_counts(server)
    with Client(server.address) as client:
        first = runs(client, 1, 2, 3)
        assert [runs(client, 1, 2, 3, id=f"{number}") for number in range(3)] == [first] * 3
        assert runs(client, 1, 2, 4) == first + 1
        assert runs(client, 1, 2, 3, parameters={"a": 1}) == first + 2
    with tritonclient.grpc.InferenceServerClient(server.wait_for(r"gRPC\s+(\S+)")[1]) as client:
        taken = tritonclient.grpc.InferInput("X", [3], "INT32")
        taken.set_data_from_numpy(np.array([1, 2, 3], np.int32))
        assert client.infer("cached", [taken]).as_numpy("RUNS").tolist() == [first]
    assert cache_counts(server) == (hits + 4, misses + 3)
    with Client(server.metrics_address) as client:
        text = client.get("/metrics").body.decode()
    assert f'nv_cache_num_hits_per_model{{model="cached",version="1"}} {hits + 4}\n' in text
    assert f'nv_cache_num_misses_per_model{{model="cached",version="1"}} {misses + 3}\n' in text
