"""Responses of ModelStreamInfer: each is wrapped, and says whether it is the last to its request."""

from typing import Any

from tritonclient.grpc.service_pb2 import ModelInferResponse, ModelStreamInferResponse

from protocol.grpc_infer import GrpcInferCodec
from protocol.grpc_request import GrpcEncoding
from protocol.grpc_route import Route
from protocol.infer import InferRequest, InferResponse, Reply
from protocol.output_content import Body
from protocol.protobuf_wire import field_head

FINAL_RESPONSE = "triton_final_response"

_INFER_RESPONSE_FIELD = 2


def _final(value: bool) -> bytes:
    response = ModelInferResponse()
    response.parameters[FINAL_RESPONSE].bool_param = value
    serialised: bytes = response.SerializeToString()
    return serialised


_FINAL, _MORE = _final(True), _final(False)


class GrpcStreamCodec:
    """The codec of one loaded model version for streams; requests are those of `codec`, decoupled models included."""

    def __init__(self, codec: GrpcInferCodec) -> None:
        self._codec = codec
        self._decoupled = codec.signature.decoupled
        self._model_name = codec.signature.model_name

    def decode(
        self, body: bytes | memoryview, json_length: int | None, reply: Reply, context: Any = None
    ) -> InferRequest:
        """Return the request in a serialised ModelInferRequest.

        Raises:
            ServingError: with Triton's text.
        """
        return self._codec.decode_any(body, reply, context)

    def takes_long(self, request: InferRequest, response: InferResponse) -> bool:
        """Whether `encode` would keep a loop from its work; see `GrpcInferCodec`."""
        return self._codec.takes_long(request, response)

    def reads_long(self, body: bytes | memoryview) -> bool:
        """Whether `decode` may keep a loop from its work, for a body that is large."""
        return self._codec.reads_long(body)

    def encode(self, request: InferRequest, response: InferResponse) -> tuple[None, list[Body]]:
        """Return None and the parts of a serialised ModelStreamInferResponse; none at all: nothing is to be sent.

        That is so when a decoupled model ends without a response, unless the client has asked to be told.

        Raises:
            ServingError: an output cannot be sent as the client wants it.
        """
        if self._decoupled and response.final and not response.outputs and response.parameters is None:
            parts = self._empty_final(request)
            if not parts:
                return None, parts
        else:
            parts = self._codec.encode(request, response)[1]
        parts.append(_FINAL if response.final else _MORE)
        parts.insert(0, field_head(_INFER_RESPONSE_FIELD, sum(map(len, parts))))
        return None, parts

    def _empty_final(self, request: InferRequest) -> list[Body]:
        encoding: GrpcEncoding | None = request.encoding
        if encoding is None or encoding.empty_final_version is None:
            return []
        version = encoding.empty_final_version
        return [
            ModelInferResponse(model_name=self._model_name, model_version=version, id=request.id).SerializeToString()
        ]


def stream_error(message: str, route: Route, *, taken: bool = True) -> bytes:
    """Return the serialised ModelStreamInferResponse that tells of a failed request and leaves the stream open.

    As in Triton, nothing but the id is told of a request that no model has `taken`.
    """
    response = ModelStreamInferResponse(error_message=message.encode("utf-8", "replace").decode())
    name, version, response.infer_response.id = route
    if taken:
        response.infer_response.model_name, response.infer_response.model_version = name, version
        response.infer_response.parameters[FINAL_RESPONSE].bool_param = True
    serialised: bytes = response.SerializeToString()
    return serialised
