"""The durable log at one moment: which segments there are, and up to which id they count.

The mark is read before the directory: whatever it covers is then in a segment that is listed,
or was deleted by retention. Sealed segments were synced before they were sealed, so that their
ids are durable even where the mark, which is not itself synced, is older.
"""

from bisect import bisect_right
from collections.abc import Iterator
from errno import ENOMEM
from pathlib import Path
from typing import Final

from braidmq.base.errors import ConfigError, DamagedLogError
from braidmq.base.ids import FIRST_ID
from braidmq.columnar.loss import RETAINED, Losses
from braidmq.columnar.segments.held import HeldSegments
from braidmq.columnar.segments.segments import Segment
from braidmq.wal.disk import Disk
from braidmq.wal.files import LOG_DIR
from braidmq.wal.opening import read_mark
from braidmq.wal.segment import list_segments, segment_path

MARK_READS_MAX: Final = 16
"""A mark that is read while it is written may look torn; it is read again so often."""


class View:
    """The log below a data directory, as far as it is durable now.

    Segments of which little is read are *held* for the next view, if anybody holds them.

    Raises:
        ConfigError: There is no log.
        DamagedLogError: There was one, and its segments are gone.
    """

    def __init__(self, path: Path | str, held: HeldSegments | None = None) -> None:
        self.root = Path(path)
        self._held = held
        self._disk = Disk(self.root)
        if not (self.root / LOG_DIR).is_dir():
            problem = f"{self.root} is not a data directory of BraidMQ"
            fix = f"name the one that a broker was started with: it has a {LOG_DIR} in it"
            raise ConfigError("path", f"{problem}; {fix}")
        mark = self._read_mark()
        self._first_ids = list_segments(self._disk)
        if not self._first_ids and mark:
            raise _missing(FIRST_ID, mark, "no segment is there")
        self.durable_id = max(mark, self._first_ids[-1] - 1 if self._first_ids else 0)
        if held is not None:
            held.begin_read(self._first_ids)

    def _read_mark(self) -> int:
        for _ in range(MARK_READS_MAX):
            mark = read_mark(self._disk)
            if mark is not None:
                return mark
        return 0

    @property
    def earliest(self) -> int:
        """The lowest id that the log still has, or will have."""
        return self._first_ids[0] if self._first_ids else FIRST_ID

    @property
    def latest(self) -> int:
        """The id behind the last durable one."""
        return self.durable_id + 1

    def first_ids(self, start: int, end: int) -> list[int]:
        """Return the first ids of the segments that have ids from *start* to before *end*."""
        below = max(bisect_right(self._first_ids, start) - 1, 0)
        end = min(end, self.latest)
        return [first_id for first_id in self._first_ids[below:] if first_id < end]

    def open(self, first_id: int, held: HeldSegments | None = None) -> Segment | None:
        """Return a segment, or None when retention has deleted it since the view was taken.

        One that is *held* is taken from there.

        Raises:
            DamagedLogError: It cannot be read, or is missing and was not deleted in turn.
        """
        while True:
            seen = self._first_ids
            try:
                return self._opened(first_id, held)
            except (FileNotFoundError, DamagedLogError) as error:
                # What is listed while the log turns to a new segment may not fit together.
                self._first_ids = list_segments(self._disk)
                if self._first_ids and self._first_ids[0] > first_id:
                    return None
                if self._first_ids != seen:
                    continue
                if isinstance(error, DamagedLogError):
                    raise
                raise _missing(first_id, self.durable_id, "missing segment") from error

    def _opened(self, first_id: int, held: HeldSegments | None) -> Segment:
        try:
            return self._open(first_id, held)
        except OSError as error:
            if error.errno != ENOMEM or held is None:
                raise
            held.clear()  # it only saves time, and its addresses are needed
            return self._open(first_id, held)

    def _open(self, first_id: int, held: HeldSegments | None) -> Segment:
        if first_id not in self._first_ids:
            raise FileNotFoundError(segment_path(first_id))
        following = bisect_right(self._first_ids, first_id)
        if following == len(self._first_ids):
            known = None if held is None else held.growing
            return Segment(self.root, first_id, self.durable_id, sealed=False, known=known)
        last_id = self._first_ids[following] - 1
        found = None if held is None else held.take(first_id, last_id)
        return found or Segment(self.root, first_id, last_id, sealed=True)

    def segments(
        self, start: int, end: int, losses: Losses, *, hold: bool = False
    ) -> Iterator[Segment]:
        """Yield the segments that have ids from *start* to before *end*; note what is gone.

        A segment is used until the next one is asked for. To *hold* them is for those who
        read little of each: every page that was read counts for the process that maps it.

        Raises:
            DamagedLogError: One cannot be read.
            DataLossError: One is gone, and the read must not go on without it.
        """
        first_ids = self.first_ids(start, end)
        # Now, because the list is another one when a segment was missed.
        ends = [*first_ids[1:], end] if first_ids else []
        held = self._held if hold else None
        for first_id, behind in zip(first_ids, ends, strict=True):
            segment = self.open(first_id, held)
            if segment is None:
                losses.note(max(first_id, start), min(behind, end) - 1, RETAINED)
                continue
            try:
                yield segment
            finally:  # whoever has seen enough does not ask for the next one
                if held is not None:
                    held.give(segment)


def view_of(log: Path | str | View) -> View:
    """Return the view of a data directory now, or the one that was given."""
    return log if isinstance(log, View) else View(log)


def _missing(first_id: int, last_id: int, reason: str) -> DamagedLogError:
    return DamagedLogError(
        segment_path(first_id), offset=0, first_id=first_id, last_id=last_id, reason=reason
    )
