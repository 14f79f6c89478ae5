import asyncio
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from deployments.core.counts import Totals
from deployments.core.response_streams import ResponseStreams
from deployments.core.statistics import ModelStatistics
from deployments.core.statistics_document import documents
from deployments.core.traced_request import begin_streams
from deployments.schedulers.sequence import SequenceScheduler
from protocol.errors import Internal
from protocol.infer import RESCHEDULED, InferRequest, InferResponse, StreamedResponse
from repository_loader.package import InstanceSpec, ModelPackage
from tests.deployments.fakes import MS, Answers, FakeClock, FakePool, config_of

CONFIG = """
name: "count" backend: "python" max_batch_size: 4
input { name: "N" data_type: TYPE_INT32 dims: 1 }
output { name: "I" data_type: TYPE_INT32 dims: 1 }
model_transaction_policy { decoupled: true }
"""
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0, 0])
            if count < 0:
                raise ValueError("cannot count to a negative number")
            for number in range(count):
                tensor = pb_utils.Tensor("I", np.array([[number]], np.int32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def count_to(folder: Path, *counts: int):
    """Return what each request got, and the statistics afterwards."""
    (folder / "model.py").write_text(MODEL)
    package = ModelPackage(
        "count", 1, text_format.Parse(CONFIG, ModelConfig()), str(folder), str(folder), str(folder / "model.py")
    )

    async def run():
        clock = LoopClock(asyncio.get_running_loop())
        model = await loader.load(package, [InstanceSpec("count_0", "CPU", 0)], clock, Core(clock))
        answers: list[list] = [[] for _ in counts]
        done = asyncio.Event()

        def reply(request, result):
            answers[request.context].append(result)
            if all(got and (not isinstance(got[-1], InferResponse) or got[-1].final) for got in answers):
                done.set()

        for index, count in enumerate(counts):
            model.submit(InferRequest({"N": np.array([[count]], np.int32)}, 1, reply, context=index))
        await asyncio.wait_for(done.wait(), 10)
        await model.close()
        return answers, documents(model.statistics.rows)[0]

    return asyncio.run(run())


def test_responses_come_one_by_one_and_end_with_a_final_one(tmp_path: Path) -> None:
    answers, statistics = count_to(tmp_path, 3, 0)
    assert [int(response.outputs["I"][0, 0]) for response in answers[0][:-1]] == [0, 1, 2]
    assert [response.final for response in answers[0]] == [False, False, False, True]
    assert [response.final for response in answers[1]] == [True]
    assert statistics["inference_stats"]["success"]["count"] == 2
    assert statistics["inference_count"] == 2


def test_a_request_that_fails_is_counted_as_failed(tmp_path: Path) -> None:
    answers, statistics = count_to(tmp_path, -1)
    assert "cannot count to a negative number" in answers[0][-1].message
    assert statistics["inference_stats"]["fail"]["count"] == 1
    assert statistics["inference_stats"]["success"]["count"] == 0


def test_a_request_that_runs_again_and_is_cancelled_meanwhile_is_counted_once():
    clock, pool = FakeClock(), FakePool(FakeClock())
    statistics = ModelStatistics("m", 1, Totals())
    config = config_of("sequence_batching { direct { } iterative_sequence: true max_sequence_idle_microseconds: 9 }")
    scheduler = SequenceScheduler(config, [pool], statistics, clock)
    streams = ResponseStreams(statistics, clock)
    answers = Answers()
    request = answers.request("r")
    streams.open(request)
    scheduler.submit(request)
    clock.run()
    (batch,) = pool.running
    pool.running.clear()
    begin_streams(batch, clock.now_ns())
    batch.infer_start_ns = batch.infer_end_ns = batch.end_ns = clock.now_ns()
    batch.answered = True
    request.flags |= RESCHEDULED
    pool.finished(batch)
    scheduler.cancel(request)
    clock.run()
    assert answers.error("r").startswith("Cancelled: ") and not streams.open_count
    assert statistics.counts.canceled_count + statistics.counts.backend_count == 1


def test_responses_that_arrive_together_took_no_negative_time():
    clock = FakeClock()
    statistics = ModelStatistics("m", 1, Totals())
    streams = ResponseStreams(statistics, clock)
    request = Answers().request("r")
    streams.open(request)
    request.started_ns = clock.now_ns()
    clock.advance(1)
    for _ in range(2):
        # Its outputs were read while the response before it had not left yet.
        request.reply(request, StreamedResponse({"I": np.zeros(1, np.int32)}, None, False, 20_000))
    first, second = documents(statistics.rows)[0]["response_stats"].values()
    assert first["compute_infer"]["ns"] == 980_000 and first["compute_output"]["ns"] == 20_000
    assert second["compute_infer"]["ns"] == second["compute_output"]["ns"] == second["success"]["ns"] == 0


class Latencies:
    """Stands for a recorder of latencies; `first` are those of first responses, `whole` those of requests, in ms."""

    def __init__(self):
        self.first = []
        self.whole = []

    def record_first_response(self, duration_ns):
        self.first.append(duration_ns / MS)

    def record_request(self, now_ns, duration_ns):
        self.whole.append(duration_ns / MS)


def test_what_a_request_took_counts_from_when_it_came():
    clock = FakeClock()
    statistics = ModelStatistics("m", 1, Totals())
    streams = ResponseStreams(statistics, clock)
    statistics.latencies = latencies = Latencies()
    good, bad = requests = [Answers().request(name) for name in ("good", "bad")]
    for request in requests:
        streams.open(request)
    clock.advance(2)
    for request in requests:
        request.started_ns = clock.now_ns()
    for final in (False, False, True):
        clock.advance(3)
        good.reply(good, StreamedResponse({}, None, final, 0))
    bad.reply(bad, Internal("no"))
    assert (latencies.first, latencies.whole) == ([5], [11])
    assert (statistics.counts.success_ns, statistics.counts.failures_ns) == (11 * MS, 11 * MS)
    assert streams.open_count == 0
