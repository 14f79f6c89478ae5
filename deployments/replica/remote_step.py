"""A request of an ensemble or a model here to a model of another process: it leaves by lane as a KServe v2 body."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from deployments.core.clock import Clock
from deployments.lane.client import LaneCall
from deployments.lane.frames import Buffer
from deployments.lane.target import LaneTarget
from deployments.lane.wire import LONG_BYTES
from deployments.lane.work_queue import Work, WorkQueue
from deployments.schedulers.scheduler import reply
from protocol.bytes_tensor import has_many_strings
from protocol.errors import Cancelled, Internal, ServingError
from protocol.http_client_codec import HttpClientCodec
from protocol.infer import COPIED, InferRequest, InferResponse
from protocol.output_content import Body
from protocol.signature import Signature

_LOG = logging.getLogger(__name__)


class StepCodec:
    """Writes the requests to one model and reads its responses: `here`, or `beside` the loop what would hold it up.

    `queue` has one thread; `writing` is what is being written in it.
    """

    def __init__(self, signature: Signature, queue: WorkQueue) -> None:
        self.model_name = signature.model_name
        self.here = HttpClientCodec(signature)
        self.beside = HttpClientCodec(signature)
        self.answers_strings = any(spec.datatype.name == "BYTES" for spec in signature.outputs.values())
        self.writing: set[Work] = set()
        self.queue = queue


class RemoteStep:
    """A step under way in another process: turns its answer, which comes as bytes, into arrays for the ensemble.

    `others` are versions that may hold its sequence, if the target does not. It is made for an `interface` of the
    model, "" for whichever that has.
    """

    __slots__ = ("_clock", "_codec", "_interface", "_others", "_reading", "_request", "_target", "_token", "_writing")

    def __init__(
        self,
        request: InferRequest,
        codec: StepCodec,
        target: LaneTarget,
        clock: Clock,
        others: Sequence[LaneTarget] = (),
        interface: str = "",
    ) -> None:
        self._request: InferRequest | None = request
        self._codec = codec
        self._target = target
        self._others = others
        self._interface = interface
        self._clock = clock
        self._token: LaneCall | None = None
        self._writing: Work | None = None
        self._reading: deque[Work] | None = None

    def begin(self) -> None:
        """Write the step's request, and send it; what cannot be sent ends the step in the loop's next turn."""
        request, codec = self._request, self._codec
        assert request is not None
        # The requests of a sequence stay in their order.
        if has_many_strings(request.inputs) or (codec.writing and request.sequence_id):
            self._writing = codec.queue.submit(partial(codec.beside.encode_request, request), self._written)
            codec.writing.add(self._writing)
            return
        try:
            written = codec.here.encode_request(request)
        except Exception as error:
            self.on_error(self._unsent(error))
        else:
            self._send(*written)

    def _written(self, written: tuple[int, list[Body]], error: BaseException | None) -> None:
        self._forget_writing()
        if error is None:
            self._send(*written)
        else:
            self.on_error(self._unsent(error))

    def _send(self, json_length: int, parts: Sequence[Buffer]) -> None:
        request = self._request
        assert request is not None
        copied = bool(request.flags & COPIED)
        token = self._target.submit(parts, json_length, self, trace=request.trace, from_client=False, copied=copied)
        if self._request is not None:
            self._token = token
        if self._interface and token is not None:
            token.interface = self._interface
        if self._others:
            self._target.may_be_elsewhere(token, self._others)

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        """Read a response, beside the loop if that takes long, and pass it on after those before it."""
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        codec = self._codec
        if self._reading or (len(body) > LONG_BYTES and codec.answers_strings):
            self._read_beside(partial(codec.beside.decode_response, body, json_length), partial(self._take, final))
            return
        try:
            response = codec.here.decode_response(body, json_length)
        except ServingError as error:
            self._take(final, None, error)
        else:
            self._take(final, response, None)

    def on_error(self, error: ServingError) -> None:
        """End the step in a later turn of the loop; the ensemble may only just be sending it."""
        if self._reading:  # what came before it
            self._read_beside(_nothing, lambda *_: self._end(error))
        else:
            self._end(error)

    def cancel(self, *, listens: bool) -> None:
        """Tell the replica; unless the step `listens`, it answers no more, and the step ends here."""
        if listens and (self._target.tell_cancelled(self._token) or self._reading):
            return
        self._give_up(Cancelled(""))

    def _read_beside(self, read: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        """Have something done in turn with what was read before."""

        def done(result: Any, error: BaseException | None) -> None:
            reading.popleft()
            then(result, error)

        reading = self._reading = self._reading or deque()
        reading.append(self._codec.queue.submit(read, done))

    def _take(self, final: bool, response: InferResponse | None, error: BaseException | None) -> None:
        request = self._request
        if response is None:
            self._give_up(error if isinstance(error, ServingError) else Internal("the response could not be decoded"))
        elif request is not None:
            response.final = final
            if final:
                self._request = self._token = None
            reply(request, response)

    def _give_up(self, error: ServingError) -> None:
        """Hear nothing more, and end the step."""
        self._target.cancel(self._token)
        if self._writing is not None:
            self._writing.withdraw()
            self._forget_writing()
        while self._reading:
            self._reading.popleft().withdraw()
        self._end(error)

    def _end(self, error: ServingError) -> None:
        request, self._request = self._request, None
        self._token = None  # which has the request's body, and leads back here
        if request is not None:
            self._clock.call_soon(partial(reply, request, error))

    def _unsent(self, error: BaseException) -> ServingError:
        if isinstance(error, ServingError):
            return error
        if not isinstance(error, TypeError | ValueError):  # of what a tensor holds
            _LOG.error("a request to model '%s' cannot be sent", self._codec.model_name, exc_info=error)
        return Internal(f"a tensor for model '{self._codec.model_name}' cannot be sent: {error}")

    def _forget_writing(self) -> None:
        assert self._writing is not None
        self._codec.writing.discard(self._writing)
        self._writing = None


def _nothing() -> None:
    pass
