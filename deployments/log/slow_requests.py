"""Requests that took long, in the log, each with its stages."""

import logging
import sys
from typing import Final

from deployments.log.line_format import about
from protocol.trace import Trace

logger = logging.getLogger(__name__)

_LINES_PER_S: Final = 10
_OFF: Final = sys.maxsize
_STAGES: Final = ("queue", "compute_input", "compute_infer", "compute_output", "total")


class SlowRequests:
    """Logs the requests of this process that took longer than `threshold_ns`, which none does while the log is off.

    A second has ten lines at most, and the first of the next one says how many were left out.
    """

    def __init__(self) -> None:
        self.threshold_ns = _OFF
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def set_threshold(self, threshold_ms: int) -> None:
        """Log what takes longer from now on; 0: nothing."""
        self.threshold_ns = threshold_ms * 1_000_000 or _OFF

    def tell(
        self,
        model: str,
        version: int,
        request_id: str,
        batch_rows: int,
        end_ns: int,
        stages_ns: tuple[int, ...],
        trace: Trace | None = None,
    ) -> None:
        """Log a request; the stages are queue, compute input, infer, and output, and the total."""
        second = end_ns // 1_000_000_000
        if second != self._second:
            self._second = second
            self._lines = 0
        self._lines += 1
        if self._lines > _LINES_PER_S:
            self._left_out += 1
            return
        stages_ms = {name: round(each / 1e6, 3) for name, each in zip(_STAGES, stages_ns, strict=True)}
        fields = {} if trace is None else trace.log_fields()
        extra = about(model, version, request_id, **fields) | {"stages_ms": stages_ms, "batch_rows": batch_rows}
        whose = f" with id '{request_id}'" if request_id else ""
        left_out = f"; {self._left_out} more before it are left out" if self._left_out else ""
        *parts, total = stages_ms.items()
        logger.warning(
            "slow request%s of model '%s' version %d: %g ms (%s; batch of %d)%s",
            whose,
            model,
            version,
            total[1],
            ", ".join(f"{name.replace('_', ' ')} {each:g}" for name, each in parts),
            batch_rows,
            left_out,
            extra=extra,
        )
        self._left_out = 0


SLOW: Final = SlowRequests()
"""Of this process, whose log is one too."""
