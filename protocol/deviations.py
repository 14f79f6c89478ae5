"""Where the codecs answer otherwise than Triton does, on purpose; the page of deviations is made from this table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deviation:
    """One difference; the statuses are HTTP's, 0 where the answer is a success or depends."""

    subject: str
    triton: str
    triton_status: int
    ours: str
    our_status: int
    reason: str


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "JSON that does not parse, or a member missing or of the wrong type",
        "an internal error",
        500,
        "the same text as an invalid argument",
        400,
        "the request is wrong, not the server; monitoring must be able to tell",
    ),
    Deviation(
        "negative or fractional dimension in 'shape'",
        "an internal error",
        500,
        "the same text as an invalid argument",
        400,
        "as above",
    ),
    Deviation(
        "more or fewer elements in 'data' than 'shape' says",
        "an internal error",
        500,
        "the same text as an invalid argument",
        400,
        "as above",
    ),
    Deviation(
        "integer in 'data' that does not fit the datatype",
        "cast, silently another number",
        200,
        "refused: value out of range",
        400,
        "a wrong answer is worse than none",
    ),
    Deviation(
        "number in 'data' too large for FP32",
        "becomes infinity",
        200,
        "refused: value out of range; Infinity can be written as such",
        400,
        "as above",
    ),
    Deviation(
        "elements in the 'data' of an input without elements (a dimension is 0)",
        "ignored",
        200,
        "refused: shape does not match",
        400,
        "as above",
    ),
    Deviation(
        "input of a datatype that does not exist, sent in binary",
        "reported as '<invalid>' when compared with the model's",
        400,
        "invalid datatype, as for JSON",
        400,
        "one text for one mistake",
    ),
    Deviation(
        "a required input missing while optional ones make up the number",
        "passed on to the backend",
        0,
        "refused with the text for missing inputs",
        400,
        "the model would fail on it",
    ),
    Deviation(
        "a batch dimension of 0",
        "refused: input byte size mismatch",
        400,
        "the model answers with no rows",
        200,
        "nothing to do is no mistake",
    ),
    Deviation(
        "classification of 0, or of 2^31 and more, classes",
        "0 is no classification, more are truncated",
        200,
        "refused",
        400,
        "neither is what was meant",
    ),
    Deviation(
        "named output that is FP16 or BF16 and wanted as JSON, or that cannot be classified",
        "the model runs, then the response fails",
        400,
        "the same text before the model runs",
        400,
        "nothing is computed in vain",
    ),
    Deviation(
        "FP32 outputs as JSON",
        "the digits of the number as FP64 (0.10000000149011612)",
        200,
        "the fewest digits that are the same FP32 (0.1)",
        200,
        "shorter and faster; equal after conversion to FP32",
    ),
    Deviation(
        "BOOL element in binary that is neither 0 nor 1",
        "passed on as it is",
        200,
        "counts as true and is passed on as 1",
        200,
        "a NumPy bool must be 0 or 1",
    ),
    Deviation(
        "output that is named twice",
        "refused since April 2026",
        400,
        "the first counts, as in earlier versions",
        200,
        "clients that were written for those need not change",
    ),
    Deviation(
        "number of inputs, outputs, parameters, dimensions, elements; size of a dimension",
        "bounded by memory",
        0,
        "bounded, as the page on behaviour says",
        400,
        "no single request may exhaust the server",
    ),
    Deviation(
        "typed integers in a gRPC request that do not fit INT8, INT16, UINT8 or UINT16",
        "cast, silently another number",
        200,
        "refused: value out of range",
        400,
        "a wrong answer is worse than none",
    ),
    Deviation(
        "negative 'timeout' in a gRPC request",
        "becomes a very long one",
        200,
        "refused, as a negative 'priority' is",
        400,
        "neither is what was meant",
    ),
    Deviation(
        "'sequence_id' that is a string of more than 128 bytes",
        "refused as not supported",
        501,
        "the same text as an invalid argument",
        400,
        "the request is wrong, not the server",
    ),
    Deviation(
        "strings in JSON that are not UTF-8",
        "taken with their bytes",
        200,
        "refused",
        400,
        "such text is no JSON; bytes of any kind go in binary",
    ),
    Deviation(
        "member of a JSON object that is there twice",
        "the first counts",
        200,
        "the last counts",
        200,
        "no known client writes it so",
    ),
    Deviation(
        "bytes that are no ModelInferRequest",
        "an internal error of the gRPC library",
        500,
        "failed to parse, as an invalid argument",
        400,
        "the request is wrong, not the server; monitoring must be able to tell",
    ),
    Deviation(
        "model name or version behind the other fields of a ModelInferRequest, changing an earlier one",
        "the last one counts",
        200,
        "refused; no known client writes them so",
        400,
        "the name in front has decided where the request went",
    ),
    Deviation(
        "model name, version or id over 64 KiB in a ModelInferRequest",
        "taken",
        200,
        "refused",
        400,
        "no model is called so, and the text is read before others get their turn",
    ),
    Deviation(
        "error messages over 960 bytes, as names sent by the client make them",
        "sent whole",
        400,
        "shortened in the middle",
        400,
        "a response must not amplify a request",
    ),
)
