"""What goes between an ingress and its JSON helper: a line of JSON that says what it is, then so many bytes."""

import json
from collections.abc import Sequence
from typing import IO, Any, Final

from protocol.body_memory import body_memory

_MAX_LINE_BYTES: Final = 1 << 20


def write_frame(stream: IO[bytes], head: dict[str, Any], parts: Sequence[Any]) -> None:
    """Write one frame, and flush."""
    sizes = [memoryview(part).nbytes for part in parts]
    stream.write(json.dumps({**head, "size": sum(sizes)}).encode() + b"\n")
    for part in parts:
        stream.write(part)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], memoryview]:
    """Read one frame.

    Raises:
        EOFError: there is none, or it is cut short.
    """
    line = stream.readline(_MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise EOFError
    head: dict[str, Any] = json.loads(line)
    content = body_memory(head["size"])
    view = content
    while view:
        count = stream.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        view = view[count:]
    return head, content
