"""The log of a process at the settings that hold for its node: the ingresses write them into the node's folder."""

import asyncio
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Final

import orjson

from deployments.log.log_options import LogOptions
from deployments.log.process_log import ProcessLog
from protocol.by_name import restored

logger = logging.getLogger(__name__)

_FILE: Final = "log-settings"
_LOOK_S: Final = 1.0


class NodeLog:
    """Sets up the log of this process by the options of the start, or by what has been set since.

    An ingress, which hears from the controller what clients set, `change`s the settings of its node; all other
    processes `follow`, and look once a second.
    """

    def __init__(self, folder: Path, options: LogOptions) -> None:
        self._path = folder / _FILE
        self._log = ProcessLog(options)
        self.is_on = self._log.is_on
        self._seen: tuple[int, int] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def change(self, options: LogOptions) -> None:
        """Log by these options, and have the node's other processes do so, as soon as there is room for the file.

        Belongs to the thread of a loop.
        """
        self._log.apply(options)
        self.close()
        try:
            self._write(options)
        except OSError as error:
            logger.warning("the node's other processes do not hear of the log settings yet: %s", error)
            self._write_later(options)

    def _write(self, options: LogOptions) -> None:
        written = self._path.with_name(f"{_FILE}-{os.getpid()}")
        written.write_bytes(orjson.dumps(asdict(options)))
        written.rename(self._path)

    def _write_later(self, options: LogOptions) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._write_again, options)

    def _write_again(self, options: LogOptions) -> None:
        try:
            self._write(options)
        except OSError:
            self._write_later(options)

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look now, and from now on."""
        self.look()
        self._timer = loop.call_later(_LOOK_S, self.follow, loop)

    def look(self) -> None:
        """Take the settings of the node, if they have changed."""
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_ino)
            if seen != self._seen:
                self._log.apply(restored(LogOptions, orjson.loads(self._path.read_bytes())))
                self._seen = seen
        except FileNotFoundError:
            pass  # no ingress has been here yet
        except (OSError, ValueError, TypeError) as error:
            logger.debug("the node's log settings cannot be read: %s", error)

    def close(self) -> None:
        """Follow no longer, and write nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
