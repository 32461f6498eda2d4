"""Progress of work on the whole log, measured by what it reads. It decides nothing."""

from collections.abc import Callable

from braidmq.wal.disk import Files
from braidmq.wal.recovery import Read
from braidmq.wal.segment import list_segments, segment_path

Watch = Callable[[int, int], None]
"""Called with how many bytes of the log are done, and how many there are."""


def unwatched(_done: int, _total: int) -> None:
    """Ignore progress."""


class Watching:
    """Progress over the segments, one after the other; `total` is the size of all of them."""

    def __init__(self, files: Files, watch: Watch) -> None:
        self._watch = watch
        self._passed = 0
        self.total = 0
        if watch is not unwatched:  # opening every segment for its size is not free
            for first_id in list_segments(files):
                file = files.open(segment_path(first_id), write=False, create=False)
                self.total += file.size()
                file.close()

    def reader(self, read: Read) -> Read:
        """Return *read*, reporting how far into the current segment it has come."""
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
        """Count a whole segment of *size* bytes as done, however much of it was read."""
        self._passed += size
        if self._watch is not unwatched:
            self._watch(min(self._passed, self.total), self.total)
