"""Triton's classification extension: an output becomes its N highest values, each with index and label."""

import math
from collections.abc import Sequence

import numpy as np

from protocol.bytes_tensor import object_array
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.infer import Array
from protocol.limits import DEFAULT_LIMITS, Limits

_UNSUPPORTED = ("FP16", "BF16", "BOOL", "BYTES")


def check_classifiable(datatype: DataType) -> None:
    """Raise `InvalidArgument` if values of that type cannot be ranked."""
    if datatype.name in _UNSUPPORTED:
        raise InvalidArgument(f"class result not available for output due to unsupported type '{datatype.name}'")


def classify(
    array: Array,
    datatype: DataType,
    class_count: int,
    batched: bool,
    labels: Sequence[str] = (),
    limits: Limits = DEFAULT_LIMITS,
) -> Array:
    """Return the entries `<value>:<index>[:<label>]`, highest first, equal values by index, NaN last.

    Args:
        array: the output; with `batched` its first dimension is the batch, and each row is ranked by itself.
        datatype: of the output.
        class_count: entries per row; fewer if a row has fewer elements.
        batched: whether the model batches.
        labels: by index, bytes that are not UTF-8 as with `surrogateescape`; missing and empty ones are left out of the
            entry.
        limits: for the most elements per row.

    Returns:
        An object array of `bytes`, shaped `[rows, n]` or `[n]`.

    Raises:
        InvalidArgument: with Triton's text.
    """
    check_classifiable(datatype)
    rows = array.shape[0] if batched and array.ndim else 1
    per_row = math.prod(array.shape[1:] if batched else array.shape)
    if per_row > limits.max_classification_elements:
        raise InvalidArgument("classification output tensor too large")
    count = min(class_count, per_row)
    table = array.reshape(rows, per_row)
    entries = [entry for row in table for entry in _entries(row, count, labels)]
    return object_array(entries, (rows, count) if batched else (count,))


def _entries(row: Array, count: int, labels: Sequence[str]) -> list[bytes]:
    order = _highest(row, count)
    values = row[order].tolist()
    form = "%f:%d" if row.dtype.kind == "f" else "%d:%d"
    entries = []
    for value, index in zip(values, order.tolist(), strict=True):
        label = labels[index] if index < len(labels) else ""
        entry = form % (value, index)
        entries.append((f"{entry}:{label}" if label else entry).encode("utf-8", "surrogateescape"))
    return entries


def _highest(row: Array, count: int) -> Array:
    """Return the indices of the `count` highest values; sorts only those when they are few."""
    if count == 0:
        return np.empty(0, dtype=np.intp)
    keys = -row if row.dtype.kind == "f" else ~row  # the highest first, and NaN last
    candidates = np.arange(row.size)
    if count * 8 < row.size:
        candidates = np.flatnonzero(~(keys > np.partition(keys, count - 1)[count - 1]))
    return candidates[np.argsort(keys[candidates], kind="stable")][:count]
