"""Where a large body is received.

Messages with binary tensors end with the last tensor's content, so a body whose end is aligned has that aligned, and
over HTTP those before it as well. NumPy is slower on other arrays, and some libraries refuse or copy them.
"""

from typing import Final

import numpy as np

_ALIGNMENT: Final = 16
"""What malloc(3) gives, and as much as any datatype needs."""


def body_memory(size: int) -> memoryview:
    """Return `size` bytes that are not cleared first, and whose end is aligned."""
    return np.empty(size + -size % _ALIGNMENT, np.uint8).data[-size % _ALIGNMENT :]
