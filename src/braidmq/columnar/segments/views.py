"""The durable log at one moment: its segments, and the last id that is durable.

A reader shares no lock with the broker, which may append, rotate and delete meanwhile. Four
rules keep its view consistent:

1. The durable mark is read before the directory is listed. All that the mark covers is then in
   a listed segment, or was deleted by retention.
2. A sealed segment was synced before its successor was made. So its ids are durable even if the
   mark, which is itself never synced, is older.
3. A segment that cannot be opened is looked up in a new listing before it counts as damaged:
   retention may have deleted it, or a rotation was under way.
4. The floor is read after each listing. It rises before a segment is deleted, so a segment that
   is missing from the floor on was there no more, and retention has not taken it. A log of a
   version without a floor has none, and says nothing of its oldest segments.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOMEM
from pathlib import Path
from typing import Final

from braidmq.base.errors import ConfigError, DamagedLogError, LogReadError, LogScarceError
from braidmq.base.ids import FIRST_ID
from braidmq.columnar.loss import RETAINED, Losses
from braidmq.columnar.segments.held import HeldSegments
from braidmq.columnar.segments.segments import Segment
from braidmq.wal.disk import LOG_DIR, SCARCE_ERRNOS, Disk, read_all
from braidmq.wal.floor import Floor, read_floor
from braidmq.wal.format import HEADER_BYTES
from braidmq.wal.index import read_trailer
from braidmq.wal.mark import MARK_PATH, known_mark
from braidmq.wal.opening import MISSING_ABOVE_FLOOR
from braidmq.wal.recovery import judge_header
from braidmq.wal.segment import damage, list_segments, segment_path
from braidmq.wal.tables import Trailer

MARK_READS_MAX: Final = 16
"""A mark or a floor that is read while it is being written may look torn: try this often."""


@contextmanager
def typed_scarcity(path: str) -> Iterator[None]:
    """Raise a lack of descriptors or memory, while *path* is read, as an error of the log.

    Raises:
        LogScarceError: There is no descriptor or memory for it now; try again.
    """
    try:
        yield
    except OSError as error:
        if error.errno in SCARCE_ERRNOS:
            reason = error.strerror or str(error)
            raise LogScarceError(f"reading {path}", reason) from error
        raise


class DurableView:
    """The durable log below a data directory, as it is now.

    With *held*, segments of which little is read stay mapped for the next view.

    Raises:
        ConfigError: There is no log.
        DamagedLogError: There is a durable mark, but no segment, or a segment is missing that
            retention did not delete.
        LogReadError: There are records, and no valid mark says which of them are durable.
        LogScarceError: There is no descriptor or memory for it now; try again.
    """

    def __init__(self, path: Path | str, held: HeldSegments | None = None) -> None:
        self.root = Path(path)
        self._held = held
        self._disk = Disk(self.root)
        if not (self.root / LOG_DIR).is_dir():
            problem = f"{self.root} is not a data directory of BraidMQ"
            fix = f"name the one that a broker was started with: it has a {LOG_DIR} in it"
            raise ConfigError("path", f"{problem}; {fix}")
        with typed_scarcity(LOG_DIR):
            mark = self._read_mark()
            self._first_ids = self._listed()
        if not self._first_ids and mark:
            raise damage(FIRST_ID, (FIRST_ID, mark), "no segment is there")
        if mark is None and self._first_ids and self._has_records(self._first_ids[-1]):
            # By rule 2 everything but the last segment could be read, and no reader would
            # notice that the rest is missing.
            raise LogReadError(MARK_PATH, "the durable mark is missing or damaged")
        # Rules 1 and 2 above: the mark, or all that is sealed, whichever is more.
        self.durable_id = max(mark or 0, self._first_ids[-1] - 1 if self._first_ids else 0)
        if held is not None:
            held.begin_read(self._first_ids)

    def _listed(self) -> list[int]:
        """Return the first ids of the segments, none of which is missing: rule 4 above."""
        first_ids = list_segments(self._disk)
        floor = self._read_floor()
        if floor is None:
            return first_ids
        if not first_ids:  # a new log gets its floor right after its first segment
            first_ids = list_segments(self._disk)
        if not first_ids:
            raise damage(
                floor.first_id, (floor.first_id, floor.first_id), "no segment is there"
            )
        if first_ids[0] > floor.first_id:
            lost = floor.first_id, first_ids[0] - 1
            raise damage(floor.first_id, lost, MISSING_ABOVE_FLOOR)
        return first_ids

    def _read_floor(self) -> Floor | None:
        for _ in range(MARK_READS_MAX - 1):
            with suppress(DamagedLogError):
                return read_floor(self._disk)
        return read_floor(self._disk)

    def _read_mark(self) -> int | None:
        for _ in range(MARK_READS_MAX):
            mark = known_mark(self._disk)
            if mark is not None:
                return mark
        return None

    def _has_records(self, first_id: int) -> bool:
        # A log that was made just now, or a segment, may be there before its first mark.
        try:
            return (self.root / segment_path(first_id)).stat().st_size > HEADER_BYTES
        except FileNotFoundError:
            return True

    @property
    def earliest(self) -> int:
        """The lowest id that the log still holds; in an empty log, the next one."""
        return self._first_ids[0] if self._first_ids else FIRST_ID

    @property
    def latest(self) -> int:
        """The id after the last durable one."""
        return self.durable_id + 1

    def first_ids(self, start: int, end: int) -> list[int]:
        """Return the first ids of the segments that hold ids from *start* to before *end*."""
        below = max(bisect_right(self._first_ids, start) - 1, 0)
        end = min(end, self.latest)
        return [first_id for first_id in self._first_ids[below:] if first_id < end]

    def open(self, first_id: int, held: HeldSegments | None = None) -> Segment | None:
        """Return a segment, or None if retention has deleted it since the view was taken.

        If *held* has it mapped, that mapping is used.

        Raises:
            DamagedLogError: It cannot be read, or is missing although an older one exists.
            LogScarceError: There is no descriptor or memory for it now; try again.
        """
        while True:
            seen = self._first_ids
            try:
                with typed_scarcity(segment_path(first_id)):
                    return self._opened(first_id, held)
            except (FileNotFoundError, DamagedLogError) as error:
                # A listing that was made during a rotation may take the segment for sealed, or
                # for the last one, when it no longer is. Decide by a new listing.
                self._first_ids = self._listed()
                if self._first_ids and self._first_ids[0] > first_id:
                    return None
                if self._first_ids != seen:
                    continue  # the log moved on; if it did not, trying again would not help
                if isinstance(error, DamagedLogError):
                    raise
                lost = first_id, self.durable_id
                raise damage(first_id, lost, "missing segment") from error

    def _opened(self, first_id: int, held: HeldSegments | None) -> Segment:
        try:
            return self._open(first_id, held)
        except OSError as error:
            if error.errno != ENOMEM or held is None:
                raise
            held.clear()  # a cache: give its address space back and try again
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

    def has_order(self, first_id: int) -> bool:
        """Tell whether timestamps surely do not decrease in a segment.

        It reads the end of the index only. The segment that grows has none yet, and a gap may
        stand for a step of the clock.

        Raises:
            DamagedLogError: The segment is damaged, or missing although an older one exists.
            LogScarceError: There is no descriptor or memory for it now; try again.
        """
        following = bisect_right(self._first_ids, first_id)
        if following == len(self._first_ids):
            return False
        with typed_scarcity(segment_path(first_id)), suppress(FileNotFoundError):
            found = self._trailer(first_id)
            if found is not None and found.last_id == self._first_ids[following] - 1:
                return not (found.has_steps or found.gap_count)
        segment = self.open(first_id)  # whose index is rebuilt then, in memory
        return segment is None or not (segment.index.has_steps or segment.index.gap_count)

    def _trailer(self, first_id: int) -> Trailer | None:
        file = self._disk.open(segment_path(first_id), write=False, create=False)
        header, _ = judge_header(read_all(file, HEADER_BYTES, 0), first_id)
        if header is None:
            return None
        found = read_trailer(self._disk, first_id, header.created_us, file.size())
        return None if found is None else found[1]

    def segments(
        self, start: int, end: int, losses: Losses, *, hold: bool = False
    ) -> Iterator[Segment]:
        """Yield the segments that hold ids from *start* to before *end*; record lost ones.

        A segment may be used until the next one is requested. *hold* keeps it mapped
        afterwards, which suits reads of few topics: pages that were read count as memory of
        this process until they are unmapped.

        Raises:
            DamagedLogError: A segment cannot be read.
            DataLossError: A segment is gone, and *losses* treats that as an error.
        """
        first_ids = self.first_ids(start, end)
        # Computed before the loop: `open` may replace the list of segments.
        ends = [*first_ids[1:], end] if first_ids else []
        held = self._held if hold else None
        for first_id, behind in zip(first_ids, ends, strict=True):
            segment = self.open(first_id, held)
            if segment is None:
                losses.note(max(first_id, start), min(behind, end) - 1, RETAINED)
                continue
            try:
                yield segment
            finally:  # also when the caller stops early and closes this generator
                if held is not None:
                    held.give(segment)


def view_of(log: Path | str | DurableView) -> DurableView:
    """Return a new view of a data directory, or the given view itself."""
    return log if isinstance(log, DurableView) else DurableView(log)


def topic_names(path: Path | str, start: int, end: int) -> tuple[set[str], int]:
    """Return the topics with messages from *start* to before *end*, and perhaps others.

    Others, because the names come from the tables of the indexes, and a table covers its whole
    segment. The second value is the end of the range that was examined: *end*, or the end of
    the durable log if that comes first, but at least 0. Lost ids are not reported here, and
    negative ones not refused; a read of the range does both.

    Raises:
        DamagedLogError: The log is damaged.
    """
    view = DurableView(path)
    behind = max(0, min(end, view.latest))
    found: set[str] = set()
    for first_id in view.first_ids(start, behind):
        segment = view.open(first_id)
        if segment is None:
            continue
        if not (segment.index.is_proof or segment.index.block_sums):
            # The topics of a growing index are only as reliable as its rows: verify those.
            for _ in segment.windows(start, behind):
                pass
        found.update(segment.names[1:])
    return found, behind
