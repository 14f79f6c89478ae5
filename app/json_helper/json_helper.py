"""An ingress's side of its JSON helper."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from app.json_helper.frames import read_frame, write_frame
from deployments.lane.frames import Buffer
from deployments.lane.work_queue import Work, WorkQueue
from protocol.errors import Internal, ServingError, Unavailable, from_grpc_code, unexpected

_MAX_WAITING: Final = 256
_EXIT_S: Final = 2.0

LARGE_JSON_BYTES: Final = 1 << 18
"""From here on JSON goes to the helper; what is smaller is parsed in some 4 ms, and the way there costs 1."""

Result = tuple[int | None, memoryview]
Done = Callable[[Result | ServingError], None]


class JsonHelper:
    """One process, started when it is needed for the first time, and again should it die; one task after the other.

    A thread writes to it and reads from it; neither holds the interpreter's lock while the bytes move.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tasks = WorkQueue(loop, "json helper", 1)
        self._process: subprocess.Popen[bytes] | None = None

    def submit(self, head: dict[str, Any], parts: Sequence[Buffer], done: Done) -> Work | None:
        """Have the helper do a task; `done` is called on the loop with the result, or with the error to answer.

        The task may be withdrawn; None: there is none, and `done` was called.
        """
        if len(self._tasks) >= _MAX_WAITING:
            done(Unavailable("too many large JSON requests are waiting to be read"))
            return None
        return self._tasks.submit(
            partial(self._do, head, parts),
            lambda result, error: done(result if error is None else unexpected(error, "large JSON could not be read")),
        )

    def _do(self, head: dict[str, Any], parts: Sequence[Buffer]) -> Result | ServingError:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = subprocess.Popen(
                # -P: not from the folder in which the server was started.
                [sys.executable, "-P", "-m", "app.json_helper"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_frame(process.stdin, head, parts)
            answer, content = read_frame(process.stdout)
        except (OSError, EOFError):
            self._end(process)
            return Internal("large JSON could not be read: it took more than there is")
        except BaseException:  # in the middle of a task or an answer, of which the next must not get the rest
            self._end(process)
            raise
        if "error" in answer:
            return from_grpc_code(answer["code"], answer["error"])
        return answer["json_length"], content

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        process.kill()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        process.wait(_EXIT_S)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
        self._tasks.close()
