"""`pb_utils.ResponseSender`: answers a request from any thread, once or, for decoupled models, many times."""

import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol

from deployments.backends.answer import Answer, Outcome
from deployments.backends.python.errors import TritonModelException
from deployments.backends.python.response import InferenceResponse
from protocol.errors import Internal, ServingError
from protocol.infer import InferRequest, InferResponse, StreamedResponse

RESPONSE_COMPLETE_FINAL = 1

ToOutcome = Callable[[InferRequest, InferenceResponse], Outcome]

_DROPPED = "The model dropped the response sender before it sent the final response."


class Replies(Protocol):
    """Where the outcomes of a decoupled model go; any thread may put them there."""

    def put(self, request: InferRequest, outcome: Outcome) -> None:
        """Deliver an outcome after those that were put before it."""
        ...


class ResponseSender:
    """Sends responses until the one with the final flag.

    A sender that is dropped earlier fails its request, so that no client waits for a response that cannot come.
    """

    __slots__ = ("_closed", "_lock", "_request", "_to_outcome")

    def __init__(self, request: InferRequest, to_outcome: ToOutcome) -> None:
        self._request = request
        self._to_outcome = to_outcome
        self._closed = False
        self._lock = threading.Lock()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send one response, or none with the final flag to end without another.

        Raises:
            TypeError: what is given is no response.
            TritonModelException: the flags are unknown, there is nothing to send, or the sender is closed.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"'response' must be an InferenceResponse, found type '{type(response)}'.")
        if flags not in (0, RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        with self._lock:
            self._check(response)
            if self._closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            start_ns = monotonic_ns()
            outcome = None if response is None else self._to_outcome(self._request, response)
            self._closed = flags == RESPONSE_COMPLETE_FINAL
            self._send(outcome, self._closed, monotonic_ns() - start_ns)

    def is_cancelled(self) -> bool:
        """Return whether the client gave the request up."""
        return self._request.cancelled

    def _check(self, response: InferenceResponse | None) -> None:
        raise NotImplementedError

    def _send(self, outcome: Outcome | None, final: bool, output_ns: int) -> None:
        raise NotImplementedError


class SingleResponseSender(ResponseSender):
    """The sender of a model that is not decoupled: one response, kept until it is taken."""

    __slots__ = ("answer",)

    def __init__(self, request: InferRequest, to_outcome: ToOutcome) -> None:
        super().__init__(request, to_outcome)
        self.answer = Answer()

    def _check(self, response: InferenceResponse | None) -> None:
        answered = self.answer.outcome is not None
        if response is not None and answered:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )
        if response is None and not answered:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )

    def _send(self, outcome: Outcome | None, final: bool, output_ns: int) -> None:
        if outcome is not None:
            self.answer.set(outcome)

    def __del__(self) -> None:
        if self.answer.outcome is None:
            self.answer.set(Internal(_DROPPED))


class DecoupledResponseSender(ResponseSender):
    """The sender of a decoupled model: any number of responses; an error ends the request for the client."""

    __slots__ = ("_ended", "_replies")

    def __init__(self, request: InferRequest, to_outcome: ToOutcome, replies: Replies) -> None:
        super().__init__(request, to_outcome)
        self._replies = replies
        self._ended = False

    def release(self) -> bool:
        """Send nothing more, for the request runs again with another sender; returns False if it has ended."""
        with self._lock:
            goes_on, self._closed, self._ended = not self._ended, True, True
        return goes_on

    def fail(self, error: ServingError) -> None:
        """End the request with an error, unless it has ended; the model can send nothing more."""
        with self._lock:
            self._closed = True
            self._send(error, True, 0)

    def _check(self, response: InferenceResponse | None) -> None:
        pass

    def _send(self, outcome: Outcome | None, final: bool, output_ns: int) -> None:
        if self._ended:
            return
        if outcome is None:
            outcome = StreamedResponse({}, None, True, 0)
        elif isinstance(outcome, InferResponse):
            outcome = StreamedResponse(outcome.outputs, outcome.parameters or {}, final, output_ns)
        self._ended = final or isinstance(outcome, ServingError)
        self._replies.put(self._request, outcome)

    def __del__(self) -> None:
        if not self._ended:
            self._ended = True
            try:
                self._replies.put(self._request, Internal(_DROPPED))
            except RuntimeError:
                pass  # the loop is closed: nobody waits for the reply any more


# Python's own errors, which reach clients, call all of them as models and Triton do.
ResponseSender.__name__ = SingleResponseSender.__name__ = DecoupledResponseSender.__name__ = "InferenceResponseSender"
