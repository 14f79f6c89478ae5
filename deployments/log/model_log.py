"""What a model and its replicas have logged on a node: lines of the files that Serve keeps for each replica."""

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from repository_loader.plan import PACKED_APP, app_name

_FOLLOW_S: Final = 0.5
_MAX_LINE_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 4 << 20
_MAX_FILES: Final = 64
_CONTROLLER: Final = "replica_eagleray_RepositoryController_*.log"


class ModelLog:
    """Finds a model's lines in the last 4 MiB of each file; the newest 64 files count.

    Replicas of its own log nothing else. Of the file that packed models share, and of the controller's, the lines that
    name the model count, with those that continue them.
    """

    def __init__(self, model: str, folder: Path) -> None:
        own = folder.glob(f"replica_{_escaped(app_name(model))}_*.log")
        self.own = _newest(own)
        self.shared = [] if self.own else _newest(folder.glob(f"replica_{PACKED_APP}_*.log"))
        self._controller = _newest(folder.glob(_CONTROLLER))
        name = re.escape(model)
        as_json = re.escape(json.dumps(model))
        self._named = re.compile(rf"'{name}(?:_\d+)?'|\[{name}\]|\"model\": {as_json}")

    @property
    def files(self) -> list[Path]:
        """The files of replicas, oldest first."""
        return self.own or self.shared

    def last(self, count: int, *, controller: bool = False) -> list[tuple[str, str]]:
        """Return file and line of the last ones; those of the controller come first, where they are wanted."""
        files = [*self._controller, *self.files] if controller else self.files
        found = [(path.name, line) for path in files for line in self._lines(path)]
        return found[-count:] if count else []

    def follow(self) -> Iterator[tuple[str, str]]:
        """Return the lines that come, for ever; those of files that are new are not among them."""
        ends = {path: path.stat().st_size for path in self.files}
        while True:
            for path, end in ends.items():
                with path.open("rb") as file:
                    file.seek(end)
                    for line in self._of_model(path, _read(file)):
                        yield path.name, line
                    ends[path] = file.tell()
            time.sleep(_FOLLOW_S)

    def _lines(self, path: Path) -> Iterator[str]:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            if size > _TAIL_BYTES:
                file.readline(_MAX_LINE_BYTES)
            yield from self._of_model(path, _read(file))

    def _of_model(self, path: Path, lines: Iterable[str]) -> Iterator[str]:
        named = path in self.own
        for line in lines:
            if path not in self.own and not line.startswith(" "):
                named = self._named.search(line) is not None
            if named:
                yield line


def failed_lines(lines: Sequence[str], model: str) -> list[int]:
    """Return which lines say what went wrong.

    Of the last traceback the line of the model's own code and the exception, else the last error; none without one.
    """
    for start in range(len(lines) - 1, -1, -1):
        if "Traceback (most recent call last)" in lines[start]:
            break
    else:
        errors = [place for place, line in enumerate(lines) if _ERROR.match(line)]
        return errors[-1:]
    depth = _depth(lines[start])
    frames: list[int] = []
    for place in range(start + 1, len(lines)):
        if lines[place].strip() and _depth(lines[place]) <= depth:
            code = [each + 1 for each in frames if f"/{model}/" in lines[each]][-1:]
            return [*code, place]
        if _FRAME.match(lines[place]):
            frames.append(place)
    return [start]


_ERROR: Final = re.compile(r"[EF]\d{4} |ERROR |.*\"level\": ?\"(?:ERROR|CRITICAL)\"")
_FRAME: Final = re.compile(r" +File .*, line \d+")


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _read(file: BinaryIO) -> Iterator[str]:
    for line in iter(lambda: file.readline(_MAX_LINE_BYTES), b""):
        yield line.decode("utf-8", "replace").rstrip("\n")


def _escaped(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _newest(found: Iterable[Path]) -> list[Path]:
    return sorted(found, key=lambda path: path.stat().st_mtime)[-_MAX_FILES:]
