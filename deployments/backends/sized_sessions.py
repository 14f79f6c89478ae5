"""Batches of a few sizes, each in a session of its own, where a GPU has convolutions to run.

With cuDNN 9 a convolution of ONNX Runtime's keeps what it has prepared for one shape only. A batch of another size than
the one before has every convolution prepared again, which takes many times as long as the batch itself: of ResNet-50 on
an H100 some 100 ms, where sizes changed about 11, and 4 ms for 16 images after 16.
"""

import bisect
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from deployments.backends.device_inputs import DeviceRows, first_rows
from protocol.infer import Array

log = logging.getLogger(__name__)

LARGEST_DIFFERENCE: Final = 0.02
"""Between the outputs of a batch that was filled up and of one that was not, as a share of the largest value: how a GPU
multiplies may change with the size."""

_NO_MEMORY: Final = re.compile(
    "Failed to allocate memory|out of memory|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED"
)

Feed = Mapping[str, Array | DeviceRows]


class SizedSessions:
    """Runs batches of a model whose rows do not depend on each other, filled up to the next of some sizes.

    A size's session is opened when the first batch of it comes; batches of other sizes do not wait for that. The first
    batch that is filled up also runs as it is: where its outputs are not the same, or their rows are not those of the
    batch, or only the filled one fails, no batch is filled up from then on. So it is where a session cannot be opened,
    or a batch finds no memory beside the sessions of others, which then go.
    """

    def __init__(self, model_name: str, session: Any, open_another: Callable[[], Any], sizes: Sequence[int]) -> None:
        self._model_name = model_name
        self._unused: Any = session
        self._open_another = open_another
        self._sizes = sizes
        self._sessions: dict[int, Any] = {}
        self._compared: set[str] = set()
        self._fills = True
        self._lock = threading.RLock()

    def size_of(self, rows: int) -> int:
        """Return to how many rows a batch is to be filled up; one without rows has none to fill it with."""
        place = bisect.bisect_left(self._sizes, rows)
        return self._sizes[place] if rows and self._fills and place < len(self._sizes) else rows

    def run(self, names: Sequence[str], feed: Feed, rows: int, size: int, options: Any) -> list[Array]:
        """Return the outputs `names` of the first `rows` rows of a feed with `size`; on several threads at once."""
        count = len(self._sessions)
        try:
            return self._run(names, feed, rows, size, options)
        except Exception as error:
            if max(count, len(self._sessions)) < 2 or not _NO_MEMORY.search(str(error)):
                raise
        # No longer in the `except`, where the error would keep the session that it is of.
        self._stop_filling("there is no memory for so many sessions")
        outputs: list[Array] = self._session(rows).run(names, _cut(feed, rows), options)
        return outputs

    def _run(self, names: Sequence[str], feed: Feed, rows: int, size: int, options: Any) -> list[Array]:
        session = self._session(size)
        if size == rows:
            outputs: list[Array] = session.run(names, feed, options)
            return outputs
        try:
            filled: list[Array] | None = session.run(names, feed, options)
        except Exception:
            filled = None
        by_rows = filled is not None and all(array.ndim and len(array) == size for array in filled)
        if filled is not None and by_rows:
            cut = [array[:rows] for array in filled]
            if self._compared.issuperset(names):
                return cut
        alone: list[Array] = session.run(names, _cut(feed, rows), options)
        if by_rows and all(map(_are_close, alone, cut)):
            self._compared.update(names)
            return cut
        self._stop_filling("an output depends on other rows" if filled is not None else "one that was filled up failed")
        return alone

    def _session(self, size: int) -> Any:
        session = self._sessions.get(size)
        if session is not None:
            return session
        with self._lock:
            if not self._fills or not size:
                size = next(iter(self._sessions), self._sizes[0])
            session = self._sessions.get(size)
            if session is not None:
                return session
            try:
                session, self._unused = self._unused or self._open_another(), None
            except Exception:
                if not self._sessions:
                    raise
                self._stop_filling("another session cannot be opened", exc_info=True)
                return next(iter(self._sessions.values()))
            self._sessions[size] = session
            return session

    def _stop_filling(self, reason: str, *, exc_info: bool = False) -> None:
        log.warning(
            "model '%s': batches are not filled up to sizes that are prepared, as %s",
            self._model_name,
            reason,
            exc_info=exc_info,
        )
        with self._lock:
            self._fills = False
            for size in list(self._sessions)[:-1]:
                del self._sessions[size]


def _cut(feed: Feed, rows: int) -> Feed:
    return {name: first_rows(tensor, rows) for name, tensor in feed.items()}


def _are_close(alone: Array, filled: Array) -> bool:
    """Whether two outputs are equal, but for how a GPU has rounded; integers of a byte may be such, as of images."""
    is_rounded = alone.dtype.kind == "f" or (alone.dtype.kind in "iu" and alone.itemsize == 1)
    if alone.shape != filled.shape or not is_rounded:
        return np.array_equal(alone, filled)
    one, other = alone.astype(np.float64), filled.astype(np.float64)
    tolerance = LARGEST_DIFFERENCE * float(np.abs(one[np.isfinite(one)]).max(initial=0))
    return np.allclose(one, other, rtol=0.0, atol=tolerance, equal_nan=True)
