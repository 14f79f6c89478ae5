"""The JSON part of an inference request, read and checked against the model's signature."""

from copy import copy
from typing import Any

import numpy as np

from protocol.datatypes import BY_NAME
from protocol.errors import InvalidArgument
from protocol.infer import Parameter
from protocol.json_document import (
    NON_UNSIGNED,
    array_member,
    as_string,
    as_unsigned,
    parameters_of,
    string_member,
    unparsable,
)
from protocol.json_tensor import check_has_json_form
from protocol.limits import Limits
from protocol.normalise import (
    Shape,
    check_bounds,
    check_byte_size,
    check_outputs,
    effective_priority,
    normalise,
    request_prefix,
)
from protocol.output_plan import BINARY, JSON, OutputPlan, OutputPlans, read_output_forms
from protocol.request_parameters import RequestParameters, read_parameters
from protocol.shared_memory import RegionRange, read_region
from protocol.signature import Signature, TensorSpec

_FIELDS = ("data", "binary_data_size", "shared_memory_region")


class InputSource:
    """Where the values of an input are that is more than numbers lying in the body: in the JSON (`inline`), in a
    region, or strings.
    """

    __slots__ = ("inline", "region", "spec", "whole")

    def __init__(self, spec: TensorSpec, inline: bool, region: RegionRange | None) -> None:
        self.spec = spec
        self.inline = inline
        self.region = region
        self.whole = False  # one string without its length, as a raw request has it


Part = tuple[str, Shape, np.dtype[np.generic], int, InputSource | None]
"""Input name, shape as the model sees it, type, bytes it takes in the body, and where it is if not simply there."""


class RequestHeader:
    """A checked JSON part: all that a request is apart from the values of its tensors.

    `inline_count` says how many of them have theirs in the JSON.
    """

    __slots__ = (
        "binary_bytes",
        "callers",
        "flags",
        "id",
        "inline_count",
        "outputs",
        "parameters",
        "parts",
        "plan",
        "priority",
        "rows",
        "sequence_id",
        "timeout_us",
        "used",
    )

    def __init__(
        self,
        request_id: str,
        parts: tuple[Part, ...],
        rows: int,
        parameters: RequestParameters,
        priority: int,
        plan: OutputPlan,
    ) -> None:
        self.id = request_id
        self.parts = parts
        self.binary_bytes = sum([part[3] for part in parts])
        self.rows = rows
        self.parameters: dict[str, Parameter] | None = parameters.custom
        self.priority = priority
        self.timeout_us = parameters.timeout_us
        self.sequence_id = parameters.sequence_id
        self.flags = parameters.flags
        self.callers = parameters.callers
        self.plan = plan
        self.outputs = tuple(plan.forms) or None
        self.inline_count = sum([part[4] is not None and part[4].inline for part in parts])
        self.used = False

    def without_id(self) -> "RequestHeader":
        """Return the same header for requests whose id is read separately."""
        header = copy(self)
        header.id = ""
        return header


class SentInput:
    """One member of `inputs` as it was sent."""

    __slots__ = ("byte_size", "data", "datatype", "inline", "name", "region", "shape")

    def __init__(self, element: Any, limits: Limits) -> None:
        parameters = parameters_of(element)
        self.inline = isinstance(element, dict) and "data" in element
        _check_content(self.inline, parameters)
        self.name = string_member(element, "name")
        self.datatype = string_member(element, "datatype")
        self.shape = _shape(array_member(element, "shape"), self.name, limits)
        self.byte_size = 0
        if "binary_data_size" in parameters:
            self.byte_size = as_unsigned(parameters["binary_data_size"], "binary_data_size")
        self.region = read_region(parameters)
        self.data = element.get("data")
        if self.datatype not in BY_NAME:
            raise InvalidArgument(f"invalid datatype for input {self.name}")
        if self.inline:
            check_has_json_form(BY_NAME[self.datatype], self.name)


def _check_content(inline: bool, parameters: dict[str, Any]) -> None:
    given = [inline, "binary_data_size" in parameters, "shared_memory_region" in parameters]
    if sum(given) != 1:
        found = " set" + "".join([f" '{field}'" for field, there in zip(_FIELDS, given, strict=True) if there])
        raise InvalidArgument(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters'. But{found if any(given) else ' no field is set'}"
        )


def _shape(dims: list[Any], name: str, limits: Limits) -> Shape:
    for dim in dims:
        if type(dim) is not int or dim < 0:
            raise unparsable("shape", NON_UNSIGNED)
    check_bounds(name, dims, limits)
    return tuple(dims)


class RequestHeaderReader:
    """Reads the JSON parts of requests to one model."""

    def __init__(self, signature: Signature, limits: Limits) -> None:
        self._signature = signature
        self._limits = limits
        self._plans = OutputPlans(signature)

    def read(self, document: Any, available_bytes: int) -> tuple[RequestHeader, list[Any]]:
        """Check a parsed document but for its inputs' `data`, which comes second; `available_bytes` follow it.

        Raises:
            InvalidArgument: with Triton's text.
        """
        request_id = ""
        if isinstance(document, dict) and "id" in document:
            request_id = as_string(document["id"], "id")
        parameters = read_parameters(document, self._limits)
        inputs = self._read_inputs(document, request_id)
        self._check_body(inputs, available_bytes)
        forms = read_output_forms(document, self._limits)
        check_outputs(self._signature, forms)
        described = [(part.name, part.datatype, part.shape) for part in inputs]
        rows, shapes = normalise(self._signature, described, request_id)
        sent = zip(reversed(inputs), reversed(shapes), strict=True)
        parts = tuple([self._part(part, shape, request_id) for part, shape in sent][::-1])
        plan = self._plans.plan(BINARY if parameters.binary_data_output else JSON, forms)
        priority = effective_priority(self._signature, parameters.priority)
        header = RequestHeader(request_id, parts, rows, parameters, priority, plan)
        return header, [part.data for part in inputs if part.inline]

    def _read_inputs(self, document: Any, request_id: str) -> list[SentInput]:
        members = array_member(document, "inputs")
        if len(members) > self._limits.max_inputs:
            raise InvalidArgument(f"request has {len(members)} inputs, more than {self._limits.max_inputs}")
        inputs: list[SentInput] = []
        names: set[str] = set()
        for element in members:
            read = SentInput(element, self._limits)
            if read.name in names:
                raise InvalidArgument(f"{request_prefix(request_id)}input '{read.name}' already exists in request")
            names.add(read.name)
            inputs.append(read)
        return inputs

    def _check_body(self, inputs: list[SentInput], available_bytes: int) -> None:
        for part in inputs:
            if part.byte_size > available_bytes:
                raise InvalidArgument(
                    f"unexpected size for input '{part.name}', expecting {part.byte_size - available_bytes} "
                    f"additional bytes for model '{self._signature.model_name}'"
                )
            available_bytes -= part.byte_size
        if available_bytes:
            raise InvalidArgument(f"unexpected additional input data for model '{self._signature.model_name}'")

    def _part(self, part: SentInput, shape: Shape, request_id: str) -> Part:
        spec = self._signature.inputs[part.name]
        kind = spec.datatype.numpy.kind
        if not part.inline and kind != "O":
            byte_size = part.byte_size if part.region is None else part.region.byte_size
            check_byte_size(self._signature, spec, part.shape, byte_size, request_id)
        simple = not part.inline and part.region is None and kind not in "Ob"
        source = None if simple else InputSource(spec, part.inline, part.region)
        return part.name, shape, spec.datatype.numpy, part.byte_size, source
