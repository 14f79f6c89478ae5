"""Counter files, read while they grow."""

import ctypes
import os
import struct
from pathlib import Path
from random import Random

import pytest

from deployments.core.counter_file import CounterFile, CounterFileReader
from deployments.core.counts import MODEL, Label


def label_of(text: bytes) -> Label:
    return Label(MODEL, text.decode(), 1)


def read(reader: CounterFileReader, path: Path) -> dict[str, int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return {label.name: int.from_bytes(memory[:8], "little") for label, memory in reader.rows(descriptor)}
    finally:
        os.close(descriptor)


def test_a_reader_sees_what_was_counted_and_what_was_added_since_it_last_looked(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    file, reader = CounterFile(path), CounterFileReader(label_of)
    assert read(reader, path) == {}
    cells: list[ctypes.c_int64] = []
    for added in (1, 0, 2, 900, 1, 2000):  # a segment takes some hundreds
        for _ in range(added):
            cells.append(ctypes.c_int64.from_buffer(file.append(f"row {len(cells)}".encode(), 200)))
        for number, cell in enumerate(cells):
            cell.value += number
        expected = {f"row {number}": cell.value for number, cell in enumerate(cells)}
        assert read(reader, path) == read(CounterFileReader(label_of), path) == expected
    file.close()


def file_of_rows(folder: Path, count: int) -> Path:
    file = CounterFile(folder / "counts")
    for number in range(count):
        file.append(f"row {number}".encode(), 200)
    file.close()
    return folder / "counts"


def test_a_row_that_makes_no_sense_ends_its_segment(tmp_path: Path) -> None:
    path = file_of_rows(tmp_path, 900)
    content = bytearray(path.read_bytes())
    content[16 + 8 + 8 + 200 + 4 : 16 + 8 + 8 + 200 + 8] = b"\xff\xff\xff\x7f"  # the second row's length
    path.write_bytes(content)
    found = read(CounterFileReader(label_of), path)
    assert "row 0" in found and "row 1" not in found and "row 899" in found


def test_rows_take_the_places_of_those_that_were_given_back(tmp_path: Path) -> None:
    path, random = tmp_path / "counts", Random(7)
    file, reader = CounterFile(path), CounterFileReader(label_of)
    there: dict[str, ctypes.c_int64] = {}
    for step in range(300):
        for number in range(random.randrange(60)):
            name = f"{step}/{number}" + "x" * random.choice((0, 0, 40))
            there[name] = ctypes.c_int64.from_buffer(file.append(name.encode(), random.choice((8, 200, 4000))))
            there[name].value += step * number
        expected = {name: cell.value for name, cell in there.items()}
        assert read(reader, path) == read(CounterFileReader(label_of), path) == expected
        gone = [name for name in there if random.random() < 0.5]
        file.remove(name.encode() for name in gone)
        for name in gone:
            del there[name]
        if step % 3 == 0:
            assert read(reader, path).keys() == read(CounterFileReader(label_of), path).keys() == there.keys()
    assert path.stat().st_size < 20 << 16, "some 9,000 rows had 12 MB"
    file.close()


def test_a_file_that_was_full_takes_other_rows_when_the_old_are_given_back(tmp_path: Path) -> None:
    file = CounterFile(tmp_path / "counts")
    labels: list[bytes] = []

    def fill(size_bytes: int) -> None:
        with pytest.raises(OSError, match="bytes of counters"):
            while True:
                label = f"{size_bytes}/{len(labels)}".encode()
                file.append(label, size_bytes)
                labels.append(label)

    fill(4000)
    assert len(labels) == 256 * 16
    with pytest.raises(OSError, match="bytes of counters"):
        file.append(b"larger than any room", 1 << 17)
    file.remove(labels)
    labels.clear()
    fill(5000)
    assert len(labels) == 256 * 13
    file.close()


def test_segments_of_another_form_are_left_out_and_hidden_from_who_does_not_know_this_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = file_of_rows(tmp_path, 900)
    content = bytearray(path.read_bytes())
    assert content[:4] == bytes(4), "the length of a label, where versions before begin to read"
    content[:8] = struct.pack("<II", 5, 200)
    path.write_bytes(content)
    found = read(CounterFileReader(label_of), path)
    assert "row 0" not in found and "row 899" in found
    assert len(caplog.records) == 1
