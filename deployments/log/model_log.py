"""What a model and its replicas have logged on a node: lines of the files that Serve keeps for each replica."""

import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from deployments.core.pauses import Pauses
from deployments.log.line_format import escaped
from repository_loader.plan import PACKED_APP, PACKED_DEPLOYMENT, app_name

_FOLLOW_S: Final = 0.5
_MAX_LINE_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 4 << 20
_MAX_BYTES: Final = 12 << 20
_MAX_FILES: Final = 64
_VERSION: Final = r"v\d+(?:-cpu|-any|-gpu\d+)?"


class ModelLog:
    """Finds a model's lines in the last 4 MiB of each file, the newest first, and in no more than 16 MiB.

    Replicas of its own log nothing else. Of the file that packed models share, of the ingresses', which embedded models
    share, and of the controller's, the lines that name the model count, with those that continue them. Ingresses are
    asked for what they have where no replica has logged a line.
    """

    def __init__(self, model: str, folder: Path) -> None:
        self.own = _newest(folder, app_name(model), _VERSION)
        self.shared = [] if self.own else _newest(folder, PACKED_APP, PACKED_DEPLOYMENT)
        self._ingresses = [] if self.own else _newest(folder, "eagleray", "Ingress")
        self._controller = _newest(folder, "eagleray", "RepositoryController")
        # Our lines have texts as they stand in JSON, those of others as they are.
        name = "|".join(re.escape(each) for each in dict.fromkeys((model, escaped(model))))
        self._named = re.compile(
            rf"(?<!instance )'(?:{name})'|instance '(?:{name})(?:_\d+){{1,2}}(?:_gpu\d+)?'"
            rf"|\[(?:{name})\]|\"model\": \"{re.escape(escaped(model))}\""
        )

    @property
    def files(self) -> list[Path]:
        """The files in which the model may have logged: its replicas', or those that it shares."""
        return self.own or [*self.shared, *self._ingresses]

    def last(self, count: int, *, controller: bool = False) -> list[tuple[str, str]]:
        """Return file and line of the last ones; those of the controller come first, where they are wanted."""
        found = self._last_of(self.own or self.shared, count, _MAX_BYTES)
        if not found:
            found = self._last_of(self._ingresses, count, _MAX_BYTES)
        if controller:
            # What the replicas' files have does not use up what may be read of the controller's.
            found.extendleft(reversed(self._last_of(self._controller, count - len(found), _TAIL_BYTES)))
        return list(found)

    def _last_of(self, files: Sequence[Path], count: int, max_bytes: int) -> deque[tuple[str, str]]:
        found: deque[tuple[str, str]] = deque()
        for path in reversed(files):
            if len(found) >= count or not max_bytes:
                break
            lines = deque(self._lines(path, max_bytes), count - len(found))
            found.extendleft((path.name, line) for line in reversed(lines))
            max_bytes -= min(max_bytes, _TAIL_BYTES, path.stat().st_size)
        return found

    def follow(self) -> Iterator[tuple[str, str]]:
        """Return the lines that come, for ever; those of files that are new are not among them.

        A file that Serve has put aside, as it was large, goes on in the one that has its name now.
        """
        pause = Pauses()
        files = {path: path.open("rb") for path in self.files}
        for file in files.values():
            file.seek(0, os.SEEK_END)
        while True:
            for path, file in files.items():
                aside = _is_put_aside(path, file)
                for line in self._of_model(path, _read(file, pause)):
                    yield path.name, line
                if aside:
                    file.close()
                    files[path] = path.open("rb")
            time.sleep(_FOLLOW_S)

    def _lines(self, path: Path, max_bytes: int) -> Iterator[str]:
        pause = Pauses()
        max_bytes = min(max_bytes, _TAIL_BYTES)
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - max_bytes))
            if size > max_bytes:
                file.readline(_MAX_LINE_BYTES)
            yield from self._of_model(path, _read(file, pause))

    def _of_model(self, path: Path, lines: Iterable[str]) -> Iterator[str]:
        named = path in self.own
        for line in lines:
            if path not in self.own and not line.startswith(" "):
                named = self._named.search(line) is not None
            if named:
                yield line


def failed_lines(lines: Sequence[str], model: str) -> list[int]:
    """Return which lines say what went wrong.

    Of the last traceback the line of the model's own code and the exception, or the one line that has all of it as
    JSON; else the last error; none without one.
    """
    for start in range(len(lines) - 1, -1, -1):
        if "Traceback (most recent call last)" in lines[start]:
            break
    else:
        errors = [place for place, line in enumerate(lines) if _ERROR.match(line)]
        return errors[-1:]
    if lines[start].startswith("{"):
        return [start]
    depth = _depth(lines[start])
    frames: list[int] = []
    for place in range(start + 1, len(lines)):
        if lines[place].strip() and _depth(lines[place]) <= depth:
            code = [each + 1 for each in frames if f"/{model}/" in lines[each]][-1:]
            return [*code, place]
        if _FRAME.match(lines[place]):
            frames.append(place)
    return [start]


_ERROR: Final = re.compile(r"[EF]\d{4} |ERROR |[\d-]+T[\d:.]+Z E |.*\"level\": ?\"(?:ERROR|CRITICAL)\"")
_FRAME: Final = re.compile(r" +File .*, line \d+")


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _read(file: BinaryIO, pause: Pauses) -> Iterator[str]:
    for line in iter(lambda: file.readline(_MAX_LINE_BYTES), b""):
        pause()
        yield line.decode("utf-8", "replace").rstrip("\n")


def _is_put_aside(path: Path, file: BinaryIO) -> bool:
    """Whether another file has the name of an open one now."""
    try:
        return not os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _newest(folder: Path, app: str, deployment: str) -> list[Path]:
    """Return the newest files of a deployment's replicas, oldest first; `deployment` is a pattern."""
    name = re.compile(rf"replica_{re.escape(app)}_{deployment}_[a-z0-9]+\.log")
    found = (path for path in folder.glob("replica_*.log") if name.fullmatch(path.name))
    return sorted(found, key=lambda path: path.stat().st_mtime)[-_MAX_FILES:]
