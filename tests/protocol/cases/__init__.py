"""Requests, good and bad, with the answers that they must get; for the codec alone and for a whole server."""

from tests.protocol.cases import bad_json, binary, bytes_elements, datatypes, depth, outputs, parameters, shapes
from tests.protocol.cases.case import Case

CASES: tuple[Case, ...] = (
    *bad_json.CASES,
    *depth.CASES,
    *shapes.CASES,
    *datatypes.CASES,
    *bytes_elements.CASES,
    *binary.CASES,
    *outputs.CASES,
    *parameters.CASES,
)

__all__ = ["CASES", "Case"]
