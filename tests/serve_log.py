"""A log of this process that leaves no trace in it, and a handler as Serve's."""

import logging
import logging.handlers
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.log.process_log import LOGGERS

SERVE = "ray.serve"


@pytest.fixture
def serve_log(tmp_path: Path) -> Iterator[Path]:
    """The file that Serve's handlers write, with a handler that collects records before it."""
    names = (*LOGGERS, SERVE)
    loggers = [logging.getLogger(name) for name in names]
    before = [(each.level, list(each.handlers), each.propagate) for each in loggers]
    raises = logging.raiseExceptions
    path = tmp_path / "replica.log"
    writer = logging.FileHandler(path)
    writer.setFormatter(logging.Formatter("%(levelname)s replica_of_serve -- %(message)s"))
    loggers[-1].handlers = [logging.handlers.MemoryHandler(1, target=writer)]
    loggers[-1].setLevel(logging.INFO)
    yield path
    writer.close()
    logging.raiseExceptions = raises
    for logger, (level, handlers, propagate) in zip(loggers, before, strict=True):
        logger.handlers = handlers
        logger.propagate = propagate
        logger.setLevel(level)
