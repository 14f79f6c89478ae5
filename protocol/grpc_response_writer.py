"""Responses of one model version as serialised ModelInferResponses, large outputs not copied into them."""

from typing import Any

import numpy as np
from tritonclient.grpc.service_pb2 import ModelInferResponse

from protocol.errors import InvalidArgument
from protocol.grpc_parameters import write_parameters
from protocol.infer import InferResponse
from protocol.output_content import Body, OutputContent, Regions, has_template, number_bytes, tensor_bytes
from protocol.output_plan import OutputPlan
from protocol.protobuf_wire import field_head
from protocol.signature import Signature

MAX_RESPONSE_BYTES = 2**31 - 1

_ID_FIELD = 3
_RAW_FIELD = 6
_TEMPLATES_KEPT = 256
_ID_HEADS = tuple([field_head(_ID_FIELD, size) for size in range(128)])


class ResponseTemplate:
    """What a response is apart from model, id and the outputs' bytes.

    `outputs` holds each output's type, and the head of its raw contents; that of the first is the end of `rest`.
    """

    __slots__ = ("outputs", "rest")

    def __init__(self, rest: bytes, outputs: tuple[tuple[np.dtype[Any], bytes], ...]) -> None:
        self.rest = rest
        self.outputs = outputs


class GrpcResponseWriter:
    """Writes the responses of one model version."""

    def __init__(self, signature: Signature, model_version: str, content: OutputContent) -> None:
        self._content = content
        self._templates: dict[tuple[Any, ...], ResponseTemplate] = {}
        model = ModelInferResponse(model_name=signature.model_name, model_version=model_version)
        self._model: bytes = model.SerializeToString()

    def write(self, request_id: str, plan: OutputPlan, response: InferResponse, regions: Regions) -> list[Body]:
        """Return the parts of the message.

        Raises:
            ServingError: an output cannot be sent as planned.
        """
        outputs = response.outputs
        if not plan.binary_only or response.parameters:
            return self._write(request_id, plan, response, regions, None)
        key = (plan, *outputs, *[array.shape for array in outputs.values()])
        template = self._templates.get(key)
        if template is None:
            return self._write(request_id, plan, response, regions, key)
        parts: list[Body] = [self._model + (id_field(request_id) + template.rest if request_id else template.rest)]
        for array, (dtype, head) in zip(outputs.values(), template.outputs, strict=True):
            if array.dtype != dtype:
                return self._write(request_id, plan, response, regions, None)
            if head:
                parts.append(head)
            parts.append(number_bytes(array))
        return parts

    def _write(
        self,
        request_id: str,
        plan: OutputPlan,
        response: InferResponse,
        regions: Regions,
        key: tuple[Any, ...] | None,
    ) -> list[Body]:
        message = ModelInferResponse()
        if response.parameters:
            write_parameters(message.parameters, response.parameters)
        contents: list[Body] = []
        for name, array in response.outputs.items():
            form = plan.form(name)
            if form is None:
                continue
            datatype, array = self._content.resolve(name, array, form)
            content = tensor_bytes(array, datatype)
            if form.region is not None:
                self._content.store(name, content, form.region, regions[name])
                content = b""
            message.outputs.add(name=name, datatype=datatype.name, shape=array.shape)
            contents.append(content)
        heads = [field_head(_RAW_FIELD, len(content)) for content in contents]
        rest = message.SerializeToString()
        described = self._model + (id_field(request_id) if request_id else b"") + rest
        size = len(described) + sum(map(len, heads)) + sum(map(len, contents))
        if size > MAX_RESPONSE_BYTES:
            raise InvalidArgument(
                f"Response has byte size {size} which exceeds gRPC's byte size limit {MAX_RESPONSE_BYTES}."
            )
        if key is not None and heads:
            self._keep(key, plan, rest, heads, response)
        parts: list[Body] = [described]
        for head, content in zip(heads, contents, strict=True):
            parts += (head, content)
        return parts

    def _keep(
        self, key: tuple[Any, ...], plan: OutputPlan, rest: bytes, heads: list[bytes], response: InferResponse
    ) -> None:
        if not has_template(plan, response.outputs):
            return
        if len(self._templates) >= _TEMPLATES_KEPT:
            self._templates.clear()
        dtypes = [array.dtype for array in response.outputs.values()]
        outputs = tuple(zip(dtypes, [b"", *heads[1:]], strict=True))
        self._templates[key] = ResponseTemplate(rest + heads[0], outputs)


def id_field(request_id: str) -> bytes:
    """Return the field with the id of a response."""
    encoded = request_id.encode("utf-8", "replace")
    size = len(encoded)
    return (_ID_HEADS[size] if size < 128 else field_head(_ID_FIELD, size)) + encoded
