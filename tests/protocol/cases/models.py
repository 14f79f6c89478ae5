"""The models that the cases are for: their signatures, and what they answer."""

from protocol.datatypes import BY_NAME
from protocol.infer import InferRequest, InferResponse
from protocol.signature import Signature, TensorSpec


def _tensor(name: str, datatype: str, *dims: int) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, BY_NAME[datatype], dims, dims)}


SIGNATURES: dict[str, Signature] = {
    "simple": Signature(
        "simple",
        8,
        _tensor("INPUT0", "INT32", 16) | _tensor("INPUT1", "INT32", 16),
        _tensor("OUTPUT0", "INT32", 16) | _tensor("OUTPUT1", "INT32", 16),
    ),
    "strings": Signature("strings", 8, _tensor("TEXT", "BYTES", -1), _tensor("TEXT_OUT", "BYTES", -1)),
    "floats": Signature("floats", 0, _tensor("X", "FP32", -1), _tensor("Y", "FP32", -1)),
    "halves": Signature("halves", 4, _tensor("H", "FP16", 4), _tensor("HO", "FP16", 4)),
    "flags": Signature("flags", 4, _tensor("B", "BOOL", 4), _tensor("BO", "BOOL", 4)),
}


def answer(model: str, request: InferRequest) -> InferResponse:
    """Return what the model says: sum and difference, or its input again."""
    if model == "simple":
        first, second = request.inputs["INPUT0"], request.inputs["INPUT1"]
        outputs = {"OUTPUT0": first + second, "OUTPUT1": first - second}
    else:
        outputs = dict(zip(SIGNATURES[model].outputs, request.inputs.values(), strict=True))
    wanted = request.outputs
    return InferResponse({name: array for name, array in outputs.items() if wanted is None or name in wanted})
