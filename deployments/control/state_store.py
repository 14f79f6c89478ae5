"""Where desired state is kept while no controller lives: Ray's own tables."""

import copyreg
import hashlib
import io
import logging
import pickle
import struct
from typing import Any, Final, Protocol

import orjson
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.control.client_wishes import ClientWishes
from deployments.control.code_version import code_version
from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import DesiredState
from deployments.control.first_state import NO_WISHES

logger = logging.getLogger(__name__)

_MARK: Final = b"eagleray state 1 "
_LENGTH: Final = struct.Struct("<Q")
_DIGEST: Final = hashlib.sha256().digest_size


def _config(data: bytes) -> ModelConfig:
    return ModelConfig.FromString(data)


def _reduced(config: ModelConfig) -> tuple[Any, ...]:
    return _config, (config.SerializeToString(),)


_DISPATCH_TABLE: Final = {**copyreg.dispatch_table, ModelConfig: _reduced}
"""Has configurations, whose class pickle cannot find, written as protobuf does."""


def to_bytes(desired: DesiredState) -> bytes:
    """Return a state as `pickle.loads` reads it."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.dispatch_table = _DISPATCH_TABLE
    pickler.dump(desired)
    return buffer.getvalue()


class Table(Protocol):
    """Values by key; see `ClusterTable`."""

    def get(self, key: str) -> bytes:
        """Return a value, b"" when there is none."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Keep a value in place of the last."""
        ...

    def forget(self, key: str) -> None:
        """Keep it no longer."""
        ...


class StateStore:
    """Keeps the desired state of one owner, a Serve application; every method blocks.

    A state that was kept by another version of Eagleray counts as none, but for what clients have asked for; one that
    was kept under other options says what ran under those.
    """

    def __init__(self, table: Table, owner: str, options: ControllerOptions) -> None:
        self._table = table
        self._options = options
        self._key = f"state-{owner}"
        self._code = hashlib.sha256(code_version().encode()).digest()
        self._made_for = hashlib.sha256(repr(options).encode()).digest()

    def load(self) -> DesiredState | None:
        """Return the state that was saved last under these options, None when there is none."""
        options, state = self._saved()
        return state if options == self._made_for else None

    def former(self) -> DesiredState | None:
        """Return the state that was saved last, under whatever options, None when there is none."""
        return self._saved()[1]

    def _saved(self) -> tuple[bytes, DesiredState | None]:
        """Return the state that was saved last, and what its options come to."""
        _, value = self._parts()
        code, options, state = value[:_DIGEST], value[_DIGEST : 2 * _DIGEST], value[2 * _DIGEST :]
        if code != self._code:
            return b"", None
        try:
            found = pickle.loads(state)
        except Exception as error:
            logger.warning("what a former controller knew cannot be read, and is left alone: %s", error)
            return b"", None
        return (options, found) if isinstance(found, DesiredState) else (b"", None)

    def wishes(self) -> ClientWishes:
        """Return what clients had asked for when a state was saved last, whoever has saved it."""
        wishes, _ = self._parts()
        try:
            return ClientWishes.from_dict(orjson.loads(wishes)) if wishes else NO_WISHES
        except Exception as error:
            logger.warning("what clients had asked of a former controller cannot be read: %s", error)
            return NO_WISHES

    def _parts(self) -> tuple[bytes, bytes]:
        value = self._table.get(self._key)
        if not value.startswith(_MARK):
            return b"", b""
        start = len(_MARK) + _LENGTH.size
        end = start + _LENGTH.unpack(value[len(_MARK) : start])[0]
        return value[start:end], value[end:]

    def save(self, desired: DesiredState) -> None:
        """Keep a state in place of the last."""
        wishes = orjson.dumps(ClientWishes.of(desired, self._options).to_dict())
        state = self._code + self._made_for + to_bytes(desired)
        self._table.put(self._key, _MARK + _LENGTH.pack(len(wishes)) + wishes + state)

    def end(self) -> None:
        """Forget everything."""
        self._table.forget(self._key)
