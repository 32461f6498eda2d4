"""A file in memory, for an index that the disk has no room for.

An index can always be rebuilt from its segment, so it need not be on the disk for the broker to
start and for consumers to drain what they have: which is what makes room again.
"""


class MemoryFile:
    """An open file that nothing else sees, and that ends with its last reference."""

    def __init__(self) -> None:
        self._data = bytearray()

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes from *offset* on."""
        return bytes(self._data[offset : offset + size])

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write all of *data* at *offset*."""
        self._data[offset : offset + len(data)] = data
        return len(data)

    def size(self) -> int:
        """Return the size in bytes."""
        return len(self._data)

    def truncate(self, size: int) -> None:
        """Make it *size* bytes long; it is never made longer."""
        del self._data[size:]

    def fdatasync(self) -> None:
        """Do nothing: it does not outlive the process."""

    def fsync(self) -> None:
        """Do nothing."""

    def allocate(self, size: int) -> None:
        """Do nothing: it grows as it is written."""

    def close(self) -> None:
        """Do nothing."""
