"""What all processes of a node have counted, of which each counts in a file of its own that the others read.

What a process has counted is kept when it ends, however it ends.
"""

import contextlib
import ctypes
import json
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

from deployments.core.counter_file import CounterFile, CounterFileReader
from deployments.core.counts import KINDS, MODEL, OF_VERSIONS, Counts, IsGone, Label, ModelCounts, Totals
from deployments.core.pauses import Pauses
from deployments.core.row_forms import FORMS, kind_of, understood, written
from deployments.replica.node_folder import NodeFolder, hold, is_held

logger = logging.getLogger(__name__)

_PAST: Final = "past-counts"
_SPEAKER: Final = "speaker"
_ROWS_AT_ONCE: Final = 64


class NodeCounters:
    """This process's rows, and the sum of everyone's; any thread may ask."""

    def __init__(self, folder: NodeFolder) -> None:
        """Make this process's file, and sum up those of the dead so that they do not gather.

        Raises:
            OSError: there is no room.
        """
        self._folder = folder
        self._rows: dict[Label, Counts] = {}
        self._warned = self._warned_of_past = False
        self._lock = threading.Lock()
        self._readers: dict[str, CounterFileReader] = {}
        self._speaker: int | None = None
        with folder.locked():
            self._fold_dead()
            self._path = folder.path / f"member-{os.getpid()}-{secrets.token_hex(4)}"
            self._file = CounterFile(self._path)
            # Not by the file's own descriptor: what this process forks has its mappings, which would hold the lock.
            self._member = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            hold(self._member)

    @property
    def folder(self) -> str:
        """The node's folder."""
        return str(self._folder.path)

    def row(self, label: Label) -> Counts:
        """Return the row of a label, zeros when it is new; what finds no room is seen by this process only."""
        row = self._rows.get(label)
        if row is None:
            with self._lock:
                row = self._rows.get(label)
                if row is None:
                    row = self._rows[label] = self._append(label, KINDS[label.kind])
        return row

    def own(self, kinds: Collection[str]) -> list[tuple[Label, list[int]]]:
        """Return this process's rows of some kinds; any thread may ask."""
        with self._lock:
            rows = list(self._rows.items())
        return [(label, row.values()) for label, row in rows if label.kind in kinds]

    def _append(self, label: Label, kind: type[Counts]) -> Counts:
        try:
            return kind.from_buffer(self._file.append(_written(label), ctypes.sizeof(kind)))
        except OSError as error:  # that of the file system may pass
            if not self._warned:
                self._warned = True
                logger.warning("statistics of further models are not counted on this node: %s", error)
        return kind()

    def give_back(self, is_gone: IsGone, *, also_of_dead: bool = False) -> None:
        """Forget what was counted of versions that are gone, in here or by the dead too; any thread may ask, blocks.

        What somebody in this process counts in still stays.

        Raises:
            OSError: the files cannot be read, or not be written.
        """
        pause = Pauses()
        with self._lock:
            labels = list(self._rows)
        versions: dict[tuple[str, int], list[Label]] = {}
        for label in labels:
            if label.kind in OF_VERSIONS and is_gone(label.name, label.version):
                versions.setdefault(label[1:3], []).append(label)
            pause()
        if not versions and not also_of_dead:
            return
        with self._folder.locked():  # nobody reads meanwhile
            if also_of_dead:
                self._fold_dead(is_gone)
            for version, of_version in versions.items():
                with self._lock:
                    if is_gone(*version):  # still
                        self._remove(of_version)
                pause()

    def _remove(self, labels: Iterable[Label]) -> None:
        """Remove the rows of a version, unless anybody has one of them."""
        references = {label: weakref.ref(self._rows.pop(label)) for label in labels}
        had = {label: row for label, reference in references.items() if (row := reference()) is not None}
        if had:
            self._rows |= {label: had[label] if label in had else self._at(label) for label in labels}
        else:
            self._file.remove(map(_written, labels))

    def _at(self, label: Label) -> Counts:
        kind, memory = KINDS[label.kind], self._file.memory(_written(label))
        return kind() if memory is None else kind.from_buffer(memory)

    def totals(self, pause: Callable[[], None] | None = None) -> Totals:
        """Return what was ever counted on this node, with times of last inferences since the epoch; blocks.

        `pause` is called now and then, to let a loop in another thread go on; by default `Pauses`.

        Raises:
            OSError: the files cannot be read.
        """
        totals, pause = Totals(), pause or Pauses()
        with self._folder.locked():
            folded = self._add_past(totals, pause)
            members = [path for path in self._folder.members() if path.name not in folded]
            self._readers = {path.name: self._readers.get(path.name) or CounterFileReader(_label) for path in members}
            for path in members:
                _add_file(totals, path, self._readers[path.name], pause, present=is_held(path))
        since_epoch_ns = time.time_ns() - time.monotonic_ns()
        for number, (label, row) in enumerate(totals.rows.items()):
            if label.kind == MODEL and isinstance(row, ModelCounts) and row.last_inference_ns:
                row.last_inference_ns += since_epoch_ns
            if number % _ROWS_AT_ONCE == 0:
                pause()
        return totals

    def _add_past(self, totals: Totals, pause: Callable[[], None]) -> set[str]:
        """Add the sum of the dead, a line for each row; returns the names of the files that are in it.

        What cannot be read of it is left out: nobody would start any more, and nothing be counted.
        """
        try:
            folded, *rows = (self._folder.path / _PAST).read_bytes().splitlines()
            names = set(json.loads(folded))
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                totals.add_list(understood(map(json.loads, rows[start : start + _ROWS_AT_ONCE])))
                pause()
        except FileNotFoundError:
            return set()
        except (ValueError, TypeError) as error:
            if not self._warned_of_past:
                self._warned_of_past = True
                logger.warning("what processes that ended here had counted cannot be read, and is left out: %s", error)
            return set()
        return names

    def _fold_dead(self, is_gone: IsGone | None = None) -> None:
        """Move the counts of dead processes into one file, without those of versions that are gone.

        Nothing is lost or counted twice if this is cut short.
        """
        dead = [path for path in self._folder.members() if not is_held(path)]
        if not dead and is_gone is None:
            return
        totals, pause = Totals(), Pauses()
        folded = self._add_past(totals, pause)
        for path in dead:
            if path.name not in folded:
                _add_file(totals, path, CounterFileReader(_label), pause, present=False)
        removed = is_gone is not None and totals.remove(is_gone, pause)
        if not dead and not removed:
            return
        beside = self._folder.path / f"{_PAST}.new"
        beside.write_bytes(b"\n".join(map(_json, ([path.name for path in dead], *written(totals.to_list())))))
        beside.rename(self._folder.path / _PAST)
        for path in dead:
            path.unlink()

    def speaks_for_node(self) -> bool:
        """Whether this process answers for all: the first that was asked does, for as long as it lives."""
        if self._speaker is None:
            descriptor = os.open(self._folder.path / _SPEAKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                hold(descriptor)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._speaker = descriptor
        return True

    def close(self) -> None:
        """Count no more; what was counted stays until the node's last process leaves."""
        self._file.close()
        os.close(self._member)
        if self._speaker is not None:
            os.close(self._speaker)
            self._speaker = None
        with contextlib.suppress(OSError):
            self._folder.remove_if_abandoned()


def _add_file(
    totals: Totals, path: Path, reader: CounterFileReader, pause: Callable[[], None], *, present: bool
) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for number, (label, memory) in enumerate(reader.rows(descriptor)):
            totals.add_row(label, memory, present=present)
            if number % _ROWS_AT_ONCE == 0:
                pause()
    finally:
        os.close(descriptor)


def _written(label: Label) -> bytes:
    return _json((FORMS[label.kind], *label[1:]))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@lru_cache(maxsize=1 << 16)
def _label(text: bytes) -> Label | None:
    """Return the label of a row, None where another version of Eagleray has written it."""
    try:
        form, *rest = json.loads(text)
    except (ValueError, TypeError):
        form = text
    kind = kind_of(form)
    return None if kind is None else Label(kind, *rest)
