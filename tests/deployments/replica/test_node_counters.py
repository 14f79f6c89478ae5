"""What the processes of a node have counted, added up, whatever became of them."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from deployments.core import row_forms
from deployments.core.counts import BATCH_SIZE, CUSTOM_COUNTER, MODEL, SUMMARY, Label, ModelCounts, Totals
from deployments.core.statistics_document import documents
from deployments.replica import node_counters
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from tests.serving import wait_until

LABEL = Label(MODEL, "digits", 1)
COUNTING = """
import os, signal, sys, time
from pathlib import Path
from deployments.core import row_forms
from deployments.core.counter_file import CounterFile
from deployments.core.counts import MODEL, Label
from deployments.replica import node_counters
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder

counts = NodeCounters(NodeFolder("node", Path(sys.argv[1]))).row(Label(MODEL, "digits", 1))
counts.pending_count = 1
if sys.argv[2:] == ["forks"]:
    if not (child := os.fork()):
        signal.pause()
    print(child, flush=True)
print("counting", flush=True)
while True:
    counts.success_count += 1
    if counts.success_count == 1000:
        print("counted", flush=True)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process of the node, which counts as fast as it can."""
    command = [sys.executable, "-c", COUNTING, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "counting\n"
    yield process
    process.kill()
    process.wait(10)
    process.stdout.close()


def counters_of(tmp_path: Path, node: str = "node") -> NodeCounters:
    return NodeCounters(NodeFolder(node, tmp_path))


def counted(counters: NodeCounters, label: Label = LABEL) -> ModelCounts:
    return cast(ModelCounts, counters.totals().rows[label])


def test_everyone_sees_everyones_counts_at_once(tmp_path: Path) -> None:
    one, other = counters_of(tmp_path), counters_of(tmp_path)
    one.row(LABEL).success_count += 2  # type: ignore[attr-defined]
    other.row(LABEL).success_count += 3  # type: ignore[attr-defined]
    assert counted(one).success_count == counted(other).success_count == 5
    one.row(LABEL).success_count += 1  # type: ignore[attr-defined]
    assert counted(other).success_count == 6


def test_what_a_killed_process_counted_stays_to_the_last_one(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    counters = counters_of(tmp_path)
    assert other.stdout is not None
    other.stdout.readline()
    seen = counted(counters)
    assert (seen.success_count >= 1000, seen.pending_count) == (True, 1)
    other.send_signal(signal.SIGKILL)
    other.wait(10)
    last = counted(counters)
    assert last.success_count >= seen.success_count
    assert last.pending_count == 0
    # The next process to start sums up the dead.
    later = counters_of(tmp_path)
    assert len(list((tmp_path / f"eagleray-nodes-{os.getuid()}" / "node").glob("member-*"))) == 2
    assert counted(later).success_count == counted(counters).success_count == last.success_count


def test_a_killed_process_has_no_requests_any_more_though_what_it_has_forked_lives_on(tmp_path: Path) -> None:
    counters = counters_of(tmp_path)
    command = [sys.executable, "-c", COUNTING, str(tmp_path), "forks"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.stdout.readline()
        assert counted(counters).pending_count == 1
        process.kill()
        process.wait(10)
        wait_until(lambda: counted(counters).pending_count == 0, "its child, which may yet have to begin")
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_a_child_that_is_forked_while_the_folder_is_locked_does_not_keep_it_locked(tmp_path: Path) -> None:
    folder = NodeFolder("node", tmp_path)
    with folder.locked():
        if not (child := os.fork()):
            signal.pause()
    try:
        deadline_s = time.monotonic() + 2
        with folder.locked():
            assert time.monotonic() < deadline_s
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_nothing_is_counted_twice_when_summing_up_is_cut_short(tmp_path: Path) -> None:
    counters_of(tmp_path).row(LABEL)
    folder = tmp_path / f"eagleray-nodes-{os.getuid()}" / "node"
    stays = counters_of(tmp_path)
    gone = counters_of(tmp_path)
    gone.row(LABEL).success_count += 7  # type: ignore[attr-defined]
    (path,) = [path for path in folder.glob("member-*") if path == gone._path]
    content = path.read_bytes()
    gone.close()
    counters_of(tmp_path)
    path.write_bytes(content)  # as if it had not been removed yet
    assert counted(stays).success_count == 7
    counters_of(tmp_path)
    assert counted(stays).success_count == 7


def test_what_the_dead_have_counted_is_read_with_pauses_too(tmp_path: Path) -> None:
    stays, dead = counters_of(tmp_path), counters_of(tmp_path)
    for number in range(1000):
        dead.row(Label(MODEL, f"m{number}", 1)).success_count = 1  # type: ignore[attr-defined]
    dead.close()
    folding = counters_of(tmp_path)
    pauses: list[None] = []
    totals = folding.totals(lambda: pauses.append(None))
    assert sum(row.success_count for row in totals.rows.values() if isinstance(row, ModelCounts)) == 1000
    assert len(pauses) > 2 * 1000 / 100, "after every hundred rows, as they are read and as they are gone over"
    folding.close()
    stays.close()


def test_last_inference_is_a_time_of_day(tmp_path: Path) -> None:
    counters = counters_of(tmp_path)
    counters.row(LABEL).last_inference_ns = time.monotonic_ns()  # type: ignore[attr-defined]
    (document,) = documents(counters.totals())
    assert abs(document["last_inference"] / 1000 - time.time()) < 5


def test_the_last_to_leave_removes_the_folder(tmp_path: Path) -> None:
    one, other = counters_of(tmp_path), counters_of(tmp_path)
    folder = tmp_path / f"eagleray-nodes-{os.getuid()}" / "node"
    one.close()
    assert folder.exists()
    other.close()
    assert not folder.exists()


def test_folders_of_nodes_without_a_living_process_are_removed(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    folder = tmp_path / f"eagleray-nodes-{os.getuid()}" / "node"
    counters_of(tmp_path, "another")
    assert folder.exists()
    other.kill()
    other.wait(10)
    counters_of(tmp_path, "a third")
    assert not folder.exists()


def test_a_folder_is_kept_for_a_guest_until_it_goes(tmp_path: Path) -> None:
    folder = NodeFolder("node", tmp_path)
    with folder.used():
        (folder.path / "files").mkdir()
        NodeFolder("another", tmp_path)
        assert (folder.path / "files").exists()
    NodeFolder("another", tmp_path)
    assert not folder.path.exists()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / f"eagleray-nodes-{os.getuid()}"
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="only its owner"):
        NodeFolder("node", tmp_path)


def test_one_process_speaks_for_the_node_until_it_ends(tmp_path: Path) -> None:
    one, other = counters_of(tmp_path), counters_of(tmp_path)
    assert one.speaks_for_node()
    assert not other.speaks_for_node()
    assert one.speaks_for_node()
    one.close()
    assert other.speaks_for_node()


def test_many_models_and_batch_sizes_find_room(tmp_path: Path) -> None:
    counters = counters_of(tmp_path)
    for number in range(2000):
        counters.row(Label(MODEL, f"model {number}", 1)).success_count += number  # type: ignore[attr-defined]
    totals: Totals = counters_of(tmp_path).totals()
    assert [document["inference_stats"]["success"]["count"] for document in documents(totals)] == [
        int(document["name"].split()[1]) for document in documents(totals)
    ]
    assert len(totals.rows) == 2000


def test_what_comes_while_the_memory_is_full_for_a_moment_is_the_only_thing_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = counters_of(tmp_path)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        for name in ("first", "second", "first"):
            counters.row(Label(MODEL, name, 1)).success_count += 1  # type: ignore[attr-defined]
    counters.row(Label(MODEL, "third", 1)).success_count += 1  # type: ignore[attr-defined]
    assert [label.name for label in counters_of(tmp_path).totals().rows] == ["third"]
    assert counters.row(Label(MODEL, "first", 1)).values()[0] == 2, "this process goes on with its own"


def test_versions_that_come_and_go_find_room_for_ever(tmp_path: Path) -> None:
    counters, other = counters_of(tmp_path), counters_of(tmp_path)
    for version in range(1, 6):
        for number in range(900):  # a file takes some 3,600 of these rows
            counters.row(Label(SUMMARY, f"model {number}", version)).count += 1  # type: ignore[attr-defined]
        labels = {label for label in other.totals().rows if label.kind == SUMMARY}
        assert labels == {Label(SUMMARY, f"model {number}", version) for number in range(900)}
        assert {row.count for row in other.totals().rows.values()} == {1}  # type: ignore[attr-defined]
        counters.give_back(lambda _, each, gone=version: each <= gone)  # type: ignore[misc]
        assert not other.totals().rows


def test_what_somebody_still_counts_in_is_not_given_back(tmp_path: Path) -> None:
    counters, other = counters_of(tmp_path), counters_of(tmp_path)
    batch = Label(BATCH_SIZE, "digits", 1, 4)
    held = counters.row(LABEL).cells
    for label in (batch, Label(MODEL, "gone", 1), Label(CUSTOM_COUNTER, "of the model's own", 0)):
        counters.row(label).cells[0] += 1
    held[0] = 3
    counters.give_back(lambda *_: True)
    held[0] += 4
    counters.row(batch).cells[0] += 1
    for label in (Label(BATCH_SIZE, "new", 1, 4), Label(MODEL, "newer", 1)):
        counters.row(label)
    rows = other.totals().rows
    assert {label.name for label in rows} == {"digits", "of the model's own", "new", "newer"}
    assert (rows[LABEL].values()[0], rows[batch].values()[0]) == (7, 2), "a version has all of its rows or none"
    assert counters.row(LABEL).values()[0] == 7
    del held
    counters.give_back(lambda *_: True)
    assert {label.name for label in other.totals().rows} == {"of the model's own"}


def test_what_found_no_room_is_given_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = counters_of(tmp_path)
    counters._warned = True  # the record of a warning, which pytest keeps, leads to the row
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        counters.row(LABEL).success_count += 1  # type: ignore[attr-defined]
    held = counters.row(Label(BATCH_SIZE, "digits", 1, 4))
    counters.give_back(lambda *_: True)
    held.cells[0] += 1
    assert counted(counters_of(tmp_path), Label(BATCH_SIZE, "digits", 1, 4)).values()[0] == 1
    del held
    counters.give_back(lambda *_: True)
    counters.row(LABEL).success_count += 2  # type: ignore[attr-defined]
    assert counted(counters_of(tmp_path)).success_count == 2


def test_what_the_dead_have_counted_of_versions_that_are_gone_is_dropped(tmp_path: Path) -> None:
    ingress, folded, dead = counters_of(tmp_path), counters_of(tmp_path), counters_of(tmp_path)
    for counters in (folded, dead):
        for version in (1, 2):
            counters.row(Label(MODEL, "digits", version)).success_count += 5  # type: ignore[attr-defined]
    folded.close()
    replica = counters_of(tmp_path)
    dead.close()
    assert counted(replica).success_count == 10
    ingress.give_back(lambda _, version: version == 1, also_of_dead=True)
    assert replica.totals().models().keys() == {("digits", 2)}
    assert replica.totals().models()["digits", 2].success_count == 10
    assert len(list(ingress._folder.members())) == 2
    replica.row(LABEL).success_count += 1  # type: ignore[attr-defined]
    assert counted(ingress).success_count == 1, "loaded again, it starts at zero"


def full(*_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


ANOTHER_VERSIONS = {
    "a kind of row that is not known": ["moods 0123abcd", "digits", 1],
    "other numbers of a model": ["model 0123abcd", "digits", 1],
    "no digest of what the numbers mean": ["model", "digits", 1],
    "another label": {"kind": "model"},
}


@pytest.mark.parametrize("alive", (True, False), ids=("alive", "dead"))
@pytest.mark.parametrize("label", ANOTHER_VERSIONS.values(), ids=ANOTHER_VERSIONS)
def test_rows_of_another_version_are_left_out_and_all_others_counted(
    tmp_path: Path, label: object, alive: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_forms, "_unknown", set())
    node_counters._label.cache_clear()
    stays, other = counters_of(tmp_path), counters_of(tmp_path)
    other._file.append(json.dumps(label).encode(), 8 * 30)[:8] = b"\1" * 8
    other.row(LABEL).success_count += 3  # type: ignore[attr-defined]
    if not alive:
        other._file.close()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            later = counters_of(tmp_path)
            assert counted(later).success_count == counted(stays).success_count == 3
            assert list(later.totals().rows) == [LABEL]
    assert len([record for record in caplog.records if "another version" in record.getMessage()]) == 1


PASTS = {
    "empty": b"",
    "half": b'["member-1-ab"]\n["model 01',
    "no rows": b'{"format": 2}',
    "rows of another version": b'[]\n["model 0123abcd","digits",1,0,"",[1,2,3]]\n["moods 0123abcd","digits",1,0,"",[1]]',
}


@pytest.mark.parametrize("past", PASTS.values(), ids=PASTS)
def test_sums_of_the_dead_that_another_version_has_left_keep_nobody_from_starting(tmp_path: Path, past: bytes) -> None:
    stays, gone = counters_of(tmp_path), counters_of(tmp_path)
    Path(stays.folder, node_counters._PAST).write_bytes(past)
    gone.row(LABEL).success_count += 3  # type: ignore[attr-defined]
    assert counted(stays).success_count == 3
    gone._file.close()
    assert counted(counters_of(tmp_path)).success_count == counted(stays).success_count == 3
