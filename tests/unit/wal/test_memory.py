"""A file in memory is a file."""

from braidmq.wal.disk import File, read_all, write_all
from braidmq.wal.memory import MemoryFile


def test_bytes_are_read_back_where_they_were_written() -> None:
    """Also over others, and after a truncation."""
    file: File = MemoryFile()
    write_all(file, b"hello", 0)
    write_all(file, b"p!", 3)
    file.fsync()
    file.fdatasync()
    file.allocate(99)

    assert b"help!" == read_all(file, 9, 0)
    assert (5, b"lp!") == (file.size(), file.pread(9, 2))
    file.truncate(2)
    assert b"he" == read_all(file, 9, 0)
    file.close()
