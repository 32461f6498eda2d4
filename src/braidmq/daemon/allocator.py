"""The C library's allocator: large buffers go back to the system as soon as they are free.

glibc raises the size from which it maps a buffer by itself with each such buffer that is freed,
up to 32 MiB; from then on the batches for the log come out of its heap, and what they leave
there stays. Setting the size once keeps it where it is.
"""

import ctypes
from typing import Final

MAPPED_FROM_BYTES: Final = 1024 * 1024
"""Buffers of this size and more are mapped one by one: batches, not what a socket reads."""

_M_MMAP_THRESHOLD: Final = -3  # of malloc.h


def return_large_buffers() -> bool:
    """Have large buffers given back when they are freed; False where that cannot be said."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES))
