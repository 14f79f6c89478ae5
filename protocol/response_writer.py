"""Responses of one model version as HTTP bodies: JSON, followed by the binary outputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from protocol.errors import Internal
from protocol.infer import Array, InferResponse
from protocol.json_tensor import array_to_json
from protocol.limits import Limits
from protocol.output_content import Body, OutputContent, Regions, has_template, number_bytes, tensor_bytes
from protocol.output_plan import OutputForm, OutputPlan
from protocol.shared_memory import SharedMemory
from protocol.signature import Signature

_TEMPLATES_KEPT = 256
# A longer JSON part stays in pieces: to join them holds the interpreter's lock.
_JOINED_BYTES = 1 << 20


class ResponseTemplate:
    """The JSON part of a response with numbers in binary only: without the opening brace, and the types it names."""

    __slots__ = ("dtypes", "head", "rest")

    def __init__(self, rest: bytes, dtypes: tuple[np.dtype[Any], ...]) -> None:
        self.rest = rest
        self.head = b"{" + rest
        self.dtypes = dtypes


class ResponseWriter:
    """Writes the responses of one model version."""

    def __init__(
        self,
        signature: Signature,
        model_version: str,
        limits: Limits,
        labels: Mapping[str, Sequence[str]],
        shared_memory: SharedMemory,
    ) -> None:
        self._content = OutputContent(signature, limits, labels, shared_memory)
        self._templates: dict[tuple[Any, ...], ResponseTemplate] = {}
        name, version = orjson.dumps(signature.model_name), orjson.dumps(model_version)
        self._model = b'"model_name":' + name + b',"model_version":' + version

    def write(
        self, request_id: str, plan: OutputPlan, response: InferResponse, regions: Regions
    ) -> tuple[int | None, list[Body]]:
        """Return the length of the JSON part (None: there is nothing after it) and the parts of the body.

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
        head = b'{"id":' + orjson.dumps(request_id) + b"," + template.rest if request_id else template.head
        parts: list[Body] = [head]
        for array, dtype in zip(outputs.values(), template.dtypes, strict=True):
            if array.dtype != dtype:
                return self._write(request_id, plan, response, regions, None)
            parts.append(number_bytes(array))
        return len(head), parts

    def _write(
        self,
        request_id: str,
        plan: OutputPlan,
        response: InferResponse,
        regions: Regions,
        key: tuple[Any, ...] | None,
    ) -> tuple[int | None, list[Body]]:
        texts = [self._model, _parameters(response) if response.parameters else b"", b',"outputs":[']
        binary: list[Body] = []
        separator = b""
        for name, array in response.outputs.items():
            form = plan.form(name)
            if form is None:
                continue
            texts.append(separator)
            self._describe(name, array, form, regions, texts, binary)
            separator = b","
        texts.append(b"]}")
        begin = b'{"id":' + orjson.dumps(request_id) + b"," if request_id else b"{"
        size = sum(map(len, texts))
        if size > _JOINED_BYTES:
            return len(begin) + size if binary else None, [begin, *texts, *binary]
        rest = b"".join(texts)
        if key is not None and binary:
            self._keep(key, plan, rest, response)
        head = begin + rest
        return len(head) if binary else None, [head, *binary]

    def _keep(self, key: tuple[Any, ...], plan: OutputPlan, rest: bytes, response: InferResponse) -> None:
        if not has_template(plan, response.outputs):
            return
        if len(self._templates) >= _TEMPLATES_KEPT:
            self._templates.clear()
        self._templates[key] = ResponseTemplate(rest, tuple([array.dtype for array in response.outputs.values()]))

    def _describe(
        self, name: str, array: Array, form: OutputForm, regions: Regions, texts: list[bytes], binary: list[Body]
    ) -> None:
        """Add the member of `outputs` for one output, and put its bytes into `binary` if they go there."""
        datatype, array = self._content.resolve(name, array, form)
        texts.append(
            b'{"name":%b,"datatype":"%b","shape":%b'
            % (orjson.dumps(name), datatype.name.encode(), orjson.dumps(array.shape))
        )
        if form.region is not None:
            self._content.store(name, tensor_bytes(array, datatype), form.region, regions[name])
            texts.append(b"}")
        elif not form.binary:
            texts.append(b',"data":')
            texts += array_to_json(array, datatype)
            texts.append(b"}")
        else:
            content = tensor_bytes(array, datatype)
            if len(content):
                binary.append(content)
            texts.append(b',"parameters":{"binary_data_size":%d}}' % len(content))


def _parameters(response: InferResponse) -> bytes:
    try:
        return b',"parameters":' + orjson.dumps(response.parameters)
    except TypeError:
        raise Internal("a response parameter is not a bool, integer, float or string") from None
