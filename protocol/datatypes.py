"""The datatypes of the KServe v2 protocol, with their NumPy types, sizes and names in config.pbtxt."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class DataType:
    """One row of the table of datatypes.

    `byte_size` is 0 for BYTES, whose elements carry their own length. BF16 has no NumPy type; its arrays hold the raw
    16 bits as uint16. BYTES arrays hold `bytes` objects.
    """

    name: str
    config_name: str
    enum: int
    byte_size: int
    numpy: np.dtype[np.generic]


def _row(name: str, config_name: str, enum: int, byte_size: int, numpy: str) -> DataType:
    return DataType(name, config_name, enum, byte_size, np.dtype(numpy))


_TABLE = (
    _row("BOOL", "TYPE_BOOL", 1, 1, "?"),
    _row("UINT8", "TYPE_UINT8", 2, 1, "u1"),
    _row("UINT16", "TYPE_UINT16", 3, 2, "<u2"),
    _row("UINT32", "TYPE_UINT32", 4, 4, "<u4"),
    _row("UINT64", "TYPE_UINT64", 5, 8, "<u8"),
    _row("INT8", "TYPE_INT8", 6, 1, "i1"),
    _row("INT16", "TYPE_INT16", 7, 2, "<i2"),
    _row("INT32", "TYPE_INT32", 8, 4, "<i4"),
    _row("INT64", "TYPE_INT64", 9, 8, "<i8"),
    _row("FP16", "TYPE_FP16", 10, 2, "<f2"),
    _row("FP32", "TYPE_FP32", 11, 4, "<f4"),
    _row("FP64", "TYPE_FP64", 12, 8, "<f8"),
    _row("BYTES", "TYPE_STRING", 13, 0, "O"),
    _row("BF16", "TYPE_BF16", 14, 2, "<u2"),
)

BY_NAME: dict[str, DataType] = {row.name: row for row in _TABLE}
BY_CONFIG_NAME: dict[str, DataType] = {row.config_name: row for row in _TABLE}
BY_ENUM: dict[int, DataType] = {row.enum: row for row in _TABLE}
_BY_NUMPY: dict[np.dtype[np.generic], DataType] = {
    row.numpy: row for row in _TABLE if row.name not in ("BF16", "BYTES")
}


def name_of(number: int) -> str:
    """Return the protocol's name for a `data_type` of a configuration; as Triton's, it tells of one that is none."""
    row = BY_ENUM.get(number)
    return "<invalid>" if row is None else row.name


def of_array(array: np.ndarray, expected: DataType | None = None) -> DataType:
    """Return the datatype of an array; object, `bytes` and `str` arrays are BYTES.

    Args:
        array: of any type and byte order.
        expected: the answer where the array may be that; only so is one of 16 bits BF16.

    Raises:
        KeyError: the array's type has no place in the protocol (complex numbers, dates).
    """
    if expected is not None and array.dtype == expected.numpy:
        return expected
    if array.dtype.kind in "OSU":
        return BY_NAME["BYTES"]
    return _BY_NUMPY[array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype]
