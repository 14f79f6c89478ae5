"""Runs one task in a process of its own: for code that may print, hang, crash or eat memory.

The process is a module that reads its task, JSON, from standard input and writes one line of JSON to the file
descriptor named by its argument (`answer`), so that nothing it prints can be taken for the result.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_ROOT = str(Path(__file__).resolve().parents[2])
_ENTRY = f"import sys; sys.path[:] = [{_ROOT!r}, *filter(None, sys.path)]"
_RUN = "\nimport runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
_EXIT_TIMEOUT_S = 5.0
_MAX_RESULT_BYTES = 16 << 20
_MAX_OUTPUT_BYTES = 16 << 10
_READ_BYTES = 1 << 16
_MEMORY_CHECK_S = 0.1


@dataclass(frozen=True, slots=True)
class SideResult:
    """What the task answered, and the end of what it printed."""

    value: dict[str, Any]
    output: str


class SideProcessError(Exception):
    """There is no answer; the message is a predicate (`did not return within 60 s`), `output` what was printed last.

    Of a process that `crashed`, `exit_code` is negative for a signal, and None where it goes on without its pipe.
    """

    def __init__(self, message: str, output: str, *, crashed: bool = False, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.output = output
        self.crashed = crashed
        self.exit_code = exit_code


def run(
    module: str,
    task: dict[str, Any],
    timeout_s: float,
    max_memory_bytes: int | None = None,
    *,
    python: str = sys.executable,
    variables: Mapping[str, str] = os.environ,
    entry: str = _ENTRY,
) -> SideResult:
    """Run a task in a module; blocks. The process and what it started are gone afterwards.

    `entry` is the code with which it begins, and which has it find our modules.

    Raises:
        SideProcessError: the process crashed, took too long or too much memory, or answered too much.
    """
    result_read, result_write = os.pipe()
    try:
        process = subprocess.Popen(
            [python, "-c", entry + _RUN, module, str(result_write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(result_write,),
            env=variables,
            start_new_session=True,
        )
    except BaseException:
        os.close(result_read)
        raise
    finally:
        os.close(result_write)
    with os.fdopen(result_read, "rb", buffering=0) as results, process:
        try:
            assert process.stdin is not None and process.stdout is not None
            exchange = _Exchange(process, process.stdin, process.stdout, results, max_memory_bytes)
            return exchange.run(json.dumps(task).encode(), timeout_s)
        finally:
            _kill_group(process)


def answer(perform: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Do the one task of this process and leave without waiting for threads that it started.

    An exception of `perform`, or a result that JSON cannot hold, becomes `{"error": "<type>: <message>"}`.
    """
    results = int(sys.argv.pop())
    sys.argv[0] = ""  # which a model may parse
    os.set_inheritable(results, False)
    task = json.load(sys.stdin)
    try:
        text = json.dumps(perform(task), separators=(",", ":"))
    except BaseException as error:
        traceback.print_exc()
        text = json.dumps({"error": f"{type(error).__name__}: {error}"})
    with suppress(Exception):  # what a task has put in its place may do anything
        sys.stdout.flush()  # before the answer, after which nobody reads it
    data = text.encode() + b"\n"
    while data:
        data = data[os.write(results, data) :]
    os._exit(0)


class _Exchange:
    """Hands the task over and reads the output and the result, none of which may block the others."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        stdin: IO[bytes],
        stdout: IO[bytes],
        results: IO[bytes],
        max_memory_bytes: int | None,
    ) -> None:
        self._process = process
        self._stdin = stdin
        self._stdout = stdout
        self._results = results
        self._max_memory_bytes = max_memory_bytes
        self._output = bytearray()
        self._result = bytearray()

    def run(self, task: bytes, timeout_s: float) -> SideResult:
        deadline = time.monotonic() + timeout_s
        remaining = memoryview(task)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._results, selectors.EVENT_READ)
            os.set_blocking(self._stdin.fileno(), False)
            while not self._result.endswith(b"\n"):
                left_s = max(0.0, deadline - time.monotonic())
                events = selector.select(left_s if self._max_memory_bytes is None else min(left_s, _MEMORY_CHECK_S))
                self._check_memory()
                if not events and time.monotonic() >= deadline:
                    raise self._error(f"did not return within {timeout_s:g} s")
                for key, _ in events:
                    if key.fileobj is self._stdin:
                        remaining = self._write(remaining)
                        if not remaining:
                            selector.unregister(self._stdin)
                            self._stdin.close()
                    elif not self._read(key.fd, self._output if key.fileobj is self._stdout else self._result):
                        selector.unregister(key.fileobj)
                        if key.fileobj is self._results:
                            raise self._crash()
        value: dict[str, Any] = json.loads(self._result)
        return SideResult(value, self._text())

    def _write(self, remaining: memoryview) -> memoryview:
        try:
            return remaining[os.write(self._stdin.fileno(), remaining) :]
        except BrokenPipeError:
            return remaining[:0]

    def _read(self, fd: int, into: bytearray) -> bool:
        data = os.read(fd, _READ_BYTES)
        into += data
        if into is self._output:
            del into[:-_MAX_OUTPUT_BYTES]
        elif len(into) > _MAX_RESULT_BYTES:
            raise self._error(f"returned more than {_MAX_RESULT_BYTES} bytes")
        return bool(data)

    def _check_memory(self) -> None:
        if self._max_memory_bytes is not None and _memory_bytes(self._process.pid) > self._max_memory_bytes:
            raise self._error(f"took more than {self._max_memory_bytes >> 20} MiB of memory")

    def _crash(self) -> SideProcessError:
        code: int | None = None
        how = "no result"
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_EXIT_TIMEOUT_S)
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return SideProcessError(f"ended with {how}", self._text(), crashed=True, exit_code=code)

    def _error(self, message: str) -> SideProcessError:
        return SideProcessError(message, self._text())

    def _text(self) -> str:
        return self._output.decode(errors="replace")


def _memory_bytes(pid: int) -> int:
    """Return the resident memory of a process and of what it started."""
    import psutil  # not needed in the process itself, which is started often

    total = 0
    try:
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            total += int(each.memory_info().rss)
    except psutil.Error:
        pass  # ended just now
    return total


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """End the process and whatever it started; it has nothing left to do."""
    for stream in (process.stdin, process.stdout):
        if stream is not None and not stream.closed:
            stream.close()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
