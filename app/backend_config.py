"""What `--backend-config` says, in Triton's form: `[<backend>,]<key>=<value>`."""

from collections.abc import Iterable, Iterator
from typing import Final

_MAX_BATCH_SIZE: Final = "default-max-batch-size"
_EFFECTIVE: Final = {
    "onnxruntime": {
        "intra_op_thread_count",
        "inter_op_thread_count",
        "execution_mode",
        "enable_mem_arena",
        "enable_mem_pattern",
        "session.intra_op.allow_spinning",
        "session.use_device_allocator_for_initializers",
    },
    "tensorrt": {"plugins", "version-compatible"},
}
"""Keys that mean something, by backend."""
_AREAS: Final = "the memory between a Python model's process and its replica is as large as their tensors need"
_REASONS: Final = {
    "python,shm-default-byte-size": _AREAS,
    "python,shm-growth-byte-size": _AREAS,
    "python,shm-region-prefix-name": "the memory between a Python model's process and its replica has no name",
    "python,stub-timeout-seconds": "a Python model's process may load for ever, and complete a configuration for 300 s",
    "python,thread-pool-size": "Eagleray has no such pool",
    "onnxruntime,enable-global-threadpool": "each session has a pool of threads, which share the cores of the process",
    "tensorrt,coalesce-request-input": "small inputs of a batch go to the GPU together in any case",
}
"""Keys of Triton's that mean nothing here, and why."""
_INT32_DIGITS: Final = 9


def backend_settings(entries: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return backend → key → value; the key "" holds what applies to all backends.

    Raises:
        ValueError: an entry has another form, or a size that cannot be one.
    """
    settings: dict[str, dict[str, str]] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        backend, _, key = name.rpartition(",")
        if not equals or not key:
            raise ValueError(f"'{entry}' is not of the form [<backend>,]<key>=<value>")
        if key == _MAX_BATCH_SIZE and not (value.isascii() and value.isdigit() and len(value) <= _INT32_DIGITS):
            raise ValueError(f"{_MAX_BATCH_SIZE} must be a whole number from 0 on, got: {value}")
        settings.setdefault(backend, {})[key] = value
    return settings


def idle_settings(entries: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each setting that has no effect."""
    for entry in entries:
        name, _, _ = entry.partition("=")
        backend, _, key = name.rpartition(",")
        known = set().union(*_EFFECTIVE.values()) if not backend else _EFFECTIVE.get(backend, set())
        if key not in known | {_MAX_BATCH_SIZE}:
            yield f"--backend-config {name} has no effect: {_REASONS.get(name, 'Eagleray has no such setting')}"
