"""Python models whose requests are traced: what they are told, what they call, and what they log."""

import asyncio
import builtins
import json
import logging
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest

from deployments.log.log_options import LogOptions
from deployments.log.process_log import ProcessLog
from deployments.replica.model_output import show_model_output
from protocol.errors import Internal
from protocol.infer import InferRequest, InferResponse
from protocol.trace import CONTEXT, TIMESTAMPS, Trace, new_trace
from tests.deployments.replica.hosted_models import CALLER, CONFIG, COUNTDOWN, DECOUPLED, Hosted, Models, on_a_loop
from tests.deployments.replica.hosted_models import models as models
from tests.deployments.replica.hosted_models import unfrozen as unfrozen
from tests.deployments.replica.two_processes import two_processes
from tests.serving import wait_until

STRINGS = CONFIG.replace('name: "Y" data_type: TYPE_INT32', 'name: "Y" data_type: TYPE_STRING')
CONTEXT_OF = """
class TritonPythonModel:
    def execute(self, requests):
        context = requests[0].trace().get_context()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([context or "none"], object))])]
"""
TRACED_CALLER = CALLER.replace("x_of(r)", "x_of(r), trace=r.trace()")
STAGES = {
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
}


def serves_print(*objects: object, file: TextIO | None = None) -> None:
    """Stands for the `print` that Serve has put into the place of Python's."""
    raise AssertionError("it writes tuples")


async def traced(call: Hosted, name: str, flags: int = TIMESTAMPS, **parameters: str) -> tuple[Trace, list[Any]]:
    """Return the trace of a request, and what the model has answered."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    got: list[Any] = []

    def reply(request: InferRequest, result: Any) -> None:
        assert isinstance(result, InferResponse), result
        got.extend(result.outputs["Y"].tolist() if result.outputs else [])
        if result.final:
            ended.set_result(None)

    signature = call.host.core.resolve(name).signature
    shape = (1, 1) if signature.max_batch_size else (1,)
    request = InferRequest({"X": np.full(shape, 2, np.int32)}, 1, reply, id="r7", parameters=parameters or None)
    request.trace = trace = new_trace(flags)
    call.host.router.infer(name, -1, request)
    async with asyncio.timeout(60):
        await ended
    return trace, got


@on_a_loop
async def test_a_call_that_is_given_the_trace_is_a_child_of_it(models: Models) -> None:
    models.add("echo", CONTEXT_OF, STRINGS)
    models.add("with_trace", TRACED_CALLER % "echo", STRINGS).add("without", CALLER % "echo", STRINGS)
    async with models.hosted() as call:
        trace, (context,) = await traced(call, "with_trace", TIMESTAMPS | CONTEXT)
        (child,) = trace.children
        assert json.loads(context) == {"traceparent": child.traceparent()}
        assert (child.model_name, child.version, child.parent_id) == ("echo", 1, trace.id)
        assert {name for name, _ in child.timestamps} == STAGES == {name for name, _ in trace.timestamps}
        for name, before, after in (("COMPUTE_INPUT_END", trace, child), ("COMPUTE_OUTPUT_START", child, trace)):
            first, second = before.at_ns(name), after.at_ns(name)
            assert first is not None and second is not None and first <= second
        trace, answers = await traced(call, "without", TIMESTAMPS | CONTEXT)
        assert (trace.children, answers) == ([], [b"none"])


@on_a_loop
async def test_a_call_over_a_lane_is_a_child_too(models: Models) -> None:
    models.add("echo", CONTEXT_OF, STRINGS).add("caller", TRACED_CALLER % "echo", STRINGS)
    async with two_processes(models, "echo") as call:
        trace, (context,) = await traced(call, "caller", TIMESTAMPS | CONTEXT)
        (child,) = trace.children
        assert json.loads(context) == {"traceparent": child.traceparent()}
        assert {name for name, _ in child.timestamps} == STAGES | {"LANE_SEND", "LANE_RECEIVE"}
        assert child.attributes["replica"] == "there"


@on_a_loop
async def test_a_trace_that_goes_to_a_file_gives_models_what_the_client_has_sent(models: Models) -> None:
    models.add("echo", CONTEXT_OF, STRINGS)
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
    async with models.hosted() as call:
        assert (await traced(call, "echo"))[1] == [b"none"]
        assert json.loads((await traced(call, "echo", **parent))[1][0]) == parent
        trace, (context,) = await traced(call, "echo", TIMESTAMPS | CONTEXT, **parent)
        assert json.loads(context) == {"traceparent": trace.traceparent(), "tracestate": "a=b"}


@on_a_loop
async def test_a_decoupled_model_is_traced_to_its_last_response(models: Models) -> None:
    models.add("countdown", COUNTDOWN, DECOUPLED)
    async with models.hosted() as call:
        trace, numbers = await traced(call, "countdown")
        assert numbers == [2, 1]
        assert sorted(name for name, _ in trace.timestamps) == sorted(STAGES), "each once"
        last = max(trace.timestamps, key=lambda each: each[1])
        assert trace.at_ns("REQUEST_END") == last[1]


@on_a_loop
async def test_requests_of_a_decoupled_model_know_the_batch_that_they_ran_in(models: Models) -> None:
    batched = DECOUPLED.replace("max_batch_size: 0", "max_batch_size: 4")
    waits = "dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 30000000 }"
    models.add("countdown", COUNTDOWN.replace("[0]", "[0, 0]"), batched, waits)
    async with models.hosted() as call:
        flags = TIMESTAMPS | CONTEXT
        (first, _), (second, numbers) = await asyncio.gather(*[traced(call, "countdown", flags) for _ in range(2)])
    assert numbers == [2, 1]
    for trace in (first, second):
        at_ns = [trace.at_ns(name) for name in ("QUEUE_START", "BATCH_START", "COMPUTE_START", "COMPUTE_END")]
        assert at_ns == sorted(at_ns, key=int), "each is there, one after the other"
        assert sorted(name for name, _ in trace.timestamps) == sorted([*STAGES, "BATCH_START"]), "each once"
        assert trace.attributes["batch_of"] == [first.traceparent(), second.traceparent()]
        assert (trace.attributes["batch_requests"], trace.attributes["batch_reason"]) == (2, "preferred")


LOGS = """
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info("at work")
        %s
"""
ONE = "return [answer(x_of(r).as_numpy()) for r in requests]"
MANY = """
        for r in requests:
            r.get_response_sender().send(answer(x_of(r).as_numpy()), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize(("code", "config"), [(ONE, CONFIG), (MANY, DECOUPLED)], ids=["one-response", "decoupled"])
def test_what_a_model_logs_has_the_ids_of_the_trace(models: Models, serve_log: Path, code: str, config: str) -> None:
    async def run() -> Trace:
        models.add("talker", LOGS % code.strip(), config)
        async with models.hosted() as call:
            trace, _ = await traced(call, "talker")
            await traced(call, "talker")
            return trace

    ProcessLog(LogOptions(log_format="json"))
    trace = asyncio.run(run())

    def said() -> list[dict[str, Any]]:
        for handler in logging.getLogger("ray.serve").handlers:
            handler.flush()
        lines = [json.loads(line) for line in serve_log.read_text().splitlines()]
        found = [line for line in lines if line["message"] == "at work"]
        return found if len(found) == 2 else []

    first, second = wait_until(said, "both lines")
    fields = ("model", "version", "request_id", "trace_id", "span_id")
    assert {name: first[name] for name in fields} == {
        "model": "talker",
        "version": 1,
        "request_id": "r7",
        "trace_id": f"{trace.trace_id:032x}",
        "span_id": f"{trace.id:016x}",
    }
    assert first["trace_id"] != second["trace_id"]


FAILS = """
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_warn('in "quotes"')
        print("two\\nlines")
        raise ValueError("no")
"""


@pytest.mark.parametrize("form", ["default", "ISO8601"])
def test_what_a_model_logs_prints_and_raises_names_the_trace_in_tritons_forms(
    models: Models, serve_log: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(builtins, "print", serves_print)
    show_model_output(lambda _: True)

    async def run() -> Trace:
        models.add("fails", FAILS, CONFIG)
        async with models.hosted() as call:
            answers: asyncio.Queue[Any] = asyncio.Queue()
            for trace in (None, new_trace(TIMESTAMPS)):
                request = InferRequest({"X": np.array([2], np.int32)}, 1, lambda _, got: answers.put_nowait(got))
                request.trace = trace
                call.host.router.infer("fails", -1, request)
                assert isinstance(await answers.get(), Internal)
            assert trace is not None
            return trace

    ProcessLog(LogOptions(log_format=form))
    trace = asyncio.run(run())
    ids = f" trace_id={trace.trace_id:032x} span_id={trace.id:016x}"

    def said() -> list[str]:
        for handler in logging.getLogger("ray.serve").handlers:
            handler.flush()
        found = [line for line in serve_log.read_text().splitlines() if "quotes" in line or "execute()" in line]
        return found if len(found) == 4 else []

    # Triton's own tests read the message of a line as JSON.
    messages = [json.loads(line.partition("] ")[2]) for line in wait_until(said, "the lines of both requests")]
    assert [each for each in messages if "trace_id" not in each] == messages[:2]
    assert messages[2] == f'in "quotes"{ids}'
    assert messages[3].endswith(f"request ids ['']{ids}")
    text = serve_log.read_text()
    assert text.count("-- two\nlines\n") == text.count(f"-- two\nlines{ids}\n") == 1
