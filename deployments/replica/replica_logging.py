"""Logging of the processes that Ray starts: Eagleray's own loggers write to Serve's log of the replica."""

import logging
from typing import Final

_OURS: Final = ("app", "deployments", "repository_loader", "protocol", "eagleray")


def set_up_logging(verbosity: int) -> None:
    """Let Eagleray's loggers through: from INFO, from DEBUG with a verbosity of 1 or more.

    Serve configures only the logger `ray.serve`, whose handlers write the replica's file in the log folder.
    """
    serve = logging.getLogger("ray.serve")
    for name in _OURS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG if verbosity else logging.INFO)
        logger.handlers = list(serve.handlers)
        logger.propagate = not serve.handlers
