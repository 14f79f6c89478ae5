"""A loaded model version together with its wire codecs: what a lane or an ingress of the same process submits to."""

import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from time import monotonic_ns

from deployments.core.model_version import ModelVersion
from deployments.core.request_meter import Cells, RequestMeter, give_up, succeed
from deployments.core.traced_request import follow
from deployments.lane.frames import Buffer
from deployments.lane.remote_regions import ClientRegions, inline, names_region
from deployments.lane.sink import Sink
from deployments.lane.slow_codec import Encoded, SlowCodec
from deployments.lane.wire import HTTP, LONG_BYTES, WireCodec
from deployments.lane.work_queue import Work
from deployments.log.line_format import about_trace
from protocol.errors import Internal, ServingError
from protocol.infer import COPIED, InferRequest, InferResponse
from protocol.trace import Trace

logger = logging.getLogger(__name__)


class ServedModel:
    """A model version and its codecs, indexed by wire form; `capacity` requests give each instance a full batch.

    `slow` is for what would keep the loop from its work. A model may say itself that it is not ready; requests go to it
    all the same. `gpus` are those from whose memory it takes inputs as they are. `digest` says what was loaded, which
    took `load_s`; `held` are open files to be closed with it.
    """

    def __init__(
        self,
        model: ModelVersion,
        codecs: tuple[WireCodec, ...],
        slow: SlowCodec,
        gpus: Sequence[str] = (),
        *,
        digest: str = "",
        load_s: float = 0.0,
        held: Sequence[int] = (),
    ) -> None:
        self.digest = digest
        self.load_s = load_s
        self.held = held
        self.model_name = model.package.name
        self.version = model.package.version
        self.model = model
        self.interface = model.interface
        self.gpus = gpus
        self.codecs = codecs
        self.slow = slow
        self.submit_request = model.submit
        self.cancel_request = model.cancel
        self.end_sequence = model.end_sequence
        self.ready = True
        self.says_ready = True
        config = model.package.config
        rows = max(1, config.max_batch_size) if config.HasField("dynamic_batching") else 1
        self.capacity = rows * (1 if model.pool is None else model.pool.instance_count)
        self.sequence_idle_us = int(config.sequence_batching.max_sequence_idle_microseconds)

    def go_on_with_sequences(self, older: ModelVersion) -> None:
        """Leave the sequences that are under way to what has served in this one's place."""
        self.model.follow(older)
        self.submit_request, self.cancel_request = self.model.submit, self.model.cancel

    def follow(self, request: InferRequest, trace: Trace) -> None:
        """Trace a request that is about to be submitted."""
        follow(request, trace, self.model, monotonic_ns)


Context = tuple[Sink, WireCodec, int, Cells | None, int]
"""What a request carries: who gets the answer, in which wire form; where a client's is counted, and since when."""


class _Decoding:
    """Stands for a request until it is decoded."""

    __slots__ = ("context", "request", "work")

    work: Work

    def __init__(self, context: Context) -> None:
        self.context = context
        self.request: InferRequest | None = None


class LocalTarget:
    """Sends requests that came as bytes to a model of this process."""

    shared = True

    def __init__(
        self, served: ServedModel, meter: RequestMeter | None = None, regions: ClientRegions | None = None
    ) -> None:
        self.model_name = served.model_name
        self.version = served.version
        self._meter = meter
        self._regions = regions
        self._served = served
        self._submit = served.submit_request
        self._encoding: dict[InferRequest, deque[Work]] = {}

    @property
    def ready(self) -> bool:
        """Whether the model still takes requests."""
        return self._served.ready

    def holds(self, sequence_id: int | str) -> bool:
        """Return False: a model with sequences is never embedded."""
        del sequence_id
        return False

    def may_be_elsewhere(self, token: object, others: object) -> None:
        """There are no sequences."""

    def end_sequence(self, sequence_id: int | str) -> None:
        """There are no sequences."""

    def submit(
        self,
        parts: Sequence[Buffer],
        json_length: int | None,
        sink: Sink,
        wire: int = HTTP,
        trace: Trace | None = None,
        *,
        copied: bool = False,
    ) -> "InferRequest | _Decoding | None":
        """Decode and submit; the sink gets an error in the request before this returns."""
        codec, meter, regions = self._served.codecs[wire], self._meter, self._regions
        cells, began_ns = None, 0
        if meter is not None:
            cells, began_ns = meter.begin(wire), monotonic_ns()
        if regions is not None and regions.on_devices and names_region(parts, json_length, wire):
            try:
                parts, json_length, sink, _ = inline(parts, json_length, wire, regions, sink, far=False)
            except ServingError as error:
                self._refuse((sink, codec, wire, cells, began_ns), error)
                return None
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        context: Context = (sink, codec, wire, cells, began_ns)
        slow = self._served.slow
        # The requests of a sequence stay in their order.
        behind = slow.decoding_count and self._served.sequence_idle_us
        if behind or (len(body) > LONG_BYTES and codec.reads_long(body)):
            return self._decode_slowly(body, json_length, context, trace, copied)
        try:
            request = codec.decode(body, json_length, self._reply, context)
        except ServingError as error:
            self._refuse(context, error)
            return None
        except Exception:
            whose = about_trace(self.model_name, None, trace)
            logger.exception("a request to model '%s' could not be decoded", self.model_name, extra=whose)
            self._refuse(context, Internal("the request could not be decoded"))
            return None
        if trace is not None:
            self._served.follow(request, trace)
        if copied:
            request.flags |= COPIED
        self._submit(request)
        return request

    def _decode_slowly(
        self, body: Buffer, json_length: int | None, context: Context, trace: Trace | None, copied: bool
    ) -> "_Decoding":
        decoding = _Decoding(context)

        def decoded(result: InferRequest | ServingError) -> None:
            if isinstance(result, ServingError):
                self._refuse(context, result)
                return
            decoding.request = result
            if trace is not None:
                self._served.follow(result, trace)
            if copied:
                result.flags |= COPIED
            self._submit(result)

        slow = self._served.slow
        decoding.work = slow.decode(context[2], body, json_length, self._reply, context, decoded, trace)
        return decoding

    def cancel(self, token: "InferRequest | _Decoding | None") -> None:
        """Give a request up."""
        if isinstance(token, _Decoding):
            if token.request is None:
                self._served.slow.withdraw(token.work)
                if token.context[3] is not None:
                    give_up(token.context[3])
            token = token.request
        if token is not None:
            context, token.context = token.context, None
            if context is not None and context[3] is not None:
                give_up(context[3])
            self._withdraw(token)
            self._served.cancel_request(token)

    def _reply(self, request: InferRequest, result: InferResponse | ServingError) -> None:
        if request.context is None:
            return
        sink, codec, wire, cells, began_ns = request.context
        slow = self._served.slow
        if not isinstance(result, InferResponse):
            if request in self._encoding:
                self._encoding[request].append(slow.fail(wire, result, partial(self._encoded, request, True)))
            else:
                self._fail(request.context, result)
        elif request in self._encoding or slow.in_order(wire) or codec.takes_long(request, result):
            work = slow.encode(wire, request, result, partial(self._encoded, request, result.final))
            self._encoding.setdefault(request, deque()).append(work)
        else:
            try:
                json_length, parts = codec.encode(request, result)
            except ServingError as error:
                self._give_up(request, error, running=not result.final)
                return
            except Exception:
                whose = about_trace(self.model_name, None, request.trace)
                logger.exception("a response of model '%s' could not be encoded", self.model_name, extra=whose)
                self._give_up(request, Internal("the response could not be encoded"), running=not result.final)
                return
            if cells is not None and result.final:
                succeed(cells, began_ns)
            sink.on_response(json_length, parts, result.final)

    def _give_up(self, request: InferRequest, error: ServingError, *, running: bool) -> None:
        """Answer a request of which a response cannot be sent."""
        self._fail(request.context, error)
        request.context = None
        self._withdraw(request)
        if running:
            self._served.cancel_request(request)

    def _withdraw(self, request: InferRequest) -> None:
        for work in self._encoding.pop(request, ()):
            self._served.slow.withdraw(work)

    def _encoded(self, request: InferRequest, final: bool, result: Encoded | ServingError) -> None:
        works = self._encoding[request]
        works.popleft()
        if not works:
            del self._encoding[request]
        if isinstance(result, ServingError):
            self._give_up(request, result, running=not final)
            return
        sink, _, _, cells, began_ns = request.context
        if cells is not None and final:
            succeed(cells, began_ns)
        sink.on_response(*result, final)

    def _refuse(self, context: Context, error: ServingError) -> None:
        error.refused = True
        self._fail(context, error)

    def _fail(self, context: Context, error: ServingError) -> None:
        sink, _, wire, cells, _ = context
        if self._meter is not None and cells is not None:
            self._meter.fail(wire, cells, error)
        sink.on_error(error)
