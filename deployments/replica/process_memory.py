"""How this process keeps memory: the pages of large buffers, and the objects that live as long as it does."""

import contextlib
import ctypes
import gc
import itertools
from collections.abc import Iterator
from typing import Final

# Of <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST_KEPT_BYTES: Final = 32 << 20
_LARGEST_TOP_BYTES: Final = 64 << 20
_GIVEN_UP_BEFORE_COLLECTION: Final = 16
_given_up = itertools.count(1)


def keep_freed_pages() -> None:
    """Have this process keep up to 64 MiB of freed memory for the next buffers.

    Buffers of large tensors come and go with every request. As it stands, the C library gives their pages back to the
    kernel each time and takes them again, page fault by page fault. Without glibc nothing is changed.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _LARGEST_TOP_BYTES)


def spare_long_lived_objects() -> None:
    """Leave what exists now out of Python's garbage collections.

    Modules and models are some hundred thousand objects that stay. A full collection that looks at them stops every
    request for about 0.1 s.
    """
    gc.freeze()


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Put collections off while many objects are made that none refers to in a circle.

    They would be looked at again and again, for up to 4 ms at a time in which no thread runs.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:  # else who has put them off before ends it
            gc.enable()


def collect_long_lived_objects() -> None:
    """Let collections look at everything again, after some of what was spared has been given up.

    Most of that is freed at once. What is left are small cycles, which would be spared again, and stay: a full
    collection, which stops every request, is made each 16th time.
    """
    gc.unfreeze()
    if not next(_given_up) % _GIVEN_UP_BEFORE_COLLECTION:
        gc.collect()
