"""How an ensemble reaches its steps: in this process's core, else over a lane as a KServe v2 body."""

from collections.abc import Mapping, Sequence

from deployments.core.core import Core
from deployments.lane.fleet import Fleet
from deployments.lane.frames import Buffer
from protocol.errors import Internal, ServingError, Unavailable
from protocol.http_client_codec import HttpClientCodec
from protocol.infer import InferRequest
from protocol.signature import Signature


class _StepSink:
    """Turns the answer to a step, which comes as bytes, into arrays for the request that waits."""

    __slots__ = ("_codec", "_request", "target", "token")

    def __init__(self, codec: HttpClientCodec, request: InferRequest) -> None:
        self._codec = codec
        self._request = request
        self.target: object = None
        self.token: object = None

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            response = self._codec.decode_response(body, json_length)
        except ServingError as error:
            self.on_error(error)
            return
        response.final = final
        self._request.reply(self._request, response)

    def on_error(self, error: ServingError) -> None:
        self._request.reply(self._request, error)


class HostRouter:
    """The router of one process; `fleet` is None where nothing is reached outside the process."""

    def __init__(self, core: Core, fleet: Fleet | None) -> None:
        self._core = core
        self._fleet = fleet
        self._codecs: dict[str, HttpClientCodec] = {}
        self._away: dict[int, tuple[_StepSink, InferRequest]] = {}

    def set_signatures(self, signatures: Mapping[str, Signature]) -> None:
        """Take the signatures of models in other processes; a request to them is written by these."""
        for name, signature in signatures.items():
            self._codecs[name] = HttpClientCodec(signature)

    def infer(self, model_name: str, version: int, request: InferRequest) -> None:
        """Send the request; every outcome comes through `request.reply`."""
        if self._core.has(model_name):
            self._core.infer(model_name, version, request)
            return
        target = self._fleet.target(model_name, version) if self._fleet is not None else None
        codec = self._codecs.get(model_name)
        if target is None or codec is None:
            request.reply(request, Unavailable(f"Request for unknown model: '{model_name}' is not at ready state"))
            return
        try:
            json_length, parts = codec.encode_request(request)
        except ServingError as error:
            request.reply(request, error)
            return
        except (TypeError, ValueError) as error:
            request.reply(request, Internal(f"a tensor for model '{model_name}' cannot be sent: {error}"))
            return
        sink = _StepSink(codec, request)
        sink.target = target
        request.context = sink
        sink.token = target.submit(parts, json_length, sink)

    def cancel(self, request: InferRequest) -> None:
        """Give a request up."""
        sink = request.context
        if isinstance(sink, _StepSink):
            sink.target.cancel(sink.token)  # type: ignore[attr-defined]
        else:
            self._core.cancel(request)
