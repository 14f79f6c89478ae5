"""Where desired state is kept while no controller lives: a detached actor on the head node."""

import hashlib
import io
import logging
import pickle
from importlib.metadata import version
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import DesiredState
from deployments.replica.keeper_client import KeeperClient

logger = logging.getLogger(__name__)


class _Pickler(pickle.Pickler):
    """Knows configurations, whose class pickle cannot find."""

    def reducer_override(self, value: Any) -> Any:
        """Write a configuration as protobuf does."""
        return (_config, (value.SerializeToString(),)) if isinstance(value, ModelConfig) else NotImplemented


def _config(data: bytes) -> ModelConfig:
    return ModelConfig.FromString(data)


def to_bytes(desired: DesiredState) -> bytes:
    """Return a state as `pickle.loads` reads it."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(desired)
    return buffer.getvalue()


class StateStore:
    """Keeps the desired state of one Serve application; every method blocks.

    A state that was kept by another version of Eagleray, or under other options, counts as none.
    """

    def __init__(self, keeper: KeeperClient, options: ControllerOptions) -> None:
        self._keeper = keeper
        self._key = hashlib.sha256(f"{version('eagleray')} {options!r}".encode()).hexdigest()

    def load(self) -> DesiredState | None:
        """Return the state that was saved last, None when there is none."""
        data: bytes = self._keeper.ask("load", self._key)
        if not data:
            return None
        try:
            state = pickle.loads(data)
        except Exception as error:
            logger.warning("what a former controller knew cannot be read, and is left alone: %s", error)
            return None
        return state if isinstance(state, DesiredState) else None

    def save(self, desired: DesiredState) -> None:
        """Keep a state in place of the last."""
        self._keeper.ask("save", self._key, to_bytes(desired))

    def end(self) -> None:
        """Forget everything."""
        self._keeper.end()
