"""The ring of responses that processes share, with real processes, of which some are killed."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from deployments.core.response_ring import ResponseRing
from tests.line_process import LineProcess

SIZE = 1 << 18


class Sharer(LineProcess):
    """One process that has the ring open."""

    def __init__(self, file: Path) -> None:
        super().__init__(Path(__file__).with_name("ring_process.py"), str(file), str(SIZE))
        assert self.answer() == "ok"

    def ask(self, line: str) -> str:
        self.say(line)
        return self.answer()


@pytest.fixture
def start() -> Iterator[Callable[[], Sharer]]:
    started: list[Sharer] = []
    with TemporaryDirectory(dir="/dev/shm") as folder:

        def start_one() -> Sharer:
            started.append(Sharer(Path(folder, "responses")))
            return started[-1]

        yield start_one
        for sharer in started:
            sharer.kill()
            assert sharer.process.stdin is not None
            sharer.process.stdin.close()


def test_what_one_process_keeps_others_find_also_after_its_death(start: Callable[[], Sharer]) -> None:
    one, other = start(), start()
    assert other.ask("find 1") == "none"
    one.ask("keep 1")
    assert other.ask("find 1") == "found"
    one.kill()
    assert [sharer.ask("find 1") for sharer in (other, start())] == ["found", "found"]


def test_a_writer_that_stands_still_holds_up_nobody_and_its_death_frees_its_place(start: Callable[[], Sharer]) -> None:
    one, other = start(), start()
    one.ask("keep 1")
    one.ask("half 2")
    assert other.ask("keep 3") == "ok"
    assert [other.ask(f"find {number}") for number in (1, 2, 3)] == ["found", "none", "none"]
    one.kill()  # the child that it has forked lives on
    other.ask("keep 3")
    assert [other.ask(f"find {number}") for number in (1, 2, 3)] == ["found", "none", "found"]


def test_no_death_at_any_moment_makes_an_answer_wrong(start: Callable[[], Sharer]) -> None:
    """The numbers' contents are several times what the ring holds, so that everybody writes over everything."""
    stays = start()
    stays.say("busy 0")
    for number in range(1, 5):
        killed = start()
        killed.say(f"busy {number}")
        assert killed.answer() == stays.answer() == "ok"
        killed.kill()
    with stays.lines.mutex:
        assert "wrong" not in stays.lines.queue
    fresh = start()
    fresh.ask("keep 7")
    assert stays.answer() == "ok"


def test_what_is_written_over_while_it_is_copied_is_no_answer(tmp_path: Path) -> None:
    reader, writer = (ResponseRing(tmp_path / "ring", 1 << 16) for _ in range(2))

    class Overtaken(mmap.mmap):
        def __getitem__(self, place: Any) -> Any:
            for number in range(2, 100):
                writer.keep(number.to_bytes(32, "little"), (bytes([number]) * 1000,))
            return super().__getitem__(place)

    key = (1).to_bytes(32, "little")
    writer.keep(key, (b"first",))
    assert reader.find(key) == b"first"
    reader._map = Overtaken(reader._descriptor, len(reader._map))
    assert reader.find(key) is None
    for ring in (reader, writer):
        ring.close()


def test_what_is_damaged_is_no_answer(tmp_path: Path) -> None:
    ring, key = ResponseRing(tmp_path / "ring", 1 << 16), (1).to_bytes(32, "little")
    ring.keep(key, (b"content",))
    place = ring._map.find(b"content")
    ring._map[place : place + 1] = b"C"
    assert ring.find(key) is None
    ring.close()


def test_the_file_is_never_larger_than_was_asked_for(tmp_path: Path) -> None:
    for size_bytes in (1, 200, 5000, 1 << 20):
        ring = ResponseRing(tmp_path / f"{size_bytes}", size_bytes)
        for number in range(2000):
            ring.keep(number.to_bytes(32, "little"), (b"x" * 1000,))
        assert (tmp_path / f"{size_bytes}").stat().st_size <= max(size_bytes, 192)
        assert (ring.find((1999).to_bytes(32, "little")) is not None) == (size_bytes >= 5000)
        ring.close()


def test_without_memory_for_all_of_it_the_ring_is_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = os.posix_fallocate

    def reserve_a_part(descriptor: int, offset: int, length: int) -> None:
        if offset + length > 3 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", reserve_a_part)
    ring = ResponseRing(tmp_path / "ring", 1 << 24)
    for number in range(20):
        key = number.to_bytes(32, "little")
        ring.keep(key, (bytes([number]) * (1 << 18),))
        assert ring.find(key) == bytes([number]) * (1 << 18)
    ring.close()
