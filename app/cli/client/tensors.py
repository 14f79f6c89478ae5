"""What a person writes becomes a tensor for a model, and what comes back becomes readable."""

import json
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from protocol.bytes_tensor import decode_bytes, encode_bytes, object_array
from protocol.datatypes import BY_NAME

_IMAGES: Final = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"))
_SHOWN_COUNT: Final = 1000
_INTEGERS: Final = frozenset(name for name, row in BY_NAME.items() if row.numpy.kind in "iu" and name != "BF16")
_COLOURS: Final = {1: "L", 3: "RGB", 4: "RGBA"}


def read_tensor(name: str, given: str, datatype: str, shape: list[int]) -> np.ndarray:
    """Return the tensor that `given` stands for, in a shape that the model's input (-1: any size) takes.

    `given` is JSON, values with commas between them, a text, or `@` and the path of a file: `.npy`, `.json`, an image,
    or, for BYTES, anything.

    Raises:
        click.UsageError: it cannot be read, or does not fit.
    """
    try:
        array = _read_file(Path(given[1:]), datatype, shape) if given.startswith("@") else _parse(given, datatype)
        if datatype == "BYTES":
            array = object_array([_as_bytes(element) for element in array.reshape(-1)], array.shape)
        elif datatype == "BF16":
            array = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        else:
            array = _as_type(array, BY_NAME[datatype].numpy)
        return _fit(array, shape)
    except RecursionError:
        raise click.UsageError(f"input '{name}' ({datatype} {shape}): nested too deep") from None
    except (OSError, ValueError, TypeError, OverflowError) as error:
        reason = f"{given[1:]}: {error.strerror}" if isinstance(error, OSError) and error.strerror else error
        raise click.UsageError(f"input '{name}' ({datatype} {shape}): {reason}") from None


def to_bytes(array: np.ndarray, datatype: str) -> bytes:
    """Return a tensor's bytes as they travel."""
    return bytes(encode_bytes(array)) if datatype == "BYTES" else array.tobytes()


def from_bytes(content: bytes, datatype: str, shape: list[int]) -> np.ndarray:
    """Return the tensor of bytes that travelled; texts are decoded as UTF-8, BF16 becomes FP32."""
    if datatype == "BYTES":
        elements = decode_bytes(content, 0, len(content), tuple(shape), "", "")
        return object_array([each.decode("utf-8", "replace") for each in elements.reshape(-1)], tuple(shape))
    array = np.frombuffer(content, BY_NAME[datatype].numpy).reshape(shape)
    return (array.astype(np.uint32) << 16).view(np.float32) if datatype == "BF16" else array


def show(array: np.ndarray) -> str:
    """Return a tensor as text; of a large one the ends of each dimension."""
    return np.array2string(array, threshold=_SHOWN_COUNT, max_line_width=120, separator=", ", suppress_small=True)


def to_json(array: np.ndarray) -> Any:
    """Return a tensor as nested lists; what JSON has no number for is "NaN", "Infinity" or "-Infinity"."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    values = array.astype(object)
    for name, where in (("NaN", np.isnan(array)), ("Infinity", np.isposinf(array)), ("-Infinity", np.isneginf(array))):
        values[where] = name
    return values.tolist()


def _read_file(path: Path, datatype: str, shape: list[int]) -> np.ndarray:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        with path.open("rb") as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    if suffix == ".json":
        return _of_json(json.loads(path.read_text("utf-8-sig")), datatype)
    if datatype == "BYTES":
        return object_array([path.read_bytes()], (1,))
    if suffix in _IMAGES:
        return _read_image(path, datatype, shape)
    return _parse(path.read_text("utf-8-sig").strip(), datatype)


def _read_image(path: Path, datatype: str, shape: list[int]) -> np.ndarray:
    """Return an image in the layout and size that the shape asks for; floats are from 0 to 1.

    A shape with nothing but a height and a width, or with a batch before these, is of grey images.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("images need Pillow: pip install pillow") from None
    if len(shape) < 2 or (len(shape) == 2 and shape[0] < 0 < shape[1]):
        raise ValueError("an image is for an input with a height and a width")
    dims = shape[-3:] if len(shape) >= 3 else [1, *shape]
    if dims[0] < 0 < min(dims[1:]) and dims[2] not in _COLOURS:
        dims = [1, *dims[1:]]
    first = dims[0] in _COLOURS or dims[2] not in _COLOURS
    channels = dims[0] if first else dims[2]
    height, width = (dims[1], dims[2]) if first else (dims[0], dims[1])
    try:
        with Image.open(path) as opened:
            image = opened.convert(_COLOURS.get(channels, "RGB"))
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from None
    size = (image.width if width < 0 else width, image.height if height < 0 else height)
    if image.size != size:
        image = image.resize(size)
    array = np.asarray(image).reshape(size[1], size[0], -1)
    click.echo(f"{path.name}: {image.mode}, {size[0]} x {size[1]}", err=True)
    array = array.transpose(2, 0, 1) if first else array
    array = array if len(shape) >= 3 else array[0]
    return array / np.float32(255) if datatype in ("FP16", "FP32", "FP64", "BF16") else array


def _parse(given: str, datatype: str) -> np.ndarray:
    try:
        return _of_json(json.loads(given), datatype)
    except json.JSONDecodeError:
        pass
    if datatype == "BYTES":
        return object_array([given], (1,))
    return _of_json([_number(value) for value in given.split(",")], datatype)


def _number(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        raise ValueError(f"'{value}' is no number") from None


def _of_json(value: Any, datatype: str) -> np.ndarray:
    if datatype in _INTEGERS:
        return _integers(value)
    if datatype != "BYTES":
        return np.array(value)
    if isinstance(value, list):
        return np.array(value, dtype=object)
    return object_array([value if isinstance(value, str) else json.dumps(value)], (1,))


def _integers(value: Any) -> np.ndarray:
    """Return Python's integers: NumPy makes FP64 of those that none of its types holds together."""
    array = np.array(value, dtype=object)
    if not all(isinstance(each, int | float) for each in array.flat):
        raise ValueError("expected numbers")
    if any(isinstance(each, float) and not each.is_integer() for each in array.flat):
        raise ValueError("expected integers")
    return object_array([int(each) for each in array.flat], array.shape)


def _as_bytes(element: object) -> bytes:
    return element if isinstance(element, bytes) else str(element).encode()


def _as_type(array: np.ndarray, dtype: "np.dtype[Any]") -> np.ndarray:
    """Return the values in another type; integers that it cannot hold are refused."""
    if array.dtype.kind not in ("biufO" if dtype.kind in "iu" else "biuf"):
        raise ValueError("expected numbers")
    if dtype.kind in "iu" and array.size:
        bounds = np.iinfo(dtype)
        if array.dtype.kind == "f" and not np.array_equal(array, np.trunc(array)):
            raise ValueError("expected integers")
        if array.min() < bounds.min or array.max() > bounds.max:
            raise ValueError(f"values must be from {bounds.min} to {bounds.max}")
    return np.ascontiguousarray(array.astype(dtype))


def _fit(array: np.ndarray, shape: list[int]) -> np.ndarray:
    """Return the array in the shape of the input, a batch of one put around it where that is what lacks."""
    if _matches(array.shape, shape):
        return array
    if shape[:1] == [-1] and _matches(array.shape, shape[1:]):
        return array[None]
    sizes = list(shape)
    free = [index for index, size in enumerate(sizes) if size < 0]
    for index in free[:-1]:
        sizes[index] = 1
    try:
        return array.reshape(sizes)
    except ValueError:
        raise ValueError(f"{array.size} values in shape {list(array.shape)} do not fit") from None


def _matches(given: tuple[int, ...], shape: list[int]) -> bool:
    return len(given) == len(shape) and all(want in (-1, have) for have, want in zip(given, shape, strict=True))
