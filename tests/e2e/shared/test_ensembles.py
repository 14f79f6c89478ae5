"""Ensembles on a whole server: decoupled steps, conditions, and clients that leave."""

import json
import time

import numpy as np
import tritonclient.grpc

from tests.e2e.shared.test_decoupled import Stream, ended_count, final
from tests.e2e.shared.test_faults import canceled, pending
from tests.serving import Server, infer_path, tensor, wait_until


def test_a_decoupled_step_makes_the_ensemble_decoupled(server: Server) -> None:
    stream = Stream(server)
    stream.count_down("countdown_told", 3, "three", empty_end=True)
    told = [stream.response() for _ in range(3)]
    texts = [json.loads(response.raw_output_contents[0][4:]) for response in told]
    assert [(text["x"], text["id"]) for text in texts] == [(3, "three"), (2, "three"), (1, "three")]
    assert [final(response) for response in told] == [False, False, True]
    stream.nothing_more()
    stream.client.close()
    answer = server.post("/v2/models/countdown_told/generate_stream", {"COUNT": 2})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.body.decode().split("\n\n") if line]
    assert [json.loads(event["INFO"])["x"] for event in events] == [2, 1]
    refused = server.infer("countdown_told", tensor("COUNT", "INT32", [1], [1]))
    assert refused.status == 501 and "decoupled transaction policy" in refused.error
    assert server.get("/v2/models/countdown_told/config").json["model_transaction_policy"] == {"decoupled": True}


def test_a_step_whose_condition_does_not_hold_is_not_run(server: Server) -> None:
    before = server.statistics("floats")["inference_count"], server.statistics("gated")["inference_count"]
    for given, answered in (([0.1, 0.9], [0.1, 0.9]), ([0.1, 0.2], [-1])):
        answer = server.infer("gated", tensor("X", "FP32", [2], given))
        assert answer.status == 200, answer.body
        np.testing.assert_allclose(answer.json["outputs"][0]["data"], answered, rtol=1e-6)
    after = server.statistics("floats")["inference_count"], server.statistics("gated")["inference_count"]
    assert (after[0] - before[0], after[1] - before[1]) == (1, 2)


def test_steps_of_clients_that_have_left_do_not_run(server: Server) -> None:
    def seconds(value: float) -> dict[str, object]:
        return {"inputs": [tensor("SECONDS", "FP32", [1], [value])]}

    def count() -> tuple[int, float, int]:
        statistics = server.statistics("slow")
        return statistics["execution_count"], canceled(server, "slow"), failures(server, "slow_twice")

    before = count()
    wanted = tritonclient.grpc.InferInput("SECONDS", [1], "FP32")
    wanted.set_data_from_numpy(np.array([60], np.float32))
    stream = Stream(server)
    with server.client() as first, server.client() as last:
        first.send("POST", infer_path("slow"), seconds(3))
        server.statistics("slow")  # comes after the request on every way that leads to the model
        with server.client() as leaving:
            leaving.send("POST", infer_path("slow_twice"), seconds(60))
            call = stream.client.async_infer("slow_twice", [wanted], lambda result, error: None)
            stream.client.async_stream_infer("slow_twice", [wanted])
            wait_until(lambda: pending(server, "slow") == 3, "the steps in the queue")
        call.cancel()
        stream.client.stop_stream(cancel_requests=True)
        stream.client.close()
        last.send("POST", infer_path("slow"), seconds(0))
        assert (first.receive().status, last.receive().status) == (200, 200)
    wait_until(lambda: count()[2] == before[2] + 3, "the end of the ensembles")
    after = count()
    assert (after[0] - before[0], after[1] - before[1]) == (2, 3)


def failures(server: Server, model: str) -> int:
    return int(server.statistics(model)["inference_stats"]["fail"]["count"])


def test_a_client_that_leaves_the_stream_of_an_ensemble_stops_its_step(server: Server) -> None:
    before, failed = ended_count(server, "countdown_in_thread"), failures(server, "countdown_told")
    stream = Stream(server)
    stream.count_down("countdown_told", 100_000)  # a quarter of an hour
    stream.response()
    began = time.monotonic()
    stream.client.stop_stream(cancel_requests=True)
    stream.client.close()
    wait_until(lambda: ended_count(server, "countdown_in_thread") == before + 1, "the end of the step")
    wait_until(lambda: failures(server, "countdown_told") == failed + 1, "the end of the ensemble")
    assert time.monotonic() - began < 30
