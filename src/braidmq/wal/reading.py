"""Reading committed records back, from any thread: by the index, verified, block by block.

A reader holds no lock while it reads. It works on a `LogView`, which is immutable and covers
only committed bytes; the writer replaces the whole view. Retention may delete a segment while
it is being read: open files stay readable, and opening one that is gone raises
FileNotFoundError, after which the caller takes a new view. The lock guards the table of open
segments and the rebuilding of indexes, so that two readers do not rebuild the same one.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from braidmq.base.limits import KIB
from braidmq.base.records import GAP_KIND
from braidmq.wal.disk import FULL_ERRNOS, File, Files, read_all
from braidmq.wal.failures import failure_of, reading
from braidmq.wal.format import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    ROW_BYTES,
    Describe,
    SelectedRows,
    cut_records,
    decode_gap,
    select_rows,
)
from braidmq.wal.index import IndexView, open_sealed
from braidmq.wal.maintenance.rebuild import index_in_memory, rebuild_sealed
from braidmq.wal.recovery import Walk, find_record
from braidmq.wal.segment import ActiveSegment, SegmentInfo, damage, reader_of
from braidmq.wal.tables import BLOCK_ROWS

SKIP_BYTES_MIN: Final = 4 * KIB
"""Fewer bytes of other topics than this are read along: cheaper than another system call."""
OPEN_SEGMENTS_MAX: Final = 16
"""Sealed segments whose files and tables stay open."""
_NO_TOPIC: Final = -2
"""A topic number that no row has."""

ROWS_AT_ONCE_MIN: Final = 512
"""Rows to search at once, at least, since a topic may be rare among them."""


@dataclass(frozen=True, slots=True)
class LogView:
    """The committed log at one moment."""

    sealed: tuple[SegmentInfo, ...]
    active: SegmentInfo
    file: File
    index: IndexView
    committed_id: int

    @property
    def first_id(self) -> int:
        """The lowest id that the log still holds."""
        return (self.sealed[0] if self.sealed else self.active).first_id


def view_of(
    sealed: tuple[SegmentInfo, ...], active: ActiveSegment, committed_id: int
) -> LogView:
    """Return the view of a log with these segments."""
    # Readers take a log's view without a lock. All of it is made before the one assignment that
    # publishes it, and nothing in it changes except by growing at its end.
    info = active.info(sealed=False)
    return LogView(sealed, info, active.file, active.index.view(), committed_id)


@dataclass(slots=True)
class ReadBack:
    """The result of a read.

    `records`, as (id, body), holds everything wanted up to `reached_id`. `lost` is the
    range of ids (first, last) that retention deleted before they were read; `gaps` are the
    ranges that a repair gave up.
    """

    records: list[tuple[int, bytes]] = field(default_factory=list)
    reached_id: int = 0
    lost: tuple[int, int] | None = None
    gaps: list[tuple[int, int]] = field(default_factory=list)
    body_bytes: int = 0


@dataclass(slots=True)
class Wanted:
    """The bounds of a read; see `Wal.read`."""

    topic: bytes | None
    up_to: int
    count_max: int
    bytes_max: int
    priority: int

    def within(self, last_id: int) -> "Wanted":
        """Return the same with *last_id* as the upper bound, if that is lower."""
        up_to = min(self.up_to, last_id)
        return Wanted(self.topic, up_to, self.count_max, self.bytes_max, self.priority)


class _DoubtError(Exception):
    """Index and segment disagree: one of them is wrong."""


class Reader:
    """Reads views; keeps the sealed segments that were read most recently open."""

    def __init__(self, files: Files, describe: Describe) -> None:
        self._files = files
        self._describe = describe
        self._open: OrderedDict[int, tuple[File, IndexView]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, view: LogView, after_id: int, wanted: Wanted) -> ReadBack:
        """Return records of *view* as `Wal.read` says.

        Raises:
            DamagedLogError: A committed record is not what was written.
            LogScarceError: There is no descriptor or memory for it now.
            LogReadError: The disk did not return it.
            LogPoisonedError: An index must be rebuilt, and writing it failed.
            FileNotFoundError: A segment was deleted meanwhile: take a new view.
        """
        wanted = wanted.within(view.committed_id)  # the file may hold more, not yet committed
        found = ReadBack(reached_id=after_id)
        if after_id < wanted.up_to and after_id + 1 < view.first_id:
            found.lost = (after_id + 1, min(view.first_id - 1, wanted.up_to))
            found.reached_id = found.lost[1]
        segments = (*view.sealed, view.active)
        start = bisect_right(segments, found.reached_id + 1, key=lambda s: s.first_id) - 1
        for segment in segments[max(start, 0) :]:
            if found.reached_id >= wanted.up_to or self._read_segment(
                view, segment, wanted, found
            ):
                break
        return found

    def _read_segment(
        self, view: LogView, segment: SegmentInfo, wanted: Wanted, found: ReadBack
    ) -> bool:
        """Add the wanted records of *segment* to *found*; return whether a bound is reached."""
        # The second attempt reads with a rebuilt index; if that disagrees too, it is damage.
        for attempt in range(2):
            file, index = self.opened(view, segment)
            try:
                with reading(segment.path):
                    return self._read_blocks(file, index, segment, wanted, found)
            except _DoubtError:
                self.settle_doubt(view, segment, again=attempt > 0)
        raise AssertionError(segment)

    def _read_blocks(
        self,
        file: File,
        index: IndexView,
        segment: SegmentInfo,
        wanted: Wanted,
        found: ReadBack,
    ) -> bool:
        number = -1 if wanted.topic is None else index.topics.get(wanted.topic)
        row = index.row_after(found.reached_id)
        # Gap records have no topic, so a segment with gaps is searched even without the topic:
        # a reader must learn of lost ids, some of which may have been its own.
        while row < index.rows and (number is not None or index.gap_count):
            rows, before = _rows_from(index, row)
            count_left = wanted.count_max - len(found.records)
            # Selecting costs time for each row, so offer no more rows than may be wanted.
            rows = rows[: max(count_left + 1, ROWS_AT_ONCE_MIN) * ROW_BYTES]
            chosen = select_rows(
                rows,
                before,
                _NO_TOPIC if number is None else number,
                found.reached_id,
                wanted.up_to,
                count_left,
                wanted.bytes_max - found.body_bytes,
                wanted.priority,
            )
            # `select_rows` always chooses one; that is too much if earlier blocks had some.
            if found.records and chosen.body_bytes + found.body_bytes > wanted.bytes_max:
                return True
            self._fetch(file, chosen, found)
            if index.gap_count:
                _note_gaps(file, rows, found, chosen.reached_id)
            found.reached_id = max(found.reached_id, chosen.reached_id)
            if chosen.full or found.reached_id >= wanted.up_to:
                return chosen.full
            row += len(rows) // ROW_BYTES
        found.reached_id = max(found.reached_id, min(segment.last_id, wanted.up_to))
        return False

    def _fetch(self, file: File, chosen: SelectedRows, found: ReadBack) -> None:
        """Read the chosen records, adjacent ones with one call."""
        starts, ends = chosen.starts, chosen.ends
        fetched: list[tuple[int, bytes]] = []
        first = 0
        # Extend a run while the next record is near; then read the run and cut it up.
        for i in range(1, len(starts) + 1):
            if i < len(starts) and starts[i] - ends[i - 1] < SKIP_BYTES_MIN:
                continue
            base = starts[first]
            data = read_all(file, ends[i - 1] - base, base)
            records = cut_records(
                data, base, chosen.ids[first:i], starts[first:i], ends[first:i]
            )
            if len(records) != i - first:
                raise _DoubtError
            fetched += records
            first = i
        found.records += fetched
        found.body_bytes += chosen.body_bytes

    def opened(self, view: LogView, segment: SegmentInfo) -> tuple[File, IndexView]:
        """Return the segment's file and its index, which is rebuilt if it is not valid.

        Raises:
            DamagedLogError: The segment is damaged.
        """
        if not segment.sealed:
            return view.file, view.index
        with self._lock:
            held = self._open.get(segment.first_id)
            if held is not None:
                self._open.move_to_end(segment.first_id)
                return held
            with reading(segment.path):
                file = self._files.open(segment.path, write=False, create=False)
                index = self._open_index(segment)
            self._open[segment.first_id] = file, index
            while len(self._open) > (1 if self._files.is_short() else OPEN_SEGMENTS_MAX):
                # Not closed: another thread may be reading it. It closes with its last
                # reference.
                self._open.popitem(last=False)
            return file, index

    def _open_index(self, segment: SegmentInfo) -> IndexView:
        for _ in range(2):
            index = open_sealed(self._files, segment.first_id, segment.created_us, segment.size)
            if index is not None:
                return index
            if not self._rebuild(segment):
                return self._index_in_memory(segment)
        lost = segment.first_id, segment.last_id
        raise damage(segment.first_id, lost, "its index cannot be rebuilt")

    def _rebuild(self, segment: SegmentInfo) -> bool:
        """Rebuild the index of a segment; return False if the disk has no room for it."""
        try:
            rebuild_sealed(self._files, segment.first_id, segment.last_id + 1, self._describe)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                return False
            raise failure_of("rebuilding an index", error) from error
        return True

    def _index_in_memory(self, segment: SegmentInfo) -> IndexView:
        # Consumers must be able to drain while the disk is full. The index stays in memory as
        # long as the segment is among those that are open.
        end_id = segment.last_id + 1
        return index_in_memory(self._files, segment.first_id, end_id, self._describe)[1]

    def rows(self, view: LogView, segment: SegmentInfo, block: int) -> bytes:
        """Return a block of a segment's index rows; a damaged index is rebuilt first."""
        for attempt in range(2):
            _, index = self.opened(view, segment)
            rows = index.block(block)
            if rows is not None:
                return rows
            self.settle_doubt(view, segment, again=attempt > 0)
        raise AssertionError(segment)

    def settle_doubt(self, view: LogView, segment: SegmentInfo, *, again: bool) -> None:
        """Find out whether segment or index is wrong; rebuild the index, or raise.

        A rebuild verifies every record. If a rebuilt index disagrees as well (*again*), the
        disk does not return the same bytes twice: that is damage.

        Raises:
            DamagedLogError: The segment is damaged, or it is the active one, whose index only a
                restart rebuilds: the writer is appending to it.
        """
        if segment.sealed and not again:
            with self._lock, reading(segment.path):
                held = self._open.pop(segment.first_id, None)
                if not self._rebuild(segment) and held is not None:
                    self._open[segment.first_id] = held[0], self._index_in_memory(segment)
            return
        file, _ = self.opened(view, segment)
        read = reader_of(file)
        walk = Walk(read, segment.size, segment.first_id)
        with reading(segment.path):
            for _ in walk.runs():  # to find where the segment is damaged, if it is
                pass
            behind = find_record(
                read, walk.offset, segment.size, walk.next_id - 1, fenced=False
            )
        last_lost = max(behind[1] - 1 if behind else segment.last_id, walk.next_id)
        reason = walk.problem or "its index does not match; a restart rebuilds it"
        lost = walk.next_id, last_lost
        raise damage(segment.first_id, lost, reason, offset=walk.offset)

    def forget(self, segment: SegmentInfo) -> None:
        """Drop the files of a deleted segment."""
        with self._lock:
            self._open.pop(segment.first_id, None)


def _rows_from(index: IndexView, row: int) -> tuple[bytes, int]:
    """Return the rows from *row* to the end of its block, and where its record starts."""
    block, skipped = divmod(row, BLOCK_ROWS)
    rows = index.block(block)
    if rows is None:
        raise _DoubtError
    return rows[skipped * ROW_BYTES :], index.end_before(row) if row else HEADER_BYTES


def _note_gaps(file: File, rows: bytes, found: ReadBack, reached_id: int) -> None:
    for at in range(0, len(rows), ROW_BYTES):
        record_id = int.from_bytes(rows[at : at + 8], "little")
        if rows[at + ROW_BYTES - 1] != GAP_KIND or not (
            found.reached_id < record_id <= reached_id
        ):
            continue
        body_at = int.from_bytes(rows[at + 16 : at + 20], "little")
        start = body_at - RECORD_HEADER_BYTES
        end = body_at + int.from_bytes(rows[at + 20 : at + 24], "little")
        data = read_all(file, end - start, start)
        records = cut_records(data, start, [record_id], [start], [end])
        gap = decode_gap(records[0][1]) if records else None
        if gap is None:
            raise _DoubtError
        found.gaps.append(gap)
