"""What a person may write for an input, and how a tensor is shown."""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from app.cli.client.tensors import from_bytes, read_tensor, show, to_bytes, to_json

GOOD: dict[str, tuple[str, str, list[int], Any]] = {
    "values": ("1,2,3", "FP32", [3], [1, 2, 3]),
    "one value": ("7", "INT64", [1], [7]),
    "large and small integers": ("1,18446744073709551615,9007199254740993", "UINT64", [3], [1, 2**64 - 1, 2**53 + 1]),
    "integers beside a fraction of 0": ("9007199254740993,1.0,true", "INT64", [3], [2**53 + 1, 1, 1]),
    "batch added to values": ("1,2,3", "FP32", [-1, 3], [[1, 2, 3]]),
    "batch of values": ("1,2,3,4,5,6", "FP32", [-1, 3], [[1, 2, 3], [4, 5, 6]]),
    "json": ("[[1, 2], [3, 4]]", "INT32", [-1, 2], [[1, 2], [3, 4]]),
    "json of any size": ("[1, 2]", "INT32", [-1, -1], [[1, 2]]),
    "booleans": ("[true, false]", "BOOL", [2], [True, False]),
    "text": ("hello, world", "BYTES", [-1, 1], [[b"hello, world"]]),
    "texts": ('["a", "bc"]', "BYTES", [2], [b"a", b"bc"]),
    "number as text": ("12", "BYTES", [1], [b"12"]),
    "negative": ("-1,1e3", "FP64", [2], [-1, 1000]),
}


@pytest.mark.parametrize(("given", "datatype", "shape", "expected"), GOOD.values(), ids=GOOD)
def test_what_may_be_written(given: str, datatype: str, shape: list[int], expected: Any) -> None:
    array = read_tensor("X", given, datatype, shape)
    assert array.tolist() == expected
    travelled = from_bytes(to_bytes(array, datatype), datatype, list(array.shape))
    assert travelled.shape == array.shape


BAD = {
    "not numbers": ("a,b", "FP32", [2], "input 'X' (FP32 [2]): 'a' is no number"),
    "another input's name": ("Z=1,2", "FP32", [2], "input 'X' (FP32 [2]): 'Z=1' is no number"),
    "nothing": ("", "FP32", [2], "input 'X' (FP32 [2]): '' is no number"),
    "half a list": ("[1, 2", "FP32", [2], "input 'X' (FP32 [2]): '[1' is no number"),
    "too many": ("1,2,3", "FP32", [2], "3 values in shape [3] do not fit"),
    "too large": ("300", "UINT8", [1], "values must be from 0 to 255"),
    "negative": ("-1", "UINT64", [1], "values must be from 0 to"),
    "too large beside a small one": (
        "-1,9223372036854775808",
        "INT64",
        [2],
        "values must be from -9223372036854775808 to",
    ),
    "too large for any": ("18446744073709551616", "UINT64", [1], "values must be from 0 to 18446744073709551615"),
    "infinity for integers": ("Infinity", "INT32", [1], "expected integers"),
    "nothing for a number": ("[null]", "INT32", [1], "expected numbers"),
    "rows of several lengths": ("[[1], [2, 3]]", "INT32", [-1], "expected numbers"),
    "fraction": ("1.5", "INT32", [1], "expected integers"),
    "texts for numbers": ('["a"]', "INT32", [1], "expected numbers"),
    "nested too deep": ("[" * 100_000, "INT32", [1], "input 'X' (INT32 [1]): nested too deep"),
    "no file": ("@/nowhere.npy", "FP32", [1], "input 'X' (FP32 [1]): /nowhere.npy: No such file or directory"),
}


@pytest.mark.parametrize(("given", "datatype", "shape", "text"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_one_sentence(given: str, datatype: str, shape: list[int], text: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        read_tensor("X", given, datatype, shape)
    assert text in raised.value.message


def test_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.int64).reshape(2, 3))
    (tmp_path / "a.json").write_text(json.dumps([[1.5, 2.5]]))
    (tmp_path / "a.txt").write_text("guten Tag\n")
    (tmp_path / "a.csv").write_text("\ufeff1,2\r\n")
    assert read_tensor("X", f"@{tmp_path}/a.npy", "FP32", [-1, 3]).dtype == np.float32
    assert read_tensor("X", f"@{tmp_path}/a.json", "FP32", [-1, 2]).tolist() == [[1.5, 2.5]]
    assert read_tensor("X", f"@{tmp_path}/a.txt", "BYTES", [1]).tolist() == [b"guten Tag\n"]
    assert read_tensor("X", f"@{tmp_path}/a.csv", "INT32", [2]).tolist() == [1, 2]
    for name, content in {"empty": b"", "zip": b"PK\x03\x04", "short": b"\x93NUMPY\x01"}.items():
        (tmp_path / f"{name}.npy").write_bytes(content)
        with pytest.raises(click.ClickException, match="EOF"):
            read_tensor("X", f"@{tmp_path}/{name}.npy", "FP32", [1])
    np.save(tmp_path / "evil.npy", np.array([object()], dtype=object), allow_pickle=True)
    with pytest.raises(click.ClickException, match="allow_pickle=False"):
        read_tensor("X", f"@{tmp_path}/evil.npy", "FP32", [1])


@pytest.mark.parametrize(
    ("datatype", "shape", "expected_shape", "white"),
    [
        ("FP32", [-1, 3, 8, 8], (1, 3, 8, 8), 1.0),
        ("UINT8", [-1, 8, 8, 3], (1, 8, 8, 3), 255),
        ("FP32", [1, 8, 8], (1, 8, 8), 1.0),
        ("FP32", [3, -1, -1], (3, 4, 6), 1.0),
        ("FP32", [8, 8], (8, 8), 1.0),
        ("FP32", [-1, 8, 8], (1, 8, 8), 1.0),
        ("FP32", [-1, -1], (4, 6), 1.0),
    ],
)
def test_images_get_the_layout_and_size_of_the_input(
    datatype: str, shape: list[int], expected_shape: tuple[int, ...], white: float, tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (6, 4), "white").save(tmp_path / "white.png")
    array = read_tensor("X", f"@{tmp_path}/white.png", datatype, shape)
    assert array.shape == expected_shape
    assert np.all(array == white)
    assert read_tensor("X", f"@{tmp_path}/white.png", "BYTES", [1])[0] == (tmp_path / "white.png").read_bytes()


def test_an_image_is_for_an_input_that_has_a_place_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("L", (8, 8)).save(tmp_path / "a.png")
    for shape in ([4], [-1, 64]):  # the latter is a batch of rows
        with pytest.raises(click.ClickException, match="an image is for an input with a height and a width"):
            read_tensor("X", f"@{tmp_path}/a.png", "FP32", shape)
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(click.ClickException, match="exceeds limit of 20 pixels"):
        read_tensor("X", f"@{tmp_path}/a.png", "FP32", [8, 8])


def test_what_comes_back_is_readable() -> None:
    assert show(from_bytes(b"\x02\0\0\0\xc3\xa9", "BYTES", [1])) == "['é']"
    half = to_bytes(read_tensor("X", "1.5,-2", "BF16", [2]), "BF16")
    assert from_bytes(half, "BF16", [2]).tolist() == [1.5, -2.0]
    assert len(show(np.zeros((1000, 1000)))) < 2000


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
def test_what_is_no_number_of_json_is_a_text(datatype: str) -> None:
    array = read_tensor("X", "[[1.5, NaN], [Infinity, -Infinity]]", datatype, [2, 2])
    text = json.dumps(to_json(array), allow_nan=False)
    assert json.loads(text) == [[1.5, "NaN"], ["Infinity", "-Infinity"]]


def test_numbers_and_texts_of_json_are_as_they_are() -> None:
    assert to_json(np.array([[1, 2]], np.int32)) == [[1, 2]]
    assert to_json(np.array([0.5], np.float32)) == [0.5]
    assert to_json(np.array(["a"], object)) == ["a"]
