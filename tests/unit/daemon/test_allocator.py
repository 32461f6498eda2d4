"""The allocator's settings, observed in a process of its own."""

import subprocess
import sys

_PROGRAM = """
import ctypes, sys
from braidmq.daemon.process import MAPPED_FROM_BYTES, return_large_buffers

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
                .split()]

def mapped():
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Info
    return mallinfo2().hblks

if sys.argv[1] == "set":
    assert return_large_buffers()
large = bytes(16 * 1024 * 1024)
del large  # from now on glibc, by default, takes 8 MiB out of its heap
before = mapped()
large = bytes(8 * 1024 * 1024)
print(mapped() - before)
"""


def test_a_large_buffer_has_its_own_mapping_even_after_a_larger_one_was_freed() -> None:
    """The memory of a log batch returns to the system, however large earlier batches were."""
    assert _mapped_buffers("set") == 1


def test_by_default_the_allocator_keeps_large_buffers_in_its_heap() -> None:
    """If this fails, the setting is no longer needed."""
    assert _mapped_buffers("default") == 0


_CHUNKS = """
import ctypes, sys
from braidmq.daemon.process import KEPT_FREE_BYTES, return_large_buffers

sbrk = ctypes.CDLL(None).sbrk
sbrk.restype = ctypes.c_void_p
sbrk.argtypes = [ctypes.c_ssize_t]
return_large_buffers()
if sys.argv[1] == "default":
    ctypes.CDLL(None).mallopt(-1, 128 * 1024)  # what glibc sets with the threshold of mappings
ends = set()
for _ in range(50):
    chunk = [bytes(64 * 1024) for _ in range(KEPT_FREE_BYTES // (128 * 1024))]
    ends.add(sbrk(0))
    del chunk
    ends.add(sbrk(0))
print(len(ends))
"""


def test_the_heap_keeps_what_the_next_chunk_needs() -> None:
    """It is not given back and faulted in again with every read."""
    assert 1 == _printed(_CHUNKS, "set")


def test_by_default_the_heap_shrinks_after_every_chunk() -> None:
    """If this fails, the setting is no longer needed."""
    assert 2 <= _printed(_CHUNKS, "default")


def _mapped_buffers(how: str) -> int:
    return _printed(_PROGRAM, how)


def _printed(source: str, how: str) -> int:
    program = [sys.executable, "-c", source, how]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)
