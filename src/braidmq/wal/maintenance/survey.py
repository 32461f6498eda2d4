"""Examining a whole log without changing it: `braidmq wal verify` and `braidmq wal dump`.

A survey finds everything that would keep `Wal.open` from starting, not only the first problem,
and the runs of intact records around it. `braidmq.wal.maintenance.repair` makes a log that can
be opened from those runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from braidmq.base.errors import DamagedLogError, UnknownRecordError
from braidmq.base.ids import FIRST_ID
from braidmq.base.records import GAP_KIND, Description
from braidmq.wal.disk import File, Files, read_all
from braidmq.wal.floor import FLOOR_PATH, Floor, is_whole, read_floor
from braidmq.wal.format import (
    HEADER_BYTES,
    INDEX_MAGIC,
    RECORD_HEADER_BYTES,
    Describe,
    decode_gap,
    encode_header,
    encode_rows,
)
from braidmq.wal.index import index_path, open_sealed
from braidmq.wal.mark import read_mark
from braidmq.wal.opening import (
    ENDS_BELOW_FLOOR,
    MISSING_ABOVE_FLOOR,
    NO_SEGMENT,
    Watch,
    Watching,
    unwatched,
)
from braidmq.wal.recovery import (
    Ending,
    Walk,
    find_record,
    judge_header,
    judge_last,
    judge_sealed,
)
from braidmq.wal.segment import list_segments, reader_of, segment_path
from braidmq.wal.snapshots import list_ids, read, snapshot_path


@dataclass(frozen=True, slots=True)
class Damage:
    """Committed data that cannot be read: where, which ids, and why."""

    segment: str
    offset: int
    first_id: int
    last_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class IntactRun:
    """Valid records, from first_id up to but not including next_id, at start..end of a file."""

    start: int
    end: int
    first_id: int
    next_id: int


@dataclass(slots=True)
class SegmentSurvey:
    """One segment: its intact runs in order, and the id that must follow the segment."""

    first_id: int
    created_us: int = 0
    runs: list[IntactRun] = field(default_factory=list)
    end_id: int = 0
    damaged: bool = False


@dataclass(slots=True)
class Report:
    """What a log holds, and what is wrong with it.

    `damages` keep the broker from starting. `notes` say what the next start heals by itself:
    indexes, torn tails, an invalid snapshot beside a valid one. `changed` says what a repair
    did.
    """

    segments: int = 0
    records: int = 0
    bytes: int = 0
    first_id: int = 0
    last_id: int = 0
    durable_id: int = 0
    damages: list[Damage] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        """Whether the broker would start with this log."""
        return not self.damages


class Survey:
    """One examination of a log; `run` it once, then read `report` and `segments`."""

    def __init__(self, files: Files, describe: Describe, watch: Watch = unwatched) -> None:
        self._files = files
        self._describe = describe
        self._watching = Watching(files, watch)
        self.report = Report()
        self.segments: list[SegmentSurvey] = []
        self.snapshot_id = 0
        self.known_id = 0
        """The highest id that was durable, according to the mark or a snapshot."""
        self.floor: Floor | None = None
        self.due_id = FIRST_ID
        """The id with which the log must begin, at the latest."""

    def run(self) -> Report:
        """Examine everything and return the report."""
        report = self.report
        self._look_at_snapshots()
        mark = read_mark(self._files)
        if mark is None:
            report.notes.append("wal/durable is unreadable; the next start rewrites it")
        report.durable_id = mark or 0
        self.known_id = max(report.durable_id, self.snapshot_id)
        first_ids = list_segments(self._files)
        report.segments = len(first_ids)
        self._look_at_floor(first_ids)
        if not first_ids and self.floor is not None:
            # It was written after the first segment, so there was one, with this id or none.
            self.known_id = max(self.known_id, self.floor.first_id)
        start = first_ids[0] if first_ids else self.known_id + 1
        if start > self.due_id:
            is_below = self.floor is None or start > self.snapshot_id + 1
            why = "missing segment" if is_below else MISSING_ABOVE_FLOOR
            why = why if first_ids else NO_SEGMENT
            self._damage(self.due_id, 0, self.due_id, start - 1, why)
        for first_id, successor in pairwise([*first_ids, 0]):
            before = report.bytes
            self.segments.append(self._look_at_segment(first_id, successor))
            self._watching.passed(report.bytes - before)
        report.first_id = first_ids[0] if first_ids else 0
        report.last_id = self.segments[-1].end_id - 1 if self.segments else 0
        if self.segments and self.floor is not None:
            self._look_at_end(self.segments[-1], self.floor)
        return report

    def _look_at_end(self, last: SegmentSurvey, floor: Floor) -> None:
        # As `Opening` has it: going on would give ids a second time.
        if last.end_id < floor.first_id:
            lost = last.end_id, floor.first_id - 1
            self._damage(last.first_id, 0, *lost, ENDS_BELOW_FLOOR)
            last.damaged = True
            last.end_id = floor.first_id

    def _damage(
        self, first_id: int, offset: int, first_lost: int, last_lost: int, reason: str
    ) -> None:
        self.report.damages.append(
            Damage(segment_path(first_id), offset, first_lost, last_lost, reason)
        )

    def _look_at_snapshots(self) -> None:
        for last_id in list_ids(self._files):
            try:
                found = read(self._files, last_id)
            except DamagedLogError as error:
                self.report.damages.append(
                    Damage(error.segment, error.offset, last_id, last_id, error.reason)
                )
                continue
            if found is None:
                self.report.notes.append(f"{snapshot_path(last_id)} is not a valid snapshot")
            elif not self.snapshot_id:  # they are listed newest first
                self.snapshot_id = last_id

    def _look_at_floor(self, first_ids: list[int]) -> None:
        try:
            self.floor = read_floor(self._files)
        except DamagedLogError as error:
            self.report.damages.append(
                Damage(error.segment, error.offset, error.first_id, error.last_id, error.reason)
            )
        # As `Opening` has it: the log must reach back to its floor and to the snapshot, and an
        # empty directory is damage if the mark or a snapshot says that there was a log.
        self.due_id = self.snapshot_id + 1 if first_ids else FIRST_ID
        if self.floor is not None:
            self.due_id = min(self.snapshot_id + 1, self.floor.first_id)
        if self.floor is not None and not is_whole(self._files, self.floor):
            self.report.notes.append(f"{FLOOR_PATH} is torn; the next start writes it anew")
        elif not self._files.exists(FLOOR_PATH) and first_ids:
            self.report.notes.append(f"{FLOOR_PATH} is missing; the next start writes it")

    def _look_at_segment(self, first_id: int, successor: int) -> SegmentSurvey:
        """Return the survey of one segment; *successor* is 0 for the last."""
        file = self._files.open(segment_path(first_id), write=False, create=False)
        size = file.size()
        self.report.bytes += size
        survey = SegmentSurvey(first_id, end_id=successor)
        header, problem = judge_header(read_all(file, HEADER_BYTES, 0), first_id)
        survey.created_us = header.created_us if header else 0
        if header is None:
            if not successor and size <= HEADER_BYTES and self.known_id < first_id:
                path = segment_path(first_id)
                self.report.notes.append(f"{path} was being created; the next start heals it")
                survey.end_id = first_id
                return survey
            survey.damaged = True
            last_lost = (successor or max(self.known_id, first_id) + 1) - 1
            # A segment of another version cannot be read at all; searching it for records would
            # report nonsense.
            if "version" in problem:
                self._damage(first_id, 0, first_id, last_lost, problem)
                survey.end_id = last_lost + 1
                return survey
            self._damage(first_id, 0, first_id, first_id, problem)
        rows = _RowCheck(self._files, first_id, survey.created_us)
        self._find_runs(file, survey, successor, rows)
        if not survey.damaged and header:
            self._check_index(survey, rows, size, sealed=bool(successor))
        return survey

    def _find_runs(
        self, file: File, survey: SegmentSurvey, successor: int, rows: "_RowCheck"
    ) -> None:
        source = self._watching.reader(reader_of(file))
        size = file.size()
        walk = Walk(source, size, survey.first_id)
        while True:
            self._walk_run(walk, survey, rows)
            if successor:
                verdict = judge_sealed(walk, successor, source)
            else:
                verdict = judge_last(walk, self.known_id, source)
            survey.end_id = successor or walk.next_id
            if verdict.ending is not Ending.DAMAGE:
                if verdict.ending is not Ending.CLEAN:
                    length = size - verdict.offset
                    self.report.notes.append(
                        f"{segment_path(survey.first_id)}: {verdict.ending.value} of {length} "
                        f"bytes at offset {verdict.offset}: {verdict.reason}"
                    )
                return
            survey.damaged = True
            first_id, why = survey.first_id, verdict.reason
            # The next intact record starts another run; the ids between the two are lost.
            behind = find_record(source, walk.offset, size, walk.next_id - 1, fenced=False)
            if behind is None or (successor and behind[1] >= successor):
                survey.end_id = successor or max(self.known_id + 1, walk.next_id)
                self._damage(first_id, walk.offset, walk.next_id, survey.end_id - 1, why)
                return
            self._damage(first_id, walk.offset, walk.next_id, behind[1] - 1, why)
            walk = Walk(source, size, behind[1], offset=behind[0])

    def _walk_run(self, walk: Walk, survey: SegmentSurvey, rows: "_RowCheck") -> None:
        start, first_id = walk.offset, walk.next_id
        for run_start, records in walk.runs():
            self.report.records += len(records)
            at = run_start
            for record_id, body in records:
                try:
                    self._look_at_record(record_id, body, at, rows)
                except UnknownRecordError as error:
                    # Intact, but of no use to this version: a repair leaves it out.
                    survey.damaged = True
                    self._damage(survey.first_id, at, record_id, record_id, str(error))
                    survey.runs.append(IntactRun(start, at, first_id, record_id))
                    start, first_id = at + RECORD_HEADER_BYTES + len(body), record_id + 1
                at += RECORD_HEADER_BYTES + len(body)
        survey.runs.append(IntactRun(start, walk.offset, first_id, walk.next_id))

    def _look_at_record(self, record_id: int, body: bytes, at: int, rows: "_RowCheck") -> None:
        gap = decode_gap(body) if body[0] == GAP_KIND else None
        if gap is not None:
            self.report.gaps.append(gap)
        rows.check(encode_rows([(record_id, body)], at, self._describe, rows.topics))

    def _check_index(
        self, survey: SegmentSurvey, rows: "_RowCheck", size: int, *, sealed: bool
    ) -> None:
        path = index_path(survey.first_id)
        if not rows.is_there:
            self.report.notes.append(f"{path} is missing; it is rebuilt")
        elif not rows.agrees:
            self.report.notes.append(f"{path} does not agree with its segment; it is rebuilt")
        elif sealed:
            index = open_sealed(self._files, survey.first_id, survey.created_us, size)
            if index is None or index.topics != rows.topics or index.rows != rows.count:
                self.report.notes.append(f"{path} is torn, stale or damaged; it is rebuilt")


class _RowCheck:
    """Compares the rows of an index with those that its segment requires, one by one."""

    def __init__(self, files: Files, first_id: int, created_us: int) -> None:
        path = index_path(first_id)
        self.is_there = files.exists(path)
        self._file = files.open(path, write=False, create=False) if self.is_there else None
        self._at = HEADER_BYTES
        self.count = 0
        header = encode_header(INDEX_MAGIC, first_id, created_us)
        self.agrees = self._file is None or read_all(self._file, HEADER_BYTES, 0) == header
        self.topics: dict[bytes, int] = {b"": 0}

    def check(self, row: bytes) -> None:
        """Compare the next row."""
        if self._file is not None and self.agrees:
            self.agrees = read_all(self._file, len(row), self._at) == row
        self._at += len(row)
        self.count += 1


def verify(files: Files, describe: Describe, watch: Watch = unwatched) -> Report:
    """Verify every byte of the log and report what is wrong; change nothing."""
    return Survey(files, describe, watch).run()


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """One record as `braidmq wal dump` shows it; `what` is None if its type is unknown."""

    segment: str
    offset: int
    record_id: int
    kind: int
    body: bytes
    what: Description | None


def dump(
    files: Files, describe: Describe, *, from_id: int, limit: int, watch: Watch = unwatched
) -> Iterator[DumpedRecord]:
    """Yield the valid records from *from_id* on, at most *limit* of them, despite any damage.

    *watch* is told the progress of the survey of the whole log, which comes first.
    """
    survey = Survey(files, describe, watch)
    survey.run()
    left = limit
    for segment in survey.segments:
        path = segment_path(segment.first_id)
        source = reader_of(files.open(path, write=False, create=False))
        for run in segment.runs:
            walk = Walk(source, run.end, run.first_id, offset=run.start)
            for start, records in walk.runs() if run.next_id > from_id else ():
                at = start
                for record_id, body in records:
                    if record_id >= from_id:
                        if left <= 0:
                            return
                        left -= 1
                        what = _described(describe, body)
                        yield DumpedRecord(path, at, record_id, body[0], body, what)
                    at += RECORD_HEADER_BYTES + len(body)


def _described(describe: Describe, body: bytes) -> Description | None:
    try:
        return None if body[0] == GAP_KIND else describe(body)
    except UnknownRecordError:
        return None
