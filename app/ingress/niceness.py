"""Whether what serves comes behind the other programs of its machine."""

import logging
import os

logger = logging.getLogger(__name__)


def warn_of_niceness() -> None:
    """Log how Ray's workers run at niceness 0, where this one does not: Ray's own is 15."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    if niceness > 0:
        logger.warning(
            "what serves here runs at niceness %d, so that models come to a standstill while other programs compute; "
            "start Ray by `eagleray ray start`, or with RAY_worker_niceness=0",
            niceness,
        )
