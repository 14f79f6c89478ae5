"""A loaded model version together with its wire codecs: what a lane or an ingress of the same process submits to."""

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic_ns

from deployments.core.model_version import ModelVersion
from deployments.core.request_meter import RequestMeter, give_up, succeed
from deployments.lane.frames import Buffer
from deployments.lane.sink import Sink
from deployments.lane.wire import HTTP, WireCodec
from protocol.errors import Internal, ServingError
from protocol.infer import InferRequest, InferResponse

logger = logging.getLogger(__name__)


class ServedModel:
    """A model version and its codecs, indexed by wire form; `capacity` requests give each instance a full batch.

    A model may say itself that it is not ready; requests go to it all the same.
    """

    def __init__(self, model: ModelVersion, codecs: tuple[WireCodec, ...]) -> None:
        self.model_name = model.package.name
        self.version = model.package.version
        self.model = model
        self.codecs = codecs
        self.submit_request = model.submit
        self.cancel_request = model.cancel
        self.end_sequence = model.end_sequence
        self.ready = True
        self.says_ready = True
        config = model.package.config
        rows = max(1, config.max_batch_size) if config.HasField("dynamic_batching") else 1
        self.capacity = rows * (1 if model.pool is None else model.pool.instance_count)
        self.sequence_idle_us = int(config.sequence_batching.max_sequence_idle_microseconds)


class LocalTarget:
    """Sends requests that came as bytes to a model of this process."""

    local = True

    def __init__(self, served: ServedModel, meter: RequestMeter | None = None) -> None:
        self.model_name = served.model_name
        self.version = served.version
        self._meter = meter
        self._served = served
        self._submit = served.submit_request

    @property
    def ready(self) -> bool:
        """Whether the model still takes requests."""
        return self._served.ready

    def submit(
        self, parts: Sequence[Buffer], json_length: int | None, sink: Sink, wire: int = HTTP
    ) -> InferRequest | None:
        """Decode and submit; an error in the request is told to the sink before this returns."""
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        codec = self._served.codecs[wire]
        if self._meter is not None:
            sink = _CountedSink(sink, wire, self._meter)
        try:
            request = codec.decode(body, json_length, self._reply, (sink, codec))
        except ServingError as error:
            sink.on_error(error)
            return None
        except Exception:
            logger.exception("a request to model '%s' could not be decoded", self.model_name)
            sink.on_error(Internal("the request could not be decoded"))
            return None
        self._submit(request)
        return request

    def cancel(self, token: InferRequest | None) -> None:
        """Give a request up."""
        if token is not None:
            if token.context is not None and isinstance(token.context[0], _CountedSink):
                give_up(token.context[0].cells)
            token.context = None
            self._served.cancel_request(token)

    def _reply(self, request: InferRequest, result: InferResponse | ServingError) -> None:
        if request.context is None:
            return
        sink, codec = request.context
        if not isinstance(result, InferResponse):
            sink.on_error(result)
        elif result.final and codec.takes_long(request, result):
            encoded = asyncio.get_running_loop().run_in_executor(None, codec.encode, request, result)
            encoded.add_done_callback(lambda future: self._encoded(request, future))
        else:
            try:
                json_length, parts = codec.encode(request, result)
            except ServingError as error:
                sink.on_error(error)
                return
            sink.on_response(json_length, parts, result.final)

    def _encoded(self, request: InferRequest, future: "asyncio.Future[tuple[int | None, Sequence[Buffer]]]") -> None:
        if request.context is None or future.cancelled():
            return
        sink, _ = request.context
        error = future.exception()
        if error is None:
            json_length, parts = future.result()
            sink.on_response(json_length, parts, True)
        else:
            sink.on_error(error if isinstance(error, ServingError) else Internal("the response could not be encoded"))


class _CountedSink:
    """Counts what a client gets, and passes it on."""

    __slots__ = ("_began_ns", "_meter", "_sink", "_wire", "cells")

    def __init__(self, sink: Sink, wire: int, meter: RequestMeter) -> None:
        self._sink = sink
        self._wire = wire
        self._meter = meter
        self.cells = meter.begin(wire)
        self._began_ns = monotonic_ns()

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        if final:
            succeed(self.cells, self._began_ns)
        self._sink.on_response(json_length, parts, final)

    def on_error(self, error: ServingError) -> None:
        self._meter.fail(self._wire, self.cells, error)
        self._sink.on_error(error)
