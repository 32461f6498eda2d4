"""The allocator's setting, observed in a process of its own."""

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


def _mapped_buffers(how: str) -> int:
    program = [sys.executable, "-c", _PROGRAM, how]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)
