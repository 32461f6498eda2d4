"""How far work on the whole log is, told by where it reads. It decides and reads nothing."""

from collections.abc import Callable

from braidmq.wal.files import Files
from braidmq.wal.recovery import Read
from braidmq.wal.segment import list_segments, segment_path

Watch = Callable[[int, int], None]
"""Told how many bytes of the log have been passed, and of how many."""


def unwatched(_done: int, _total: int) -> None:
    """Tell nobody."""


class Watching:
    """Segments one after the other; `total` is the size of all that are there now."""

    def __init__(self, files: Files, watch: Watch) -> None:
        self._watch = watch
        self._passed = 0
        self.total = 0
        if watch is not unwatched:  # nobody pays for what nobody looks at
            for first_id in list_segments(files):
                file = files.open(segment_path(first_id), write=False, create=False)
                self.total += file.size()
                file.close()

    def reader(self, read: Read) -> Read:
        """Return *read*, telling how far into the segment at hand it has come."""
        if self._watch is unwatched:
            return read
        furthest = 0

        def watched(size: int, offset: int) -> bytes:
            nonlocal furthest
            data = read(size, offset)
            furthest = max(furthest, offset + len(data))
            self._watch(min(self._passed + furthest, self.total), self.total)
            return data

        return watched

    def passed(self, size: int) -> None:
        """Have a whole segment of *size* bytes behind us, however much of it was read."""
        self._passed += size
        if self._watch is not unwatched:
            self._watch(min(self._passed, self.total), self.total)
