"""Decoupled Python models."""

import threading

import pytest
from python_models import ECHO, ECHO_CONFIG, Replies, floats, request_of, run

from deployments.backends.backend import ModelLoadError

DECOUPLED_CONFIG = ECHO_CONFIG + "model_transaction_policy { decoupled: true }"


class TurnClock:
    """Makes the calls that reach the loop's thread when the test says so."""

    def __init__(self):
        self.calls = []
        self.arrived = threading.Semaphore(0)

    def call_soon_threadsafe(self, call):
        self.calls.append(call)
        self.arrived.release()

    def turn(self):
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def clock():
    return TurnClock()


def test_decoupled_responses_come_in_order_in_one_turn(load, clock):
    instance = load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                for r in requests:
                    sender = r.get_response_sender()
                    for n in range(3):
                        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), n, np.float32))]))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
        DECOUPLED_CONFIG,
        clock=clock,
    )
    replies = Replies()
    assert run(instance, request_of(replies, X=floats(1))) == []
    assert replies.outcomes == []
    assert len(clock.calls) == 1
    clock.turn()
    assert [(r.final, r.outputs["Y"].tolist() if r.outputs else None) for r in replies.outcomes] == [
        (False, [[0]]), (False, [[1]]), (False, [[2]]), (True, None),
    ]  # fmt: skip


def test_decoupled_coroutines_answer_after_execute_has_returned(load, clock):
    instance = load(
        """
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
        """,
        DECOUPLED_CONFIG,
        clock=clock,
    )
    replies = Replies()
    first, second = request_of(replies, X=floats(1)), request_of(replies, X=floats(1))
    second.id = "go"
    run(instance, first)
    run(instance, second)
    while len(replies.outcomes) < 2:
        assert clock.arrived.acquire(timeout=10)
        clock.turn()
    assert [reply.final for reply in replies.outcomes] == [True, True]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return []", "Python model 'echo' is using the decoupled mode and the execute function must return None."),
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
def test_decoupled_request_always_ends(load, clock, kind, body, message):
    instance = load(
        f"""
        class TritonPythonModel:
            {kind} execute(self, requests):
                {body}
        """,
        DECOUPLED_CONFIG,
        clock=clock,
    )
    replies = Replies()
    run(instance, request_of(replies, X=floats(1)))
    assert clock.arrived.acquire(timeout=10)
    clock.turn()
    instance.close()
    clock.turn()
    assert [str(outcome) for outcome in replies.outcomes] == [message]


def test_decoupled_models_need_a_clock(load):
    with pytest.raises(ModelLoadError, match="decoupled model 'echo'"):
        load(ECHO, DECOUPLED_CONFIG)
