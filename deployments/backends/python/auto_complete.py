"""Completes a configuration with the model's own `auto_complete_config`, in a process of its own.

A process, because the model is code that may print, hang or crash; Triton too imports it once only for this.
"""

import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import ModelLoadError
from repository_loader.completion import CompletionError, defines_auto_complete, merge_completed
from repository_loader.config_json import ConfigJsonError, config_from_json, config_to_json

_LOG = logging.getLogger(__name__)

TIMEOUT_S = 60.0
_EXIT_TIMEOUT_S = 5.0
_MAX_RESULT_BYTES = 16 << 20
_MAX_LOGGED_BYTES = 16 << 10
_READ_BYTES = 1 << 16


def complete(
    config: ModelConfig, model_path: str, version_path: str, file_path: str, timeout_s: float = TIMEOUT_S
) -> ModelConfig:
    """Return the configuration with what the model added.

    Only `max_batch_size`, `input`, `output`, the scheduler (if none was chosen) and `decoupled` are taken from the
    model, as Triton does. A model without `auto_complete_config` is not imported.

    Raises:
        ModelLoadError: the model raised, crashed, took too long or returned something else than a configuration.
    """
    if not os.path.isfile(file_path):
        shown = os.path.relpath(file_path, os.path.dirname(model_path))
        raise ModelLoadError(f"Python model file not found in '{shown}'")
    if not defines_auto_complete(file_path):
        return config
    task = {
        "name": config.name,
        "config": config_to_json(config),
        "model_path": model_path,
        "version_path": version_path,
        "file_path": file_path,
    }
    result = _run(config.name, json.dumps(task).encode(), timeout_s)
    if "error" in result:
        raise ModelLoadError(str(result["error"]))
    return config if result["config"] is None else _merge(config, result["config"])


def _run(model_name: str, task: bytes, timeout_s: float) -> dict[str, Any]:
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    result_read, result_write = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "deployments.backends.python.auto_complete_process", str(result_write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(result_write,),
            env={**os.environ, "PYTHONPATH": path},
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
            return _Exchange(process, process.stdin, process.stdout, results, model_name).run(task, timeout_s)
        finally:
            _kill_group(process)


class _Exchange:
    """Hands the task over and reads the model's output and the result, none of which may block the others."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", stdin: IO[bytes], stdout: IO[bytes], results: IO[bytes], name: str
    ) -> None:
        self._process = process
        self._stdin = stdin
        self._stdout = stdout
        self._results = results
        self._name = name
        self._output = bytearray()
        self._result = bytearray()

    def run(self, task: bytes, timeout_s: float) -> dict[str, Any]:
        """Return the result; raises ModelLoadError for a crash, a timeout and an endless result."""
        deadline = time.monotonic() + timeout_s
        remaining = memoryview(task)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._results, selectors.EVENT_READ)
            os.set_blocking(self._stdin.fileno(), False)
            while not self._result.endswith(b"\n"):
                events = selector.select(max(0.0, deadline - time.monotonic()))
                if not events and time.monotonic() >= deadline:
                    self._fail(f"auto_complete_config of model '{self._name}' did not return within {timeout_s:g} s")
                for key, _ in events:
                    if key.fileobj is self._stdin:
                        remaining = self._write(remaining)
                        if not remaining:
                            selector.unregister(self._stdin)
                            self._stdin.close()
                    elif not self._read(key.fd, self._output if key.fileobj is self._stdout else self._result):
                        selector.unregister(key.fileobj)
                        if key.fileobj is self._results:
                            self._fail_crashed()
        self._log(logging.DEBUG)
        result: dict[str, Any] = json.loads(self._result)
        return result

    def _write(self, remaining: memoryview) -> memoryview:
        try:
            return remaining[os.write(self._stdin.fileno(), remaining) :]
        except BrokenPipeError:
            return remaining[:0]

    def _read(self, fd: int, into: bytearray) -> bool:
        data = os.read(fd, _READ_BYTES)
        into += data
        if into is self._output:
            del into[:-_MAX_LOGGED_BYTES]
        elif len(into) > _MAX_RESULT_BYTES:
            self._fail(f"auto_complete_config of model '{self._name}' returned more than {_MAX_RESULT_BYTES} bytes")
        return bool(data)

    def _fail_crashed(self) -> None:
        try:
            code = self._process.wait(_EXIT_TIMEOUT_S)
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            how = "no result"
        self._fail(f"Stub process '{self._name}' is not healthy: auto_complete_config ended with {how}")

    def _fail(self, reason: str) -> None:
        self._log(logging.ERROR)
        raise ModelLoadError(reason)

    def _log(self, level: int) -> None:
        if self._output:
            text = self._output.decode(errors="replace")
            _LOG.log(level, "auto_complete_config of model '%s' printed:\n%s", self._name, text)


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """End the process and whatever it started; the model has nothing left to do."""
    for stream in (process.stdin, process.stdout):
        if stream is not None and not stream.closed:
            stream.close()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _merge(config: ModelConfig, returned: dict[str, Any]) -> ModelConfig:
    merged = ModelConfig()
    merged.CopyFrom(config)
    try:
        merge_completed(merged, config_from_json(returned))
    except ConfigJsonError as error:
        raise ModelLoadError(
            f"auto_complete_config function in model '{config.name}' must return a valid pb.ModelConfig object: {error}"
        ) from None
    except CompletionError as error:
        raise ModelLoadError(str(error)) from None
    return merged
