"""Start-up: from the files that are there to a log that can grow. It heals or refuses.

The verdicts are those of `braidmq.wal.recovery`; here is what is done about them.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from braidmq.base.errors import DamagedLogError, LogPoisonedError
from braidmq.base.ids import FIRST_ID
from braidmq.base.limits import MIB
from braidmq.base.records import GAP_KIND
from braidmq.wal.files import LOG_DIR, File, Files, read_all, write_all
from braidmq.wal.format import (
    HEADER_BYTES,
    MARK_BYTES,
    SEGMENT_MAGIC,
    Describe,
    decode_gap,
    decode_header,
    decode_mark,
    encode_header,
)
from braidmq.wal.index import IndexWriter, index_path, read_trailer, remove_orphans
from braidmq.wal.maintenance.rebuild import (
    Visit,
    build_index,
    finish_index,
    read_header,
    rebuild_sealed,
    start_index,
    visit_run,
)
from braidmq.wal.maintenance.watching import Watch, Watching, unwatched
from braidmq.wal.quarantine import keep_copy
from braidmq.wal.recovery import Ending, Verdict, Walk, judge_last, judge_sealed
from braidmq.wal.reserve import RESERVE_PATH
from braidmq.wal.segment import (
    ActiveSegment,
    SegmentInfo,
    create_segment,
    damage,
    list_segments,
    reader_of,
    segment_path,
)

MARK_PATH: Final = "wal/durable"
_ROOM_BYTES: Final = 64 * MIB
"""With less free than this, start-up uses the reserve's room for indexes and quarantine."""


@dataclass(slots=True)
class Recovered:
    """What start-up found and did, for the log file and the counters."""

    replayed_records: int = 0
    torn_bytes: int = 0
    zero_bytes: int = 0
    mark_unreadable: bool = False
    quarantined: list[str] = field(default_factory=list)
    rebuilt_indexes: list[str] = field(default_factory=list)


def read_mark(files: Files) -> int | None:
    """Return the durable mark, 0 when there is none, None when it is unreadable."""
    if not files.exists(MARK_PATH):
        return 0
    file = files.open(MARK_PATH, write=False, create=False)
    data = read_all(file, MARK_BYTES, 0)
    file.close()
    # An empty mark is one that was created and never written.
    return decode_mark(data) if data.strip(b"\0") else 0


def start_segment(files: Files, first_id: int, created_us: int) -> ActiveSegment:
    """Make a new segment with its index.

    Raises:
        OSError: A write failed; something of them may be there.
        LogPoisonedError: The segment could not be synced.
    """
    file = create_segment(files, first_id, created_us)
    index = IndexWriter.create(
        files, index_path(first_id), first_id=first_id, created_us=created_us
    )
    try:
        files.sync_dir(LOG_DIR)
    except OSError as error:
        raise LogPoisonedError("fsync of a directory", str(error)) from error
    return ActiveSegment(file, index, created_us)


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

    def run(self) -> tuple[list[SegmentInfo], ActiveSegment]:
        """Return the sealed segments and the one that grows, all of it durable.

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
        if not first_ids:
            return [], start_segment(self._files, FIRST_ID, self._now_us)
        sealed = [
            self._open_sealed(first_id, successor)
            for first_id, successor in pairwise(first_ids)
        ]
        active = self._open_last(first_ids[-1], durable_id)
        if active.next_id <= self._after_id:
            raise self._missing(
                active.next_id, self._after_id, "the snapshot is ahead of the log"
            )
        remove_orphans(self._files, first_ids[0])
        return sealed, active

    def _make_room(self) -> None:
        if self._files.exists(RESERVE_PATH) and self._files.free_bytes() < _ROOM_BYTES:
            reserve = self._files.open(RESERVE_PATH, write=True, create=False)
            reserve.truncate(0)
            reserve.close()

    def _check_start(self, first_ids: list[int], durable_id: int) -> None:
        known_id = max(durable_id, self._after_id)
        if not first_ids and known_id:
            raise self._missing(FIRST_ID, known_id, "no segment is there")
        if first_ids and first_ids[0] > self._after_id + 1:
            raise self._missing(self._after_id + 1, first_ids[0] - 1, "missing segment")

    def _missing(self, first_id: int, last_id: int, reason: str) -> DamagedLogError:
        return DamagedLogError(
            segment_path(first_id), offset=0, first_id=first_id, last_id=last_id, reason=reason
        )

    def _open_sealed(self, first_id: int, successor: int) -> SegmentInfo:
        file = self._files.open(segment_path(first_id), write=False, create=False)
        header = read_header(file, first_id)
        size = file.size()
        trailer = read_trailer(self._files, first_id, header.created_us, size)
        if trailer is None or trailer.last_id + 1 != successor:
            info = rebuild_sealed(self._files, first_id, successor, self._describe)
            self.recovered.rebuilt_indexes.append(index_path(first_id))
        else:
            info = SegmentInfo(first_id, trailer.last_id, size, header.created_us, sealed=True)
        if info.last_id > self._after_id:
            self._replay_sealed(file, info)
        self._watching.passed(size)
        file.close()
        return info

    def _replay_sealed(self, file: File, info: SegmentInfo) -> None:
        read = self._watching.reader(reader_of(file))
        walk = Walk(read, info.size, info.first_id)
        for start, records in walk.runs():
            visit_run(info.first_id, start, records, self._visit_new)
        verdict = judge_sealed(walk, info.last_id + 1, read)
        if verdict.ending is not Ending.CLEAN:
            raise damage(info.first_id, verdict)

    def _visit_new(self, record_id: int, body: bytes) -> None:
        gap = decode_gap(body) if body[0] == GAP_KIND else None
        if record_id > self._after_id or (gap is not None and gap[1] > self._after_id):
            self.recovered.replayed_records += 1
            self._visit(record_id, body)

    def _open_last(self, first_id: int, durable_id: int) -> ActiveSegment:
        file = self._files.open(segment_path(first_id), write=True, create=False)
        self._heal_header(file, first_id, durable_id)
        header = read_header(file, first_id)
        read = self._watching.reader(reader_of(file))
        walk = Walk(read, file.size(), first_id)
        segment = start_index(self._files, file, header)
        build_index(walk, segment, self._describe, self._visit_new)
        verdict = judge_last(walk, durable_id, read)
        if verdict.ending is Ending.DAMAGE:
            raise damage(first_id, verdict)
        if verdict.ending is not Ending.CLEAN:
            self._heal_tail(file, first_id, verdict)
        # What a killed process left in the page cache is about to be told as committed.
        file.fsync()
        finish_index(self._files, first_id)
        return segment

    def _heal_header(self, file: File, first_id: int, durable_id: int) -> None:
        """Finish a rotation that a crash cut off before anything was written behind the header.

        Records follow only after the header was synced: a file no longer than it, without a
        valid one, never held a record. Anything longer is damage, which `read_header` tells.
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
        file.fsync()

    def _heal_tail(self, file: File, first_id: int, verdict: Verdict) -> None:
        length = file.size() - verdict.offset
        if verdict.ending is Ending.ZERO_TAIL:
            self.recovered.zero_bytes += length
        else:
            self.recovered.torn_bytes += length
            kept = keep_copy(self._files, file, f"{first_id:020}.wal", verdict.offset)
            self.recovered.quarantined.append(kept)
        file.truncate(verdict.offset)
