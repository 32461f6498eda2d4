"""The C library's allocator: large buffers go back to the system as soon as they are freed.

glibc maps large buffers one by one, but raises the threshold each time such a buffer is freed,
up to 32 MiB. From then on the batches for the log come from the heap, which does not shrink.
Setting the threshold explicitly stops it from moving.
"""

import ctypes
from typing import Final

MAPPED_FROM_BYTES: Final = 1024 * 1024
"""The threshold: batches for the log are above it, reads from a socket below."""

_M_MMAP_THRESHOLD: Final = -3  # of malloc.h


def return_large_buffers() -> bool:
    """Return large buffers to the system when freed; False where libc is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES))
