"""Start-up: from the files on the disk to a log that can grow. It heals, or refuses to start.

`braidmq.wal.recovery` judges how each segment ends; this module acts on its verdicts. It heals
only what a crash can leave: a torn tail, an unfinished rotation, a missing or stale index. It
refuses everything else, because starting over damage would silently drop committed records.

Start-up may itself be interrupted. Each step leaves a state that the next start handles: bytes
are copied to quarantine before they are cut off, and indexes are built under a temporary name.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from braidmq.base.ids import FIRST_ID
from braidmq.base.limits import MIB
from braidmq.base.records import GAP_KIND
from braidmq.wal.disk import FULL_ERRNOS, LOG_DIR, File, Files, read_all, synced, write_all
from braidmq.wal.floor import Floor, read_floor
from braidmq.wal.format import (
    HEADER_BYTES,
    SEGMENT_MAGIC,
    Describe,
    Header,
    decode_gap,
    decode_header,
    encode_header,
)
from braidmq.wal.index import index_path, read_trailer, remove_orphans
from braidmq.wal.maintenance.rebuild import (
    Visit,
    build_index,
    finish_index,
    index_in_memory,
    read_header,
    rebuild_sealed,
    start_in_memory,
    start_index,
    visit_run,
)
from braidmq.wal.mark import read_mark
from braidmq.wal.memory import MemoryFile
from braidmq.wal.quarantine import keep_copy
from braidmq.wal.recovery import Ending, Read, Verdict, Walk, judge_last, judge_sealed
from braidmq.wal.segment import (
    RESERVE_PATH,
    ActiveSegment,
    SegmentInfo,
    damage,
    judged_damage,
    list_segments,
    reader_of,
    segment_path,
    start_segment,
)

MISSING_ABOVE_FLOOR: Final = "missing segment: retention did not delete it, wal/floor says"
NO_SEGMENT: Final = "no segment is there"
ENDS_BELOW_FLOOR: Final = "the log ends below its floor: newer segments are missing"
_ROOM_BYTES: Final = 64 * MIB
"""With less free space than this, start-up uses the reserve's for indexes and quarantine."""


@dataclass(slots=True)
class Recovered:
    """What start-up found and did, for the log file and the counters."""

    replayed_records: int = 0
    torn_bytes: int = 0
    zero_bytes: int = 0
    mark_unreadable: bool = False
    has_gaps: bool = False  # a repair has given up records
    floor_adopted: bool = False  # the log had none: it begins where its first segment does
    quarantined: list[str] = field(default_factory=list)


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


class Opening:
    """One start-up; `run` it once."""

    def __init__(
        self,
        files: Files,
        describe: Describe,
        *,
        now_us: int,
        after_id: int,
        visit: Visit,
        watch: Watch = unwatched,
    ) -> None:
        self._files = files
        self._describe = describe
        self._now_us = now_us
        self._after_id = after_id
        self._visit = visit
        self._watching = Watching(files, watch)
        self.recovered = Recovered()
        self.floor = Floor()  # set by `run`

    def run(self) -> tuple[list[SegmentInfo], ActiveSegment]:
        """Return the sealed segments and the active one; all of their records are durable.

        Raises:
            DamagedLogError: Accepted data cannot be read.
            OSError: The disk failed.
        """
        self._files.make_dir(LOG_DIR)
        self._files.sync_dir("")
        self._make_room()
        mark = read_mark(self._files)
        self.recovered.mark_unreadable = mark is None
        durable_id = mark or 0
        first_ids = list_segments(self._files)
        self._check_start(first_ids, durable_id)
        self._check_floor(first_ids)
        if not first_ids:
            return [], start_segment(self._files, FIRST_ID, self._now_us)
        sealed = [
            self._open_sealed(first_id, successor)
            for first_id, successor in pairwise(first_ids)
        ]
        active = self._open_last(first_ids[-1], durable_id)
        # Going on would give ids a second time that the snapshot's state already contains.
        if active.next_id <= self._after_id:
            lost = active.next_id, self._after_id
            raise damage(active.next_id, lost, "the snapshot is ahead of the log")
        # Nor can retention have deleted what was never written. Its segment is not the last.
        if active.next_id < self.floor.first_id:
            lost = active.next_id, self.floor.first_id - 1
            raise damage(active.next_id, lost, ENDS_BELOW_FLOOR)
        remove_orphans(self._files, first_ids[0])
        return sealed, active

    def _make_room(self) -> None:
        # A broker that stopped on a full disk must still be able to start. The log takes the
        # reserve back as soon as there is room.
        if self._files.exists(RESERVE_PATH) and self._files.free_bytes() < _ROOM_BYTES:
            reserve = self._files.open(RESERVE_PATH, write=True, create=False)
            reserve.truncate(0)
            reserve.close()

    def _check_start(self, first_ids: list[int], durable_id: int) -> None:
        # Retention deletes from the front, but never beyond a snapshot. So the log must reach
        # back to the record after the snapshot, or to the first one.
        known_id = max(durable_id, self._after_id)
        if not first_ids and known_id:
            raise damage(FIRST_ID, (FIRST_ID, known_id), NO_SEGMENT)
        due = self._after_id + 1
        if first_ids and first_ids[0] > due:
            raise damage(due, (due, first_ids[0] - 1), "missing segment")

    def _check_floor(self, first_ids: list[int]) -> None:
        # Segments below the floor may be left from a deletion that a crash interrupted.
        floor = read_floor(self._files)
        self.recovered.floor_adopted = floor is None and bool(first_ids)
        if floor is None:
            self.floor = Floor(first_ids[0] if first_ids else FIRST_ID)
            return
        self.floor = floor
        if not first_ids:
            # It was written when the first segment and its name were durable.
            due = min(self._after_id + 1, floor.first_id)
            raise damage(due, (due, floor.first_id), NO_SEGMENT)
        if first_ids[0] > floor.first_id:
            lost = floor.first_id, first_ids[0] - 1
            raise damage(floor.first_id, lost, MISSING_ABOVE_FLOOR)

    def _open_sealed(self, first_id: int, successor: int) -> SegmentInfo:
        file = self._files.open(segment_path(first_id), write=False, create=False)
        header = read_header(file, first_id)
        size = file.size()
        sealed = read_trailer(self._files, first_id, header.created_us, size)
        # A trailer that matches size, creation time and successor proves the index complete, so
        # that records before the snapshot need not be read at every start.
        if sealed is None or sealed[1].last_id + 1 != successor:
            info = self._rebuild(first_id, successor)
        else:
            info = SegmentInfo(first_id, successor - 1, size, header.created_us, sealed=True)
            self.recovered.has_gaps |= sealed[1].gap_count > 0
        if info.last_id > self._after_id:  # older records are verified when they are read
            self._replay_sealed(file, info)
        self._watching.passed(size)
        file.close()
        return info

    def _rebuild(self, first_id: int, successor: int) -> SegmentInfo:
        try:
            info = rebuild_sealed(self._files, first_id, successor, self._describe)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            # It is rebuilt when it is read, once there is room.
            info = index_in_memory(self._files, first_id, successor, self._describe)[0]
        self.recovered.has_gaps = True  # not known without the index, and rarely asked
        return info

    def _replay_sealed(self, file: File, info: SegmentInfo) -> None:
        read = self._watching.reader(reader_of(file))
        walk = Walk(read, info.size, info.first_id)
        for start, records in walk.runs():
            visit_run(info.first_id, start, records, self._visit_new)
        verdict = judge_sealed(walk, info.last_id + 1, read)
        if verdict.ending is not Ending.CLEAN:
            raise judged_damage(info.first_id, verdict)

    def _visit_new(self, record_id: int, body: bytes) -> None:
        # A gap record has the first id of its range, and the range may extend from before the
        # snapshot's last id to after it.
        gap = decode_gap(body) if body[0] == GAP_KIND else None
        if record_id > self._after_id or (gap is not None and gap[1] > self._after_id):
            self.recovered.replayed_records += 1
            self._visit(record_id, body)

    def _open_last(self, first_id: int, durable_id: int) -> ActiveSegment:
        file = self._files.open(segment_path(first_id), write=True, create=False)
        self._heal_header(file, first_id, durable_id)
        header = read_header(file, first_id)
        read = self._watching.reader(reader_of(file))
        walk, segment = self._index_last(file, header, read)
        verdict = judge_last(walk, durable_id, read)
        if verdict.ending is Ending.DAMAGE:
            raise judged_damage(first_id, verdict)
        if verdict.ending is not Ending.CLEAN:
            self._heal_tail(file, first_id, verdict)
        # A killed process leaves records in the page cache that were never synced. They are
        # about to count as committed, so they must be durable first. This also makes the
        # truncation of a torn tail durable, before anything is written in its place. If it
        # fails, another attempt must not take what is only in the page cache for durable.
        synced(file.fsync)
        self.recovered.has_gaps |= segment.index.gap_count > 0
        if not isinstance(segment.index.file, MemoryFile):
            finish_index(self._files, first_id)
        return segment

    def _index_last(self, file: File, header: Header, read: Read) -> tuple[Walk, ActiveSegment]:
        """Walk over the last segment, visit its records and index them; twice on a full disk.

        Records are visited before the verdict is known. That is safe: on damage `_open_last`
        raises, and the caller drops whatever it has made of them.
        """
        walk = Walk(read, file.size(), header.first_id)
        visited_id = 0

        def visit(record_id: int, body: bytes) -> None:
            nonlocal visited_id
            if record_id > visited_id:  # each once, however often the walk begins
                visited_id = record_id
                self._visit_new(record_id, body)

        try:
            segment = start_index(self._files, file, header)
            build_index(walk, segment, self._describe, visit)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            self._remove_unfinished(header.first_id)
            walk = Walk(read, file.size(), header.first_id)
            segment = start_in_memory(file, header)
            build_index(walk, segment, self._describe, visit)
        return walk, segment

    def _remove_unfinished(self, first_id: int) -> None:
        # Both are derived from the segment. The old one would not grow with it any more.
        for path in (index_path(first_id) + ".tmp", index_path(first_id)):
            if self._files.exists(path):
                self._files.unlink(path)

    def _heal_header(self, file: File, first_id: int, durable_id: int) -> None:
        """Finish a rotation that a crash interrupted before the new header was durable.

        Records are written only after the header was synced. So a file that is no longer than a
        header, without a valid one, never held a record. In a longer file the bad header is
        damage, and `read_header` raises.
        """
        data = read_all(file, HEADER_BYTES, 0)
        torn = decode_header(data, SEGMENT_MAGIC) is None
        if not torn or file.size() > HEADER_BYTES or durable_id >= first_id:
            return
        if data.strip(b"\0"):
            kept = keep_copy(self._files, file, f"{first_id:020}.wal", 0)
            self.recovered.quarantined.append(kept)
        self.recovered.torn_bytes += len(data)
        file.truncate(0)
        write_all(file, encode_header(SEGMENT_MAGIC, first_id, self._now_us), 0)
        synced(file.fsync)

    def _heal_tail(self, file: File, first_id: int, verdict: Verdict) -> None:
        """Cut off a torn tail.

        1. The tail is copied to quarantine, durably; zeros are only counted. *A crash here
           leaves the tail in place: the next start makes another copy.*
        2. The file is truncated after its last valid record. *A crash may bring the tail back:
           the next start cuts it off again.*
        3. `_open_last` fsyncs the file. *Only then may anything be appended.*
        """
        length = file.size() - verdict.offset
        if verdict.ending is Ending.ZERO_TAIL:
            self.recovered.zero_bytes += length
        else:
            self.recovered.torn_bytes += length
            kept = keep_copy(self._files, file, f"{first_id:020}.wal", verdict.offset)
            self.recovered.quarantined.append(kept)
        file.truncate(verdict.offset)
