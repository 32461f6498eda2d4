"""The allocator's setting, seen in a process of its own."""

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
    told = ctypes.CDLL(None).mallinfo2
    told.restype = Info
    return told().hblks

if sys.argv[1] == "set":
    assert return_large_buffers()
large = bytes(16 * 1024 * 1024)
del large  # from now on glibc, left alone, takes 8 MiB out of its heap
before = mapped()
large = bytes(8 * 1024 * 1024)
print(mapped() - before)
"""


def test_a_large_buffer_is_mapped_by_itself_also_after_a_larger_one_was_freed() -> None:
    """What a batch for the log took goes back to the system, however large batches were."""
    assert _mapped_buffers("set") == 1


def test_left_alone_the_allocator_keeps_large_buffers_in_its_heap() -> None:
    """If this fails the setting is no longer needed."""
    assert _mapped_buffers("left alone") == 0


def _mapped_buffers(how: str) -> int:
    program = [sys.executable, "-c", _PROGRAM, how]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)
