import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

from app.trace.sampler import Sampler, Sampling
from app.trace.trace_file import TraceFile, append, data_text
from deployments.core.pauses import Pauses
from protocol.bytes_tensor import encode_bytes
from protocol.infer import Array
from protocol.trace import TENSORS, TIMESTAMPS, Trace, TracedTensor
from tests.full_disk import full_disk

ALL = Sampler(Sampling(TIMESTAMPS, 1))


def trace(id: int, flags: int = TIMESTAMPS) -> Trace:
    made = Trace(flags, 1, id, 0, "m", 3, f"r{id}")
    made.mark("REQUEST_END", 20)
    made.mark("REQUEST_START", 10)
    return made


def test_the_file_is_as_triton_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "traces.json"
    parent = trace(5, TIMESTAMPS | TENSORS)
    parent.add_tensor(
        TracedTensor("TENSOR_QUEUE_INPUT", "X", "FP32", (1, 2), np.array([0.1, -2], np.float32).tobytes())
    )
    child = parent.child("step", 1)
    child.mark("COMPUTE_START", 15)
    TraceFile(str(path)).write([(parent, ALL)])
    assert json.loads(path.read_text()) == [
        {"id": 5, "model_name": "m", "model_version": 3, "request_id": "r5"},
        {"id": 5, "timestamps": [{"name": "REQUEST_START", "ns": 10}]},
        {"id": 5, "timestamps": [{"name": "REQUEST_END", "ns": 20}]},
        {
            "id": 5,
            "activity": "TENSOR_QUEUE_INPUT",
            "tensor": {"name": "X", "data": "0.1,-2.0", "shape": "1,2", "dtype": "FP32"},
        },
        {"id": child.id, "model_name": "step", "model_version": 1, "parent_id": 5},
        {"id": child.id, "timestamps": [{"name": "COMPUTE_START", "ns": 15}]},
    ]


@pytest.mark.parametrize(("flags", "keys"), [(TIMESTAMPS, {"timestamps"}), (TENSORS, {"activity", "tensor"})])
def test_a_level_shows_what_it_is_for(tmp_path: Path, flags: int, keys: set[str]) -> None:
    path = tmp_path / "traces.json"
    traced = trace(5, flags)
    traced.add_tensor(TracedTensor("TENSOR_QUEUE_INPUT", "X", "UINT8", (1,), b"x"))
    TraceFile(str(path)).write([(traced, ALL)])
    _, *rest = json.loads(path.read_text())
    assert {key for each in rest for key in each} == keys | {"id"}


def ids(path: Path) -> list[int]:
    return [each["id"] for each in json.loads(path.read_text()) if "model_name" in each]


def test_later_traces_are_added_also_by_a_server_that_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "traces.json"
    for file in (TraceFile(str(path)), TraceFile(str(path))):
        file.write([(trace(1), ALL), (trace(2), ALL)])
        file.write([(trace(3), ALL)])
    assert ids(path) == [1, 2, 3, 1, 2, 3]


def _write(path: str, first: int, all_are_there: Barrier) -> None:
    file = TraceFile(path)
    all_are_there.wait(60)
    for number in range(first, first + 300):
        file.write([(trace(number), ALL)])


def test_processes_that_write_at_the_same_time_leave_one_array(tmp_path: Path) -> None:
    path = tmp_path / "traces.json"
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    writers = [context.Process(target=_write, args=(str(path), first, barrier)) for first in (1000, 2000, 3000)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert sorted(ids(path)) == [first + number for first in (1000, 2000, 3000) for number in range(300)]


def test_files_of_so_many_traces_each_have_numbers(tmp_path: Path) -> None:
    path = tmp_path / "traces.json"
    twos, threes = (Sampler(Sampling(TIMESTAMPS, 1, -1, frequency)) for frequency in (2, 3))
    file = TraceFile(str(path))
    file.write([(trace(number), twos) for number in range(1, 6)] + [(trace(7), threes)])
    assert sorted(os.listdir(tmp_path)) == ["traces.json.0", "traces.json.1"]
    twos.ended = True
    file.write([])
    file.write([])
    file.finish()
    assert [ids(tmp_path / f"traces.json.{number}") for number in range(4)] == [[1, 2], [3, 4], [5], [7]]
    TraceFile(str(path)).write([(trace(8), twos), (trace(9), twos)])
    assert ids(tmp_path / "traces.json.4") == [8, 9]
    assert len(os.listdir(tmp_path)) == 5


def test_processes_of_one_number_write_numbered_files_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers that share the folder."""
    path, link = tmp_path / "t", os.link

    def write(number: int) -> None:
        TraceFile(str(path)).write([(trace(number), Sampler(Sampling(TIMESTAMPS, 1, -1, 1)))])

    def behind_another(*paths: str) -> None:
        monkeypatch.setattr(os, "link", link)
        write(2)
        link(*paths)

    monkeypatch.setattr(os, "link", behind_another)
    write(1)
    assert sorted(os.listdir(tmp_path)) == ["t.0", "t.1"]
    assert [ids(tmp_path / f"t.{number}") for number in range(2)] == [[2], [1]]


def test_a_numbered_file_that_finds_no_room_leaves_nothing_behind(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "traces"))
    with full_disk(), pytest.raises(OSError):
        file.write([(trace(1), Sampler(Sampling(TIMESTAMPS, 1, -1, 1)))])
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_within_a_trace_leaves_the_others_whole(tmp_path: Path) -> None:
    path = tmp_path / "traces.json"
    append(str(path), b'{"id":1}')
    with full_disk(path.stat().st_size + 4), pytest.raises(OSError, match="has no room for more"):
        append(str(path), b'{"id":2}')
    assert json.loads(path.read_text()) == [{"id": 1}]
    append(str(path), b'{"id":3}')
    assert json.loads(path.read_text()) == [{"id": 1}, {"id": 3}]


def test_the_last_traces_that_are_wanted_are_written_at_once(tmp_path: Path) -> None:
    sampler = Sampler(Sampling(TIMESTAMPS, 1, 5, 3))
    file = TraceFile(str(tmp_path / "t"))
    for number in range(1, 6):
        file.write([(trace(number), sampler)])
    assert [ids(tmp_path / f"t.{number}") for number in range(2)] == [[1, 2, 3], [4, 5]]


def test_a_number_of_traces_has_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "t"
    twos, others = (Sampler(Sampling(TIMESTAMPS, 1, count)) for count in (2, 5))
    file = TraceFile(str(path))
    file.write([(trace(1), ALL), (trace(2), twos)])
    file.write([(trace(3), others), (trace(4), twos), (trace(5), ALL)])
    assert ids(path) == [1, 5]
    assert [ids(tmp_path / f"t.{number}") for number in range(2)] == [[2, 4], [3]]
    others.ended = True
    file.write([(trace(6), others)])
    file.write([(trace(7), others)])  # after all others of its settings
    assert (ids(tmp_path / "t.1"), ids(path)) == ([3, 6], [1, 5, 7])
    TraceFile(str(path)).write([(trace(8), Sampler(Sampling(TIMESTAMPS, 1, 1)))])
    assert ids(tmp_path / "t.2") == [8]


OF_A_KILLED_TRITON = b'[{"id":1,"model_name":"m","model_version":1},{"id":1,"timestamps":[{"name":"REQU'


@pytest.mark.parametrize("content", [b"no array", b"[1]\n", b'[\n{"id":1}\n]\n', OF_A_KILLED_TRITON])
def test_a_file_of_somebody_elses_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(OSError, match="ends in no JSON array"):
        append(str(path), b"{}")
    assert path.read_bytes() == content
    path.rename(tmp_path / "away")
    append(str(path), b'{"id":2}')
    assert json.loads(path.read_bytes()) == [{"id": 2}]
    with pytest.raises(OSError, match="Is a directory"):
        append(str(tmp_path), b"{}")


KILLED_WHILE_IT_WRITES = """
import os, signal, sys
from app.trace import trace_file
path, kept = sys.argv[1], int(sys.argv[2])
write = os.pwrite
def write_some(descriptor, data, at):
    write(descriptor, data[:kept], at)
    os.kill(os.getpid(), signal.SIGKILL)
os.pwrite = write_some
trace_file.append(path, b'{"id":7,"timestamps":[{"name":"X","ns":1}]},{"id":8,"tensor":{"data":"}]"}}')
"""


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 8, 42, 43, 44, 45, 70, 76])
@pytest.mark.parametrize("already", [0, 2])
def test_a_process_that_is_killed_as_it_writes_harms_only_what_it_wrote(
    tmp_path: Path, already: int, kept: int
) -> None:
    path = tmp_path / "t"
    for number in range(already):
        append(str(path), b'{"id":%d,"timestamps":[{"name":"X","ns":1}]}' % number)
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_IT_WRITES, str(path), str(kept)], check=False)
    assert killed.returncode == -signal.SIGKILL
    for number in (100, 101):
        append(str(path), b'{"id":%d}' % number)
    assert [each["id"] for each in json.loads(path.read_text())] == [*range(already), 100, 101]


def test_what_is_lost_may_be_large(tmp_path: Path) -> None:
    path = tmp_path / "t"
    append(str(path), b'{"id":1}')
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b',{"id":2,"data":"' + bytes(3 << 20).replace(b"\0", b"]"))
    append(str(path), b'{"id":3}')
    assert [each["id"] for each in json.loads(path.read_text())] == [1, 3]


@pytest.mark.parametrize("content", [b"[]", b"[ ]", b"[\n]"])
def test_an_empty_array_gets_its_first_object(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    append(str(path), b'{"id":1},{"id":2}')
    append(str(path), b'{"id":3}')
    assert [each["id"] for each in json.loads(path.read_text())] == [1, 2, 3]


TENSORS_AS_TEXT = {
    "BOOL": (np.array([True, False]), "1,0"),
    "INT64": (np.array([[-1], [2**62]], np.int64), "-1,4611686018427387904"),
    "FP16": (np.array([0.5, -100.25], np.float16), "0.5,-100.25"),
    "FP32": (np.array([0.1, np.nan, np.inf], np.float32), "0.1,nan,inf"),
    "FP64": (np.array([0.1]), "0.1"),
    "BF16": (np.array([0x3F80, 0xC000], np.uint16), "1.0,-2.0"),
}


@pytest.mark.parametrize(
    ("datatype", "array", "text"), [(k, *v) for k, v in TENSORS_AS_TEXT.items()], ids=TENSORS_AS_TEXT
)
def test_data_are_text(datatype: str, array: Array, text: str) -> None:
    assert data_text(TracedTensor("A", "t", datatype, array.shape, array.tobytes()), Pauses()) == text


def test_data_of_bytes_are_quoted_and_those_that_were_not_kept_are_empty() -> None:
    array = np.array([[b"a,b", "ü\xff".encode("latin-1")]], object)
    assert data_text(TracedTensor("A", "t", "BYTES", (1, 2), encode_bytes(array)), Pauses()) == '"a,b","\ufffd\ufffd"'
    assert data_text(TracedTensor("A", "t", "FP32", (1 << 20,), b""), Pauses()) == ""


@pytest.mark.parametrize("datatype", ["UINT8", "FP16", "BYTES"])
def test_a_large_tensor_is_made_text_with_pauses(datatype: str) -> None:
    data = bytes(1 << 20)
    tensor = TracedTensor("A", "t", datatype, ((1 << 18) if datatype == "BYTES" else -1,), data)
    pauses_before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    assert data_text(tensor, Pauses()).count(",") > 1 << 17
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - pauses_before > 10


def test_traces_that_come_after_their_settings_have_changed_are_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t"
    file = TraceFile(str(path))
    for number in range(3):
        sampler = Sampler(Sampling(TIMESTAMPS, 1, -1, 1000))
        file.write([(trace(10 + number), sampler)])
        sampler.ended = True
        file.write([(trace(20 + number), sampler)])
    assert [ids(tmp_path / f"t.{number}") for number in range(3)] == [[10, 20], [11, 21], [12, 22]]


def test_what_waits_for_a_file_is_written_when_it_gets_large(tmp_path: Path) -> None:
    sampler = Sampler(Sampling(TENSORS, 1, -1, 2**32 - 1))
    file = TraceFile(str(tmp_path / "t"))
    for number in range(20):
        large = trace(number, TENSORS)
        large.add_tensor(TracedTensor("A", "X", "UINT8", (1 << 20,), b"\xff" * (1 << 20)))
        file.write([(large, sampler)])
    names = sorted(os.listdir(tmp_path), key=lambda name: int(name.removeprefix("t.")))
    written = [each for name in names for each in ids(tmp_path / name)]
    assert len(names) > 1 and written == list(range(len(written)))
    assert 20 - len(written) < 5, "each is 4 MiB of text"
