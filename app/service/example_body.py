"""A small request that a model answers, made from its configuration."""

import math
from typing import Any, Final

import orjson

_MAX_ELEMENTS: Final = 256
_UNFIT: Final = frozenset({"TYPE_STRING", "TYPE_FP16", "TYPE_BF16", "TYPE_BOOL", "TYPE_INVALID"})


def example_body(config_json: str) -> dict[str, Any] | None:
    """Return a JSON inference request of zeros; None when the inputs are not numbers, or too many.

    Nor is there one of a decoupled model, which a plain request cannot ask, or of one with sequences: it would need an
    id, which may be that of somebody's sequence.
    """
    config = orjson.loads(config_json)
    if config.get("model_transaction_policy", {}).get("decoupled") or "sequence_batching" in config:
        return None
    inputs = []
    for tensor in config["input"]:
        if tensor["data_type"] in _UNFIT:
            return None
        shape = [1 if int(dim) < 0 else int(dim) for dim in tensor["dims"]]
        if config["max_batch_size"]:
            shape = [1, *shape]
        count = math.prod(shape)
        if count > _MAX_ELEMENTS:
            return None
        datatype = tensor["data_type"].removeprefix("TYPE_")
        inputs.append({"name": tensor["name"], "shape": shape, "datatype": datatype, "data": [0] * count})
    return {"inputs": inputs} if inputs else None
