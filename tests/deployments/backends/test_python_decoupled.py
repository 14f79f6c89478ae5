"""Decoupled Python models."""

import asyncio
import gc
import logging
import weakref

import numpy as np
import pytest
from python_models import ECHO, ECHO_CONFIG, Replies, floats, request_of

from deployments.backends.backend import Batch, ModelLoadError
from deployments.core.clock import LoopClock
from deployments.core.instance_pool import InstancePool
from protocol.errors import ServingError

DECOUPLED_CONFIG = ECHO_CONFIG + "model_transaction_policy { decoupled: true }"


async def _answers(load, code, *requests, config=DECOUPLED_CONFIG):
    """Run each request as a batch of its own, one after the other, and return what the client hears."""
    loop = asyncio.get_running_loop()
    replies = [Replies() for _ in requests]
    clock = LoopClock(loop)
    instance = await asyncio.to_thread(load, code, config, clock=clock)
    pool = InstancePool([instance], clock)
    pool.finished = lambda batch: None
    async with asyncio.timeout(60):
        for request, heard in zip(requests, replies, strict=True):
            request.reply = heard
            while not pool.idle:
                await asyncio.sleep(0.001)
            pool.run(Batch([request], 1))
        while not all(heard.outcomes and _last(heard.outcomes[-1]) for heard in replies) or not pool.idle:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(pool.close)
    return [heard.outcomes for heard in replies]


def _last(outcome):
    return isinstance(outcome, ServingError) or outcome.final


def test_decoupled_responses_come_in_order(load):
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                for r in requests:
                    sender = r.get_response_sender()
                    for n in range(3):
                        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), n, np.float32))]))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    [outcomes] = asyncio.run(_answers(load, code, request_of(X=floats(1))))
    assert [(r.final, r.outputs["Y"].tolist() if r.outputs else None) for r in outcomes] == [
        (False, [[0]]), (False, [[1]]), (False, [[2]]), (True, None),
    ]  # fmt: skip


IN_PLACE = {
    "input": "array += 1; sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('Y', array)]))",
    "slice": "array += 1; sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('Y', array[0:1])]))",
    "response": "response.output_tensors()[0].as_numpy()[:] += 1; sender.send(response)",
}


@pytest.mark.parametrize("size", [4, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("statement", IN_PLACE.values(), ids=IN_PLACE)
def test_a_decoupled_model_may_write_to_what_it_has_sent(load, statement, size):
    code = f"""
        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                array = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
                response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros((1, {size}), np.float32))])
                for _ in range(3):
                    {statement}
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    [outcomes] = asyncio.run(_answers(load, code, request_of(X=np.zeros((1, size), np.float32))))
    assert [float(each.outputs["Y"].max()) for each in outcomes if each.outputs] == [1, 2, 3]


def test_decoupled_coroutines_answer_after_execute_has_returned(load):
    code = """
        import asyncio
        class TritonPythonModel:
            def initialize(self, args):
                self.go = None
            async def execute(self, requests):
                self.go = self.go or asyncio.Event()
                if requests[0].request_id() == "go":
                    self.go.set()
                await self.go.wait()
                sender = requests[0].get_response_sender()
                sender.send(pb_utils.InferenceResponse(), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    first, second = request_of(X=floats(1)), request_of(X=floats(1))
    second.id = "go"
    outcomes = asyncio.run(_answers(load, code, first, second))
    assert [[reply.final for reply in heard] for heard in outcomes] == [[True], [True]]


@pytest.mark.parametrize(
    ("last", "parameters"),
    [
        ("", None),
        ("pb_utils.InferenceResponse(), ", {}),
        ("pb_utils.InferenceResponse(parameters={'a': 1}), ", {"a": 1}),
    ],
)
def test_a_last_response_without_outputs_is_not_as_the_end_without_a_response(load, last, parameters):
    code = f"""
        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                sender.send({last}flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    [[outcome]] = asyncio.run(_answers(load, code, request_of(X=floats(1))))
    assert (outcome.final, outcome.outputs, outcome.parameters) == (True, {}, parameters)


def test_decoupled_responses_come_from_threads_after_execute_has_returned(load):
    code = """
        import threading
        class TritonPythonModel:
            def execute(self, requests):
                for r in requests:
                    threading.Thread(target=self.answer, args=(r.get_response_sender(),)).start()
            def answer(self, sender):
                for n in range(500):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 5000), n, np.float32))]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    for outcomes in asyncio.run(_answers(load, code, request_of(X=floats(1)), request_of(X=floats(1)))):
        assert [int(r.outputs["Y"][0, -1]) for r in outcomes[:-1]] == list(range(500))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "return []",
            "Failed to process the request(s) for model 'echo_0', message: Python model 'echo_0' is using the decoupled "
            "mode and the execute function must return None.",
        ),
        ("raise ValueError('no')", "Failed to process the request(s) for model 'echo_0', message: ValueError: no"),
        ("return None", "The model dropped the response sender before it sent the final response."),
        (
            "requests[0].get_response_sender().send(pb_utils.InferenceResponse(error=pb_utils.TritonError('e')))",
            "e",
        ),
    ],
    ids=["list", "raises", "dropped", "error response"],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_decoupled_request_always_ends(load, kind, body, message):
    code = f"""
        class TritonPythonModel:
            {kind} execute(self, requests):
                {body}
    """
    [outcomes] = asyncio.run(_answers(load, code, request_of(X=floats(1))))
    assert [str(outcome) for outcome in outcomes] == [message]


@pytest.mark.parametrize("more", ["", "sequence_batching { iterative_sequence: true }"], ids=["", "iterative"])
@pytest.mark.parametrize("body", ["return []", "raise ValueError('no')"])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_what_fails_is_free_at_once(load, caplog, kind, body, more):
    caplog.set_level(logging.CRITICAL)  # pytest keeps what is logged
    code = f"""
        class TritonPythonModel:
            {kind} execute(self, requests):
                array = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
                {body}
    """
    array = floats(1)
    taken = weakref.ref(array)
    gc.collect()
    gc.disable()
    try:
        [[error]] = asyncio.run(_answers(load, code, request_of(X=array), config=DECOUPLED_CONFIG + more))
        assert isinstance(error, ServingError)
        del array, error
        assert taken() is None
    finally:
        gc.enable()


def test_decoupled_models_need_a_clock(load):
    with pytest.raises(ModelLoadError, match="decoupled model 'echo'"):
        load(ECHO, DECOUPLED_CONFIG)


def test_a_generator_is_no_coroutine(load):
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                yield
    """
    [[error]] = asyncio.run(_answers(load, code, request_of(X=floats(1))))
    assert "the execute function must return None" in error.message
