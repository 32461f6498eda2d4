"""Turning a damaged log into one that opens, with every loss recorded: `braidmq wal repair`.

Nothing is changed unless the operator accepts the loss. For each damaged segment:

1. The segment is copied to quarantine, durably. *A crash leaves one copy too many.*
2. A new one is written under a temporary name and fsynced: the header, every intact record as
   it is, and a gap record for each range of lost ids. *A crash leaves a file that is ignored.*
3. The old index is removed, the new segment renamed into place, the directory fsynced. *Before
   the rename the damaged segment is still there, and the repair can be run again; after it,
   this segment is done. An index that comes back is stale, and is rebuilt.*
"""

from itertools import pairwise

from braidmq.base.ids import FIRST_ID
from braidmq.wal.disk import LOG_DIR, File, Files, read_all, synced, write_all
from braidmq.wal.floor import FLOOR_PATH, Floor, write_floor
from braidmq.wal.format import SEGMENT_MAGIC, Describe, encode_gap, encode_header, encode_record
from braidmq.wal.index import index_path
from braidmq.wal.maintenance.survey import Report, SegmentSurvey, Survey
from braidmq.wal.opening import Watch, unwatched
from braidmq.wal.quarantine import keep_copy
from braidmq.wal.recovery import CHUNK_BYTES
from braidmq.wal.segment import segment_path


def repair(
    files: Files, describe: Describe, *, accept_loss: bool, watch: Watch = unwatched
) -> Report:
    """Write gap records in the place of all damage; return what was wrong and what changed.

    Without *accept_loss* nothing is changed. The caller holds the directory's lock. A repair
    that was interrupted can be run again. *watch* is told the progress of the survey, and then,
    from 0 again, of the rewriting.

    Raises:
        OSError: The disk failed; segments that were not yet replaced are unchanged.
    """
    survey = Survey(files, describe, watch)
    report = survey.run()
    if not accept_loss:
        return report
    if report.is_intact and survey.floor is not None:
        _give_up_readers(files, survey.floor, report)
        return report
    segments = survey.segments
    first_id = min([segment.first_id for segment in segments] or [survey.known_id + 1])
    if first_id > survey.due_id:
        # Retention may have deleted what is before that; only what is after it is missed.
        created_us = segments[0].created_us if segments else 0
        _fill(files, survey.due_id, first_id - 1, created_us=created_us, report=report)
    if survey.floor is None and (segments or first_id > FIRST_ID):
        _lay_floor(files, min(survey.due_id, first_id), report)
    _date_undated(segments)
    damaged = [segment for segment in segments if segment.damaged]
    for done, segment in enumerate(damaged):
        watch(done, len(damaged))
        _rewrite(files, segment, report)
    return report


def _give_up_readers(files: Files, floor: Floor, report: Report) -> None:
    """Let readers that stand below the floor of a log without damage go on above it.

    A broker refuses them unless retention was forced: messages that they needed are gone. The
    log cannot tell where they stand, so this is for whoever accepts the loss.
    """
    if floor.forced_id < floor.first_id - 1:
        _lay_floor(files, floor.first_id, report)


def _lay_floor(files: Files, first_id: int, report: Report) -> None:
    """Write the floor that is missing or unreadable; what is below it is given up."""
    write_floor(files, Floor(first_id, first_id - 1))
    report.changed.append(f"{FLOOR_PATH}: the log begins at {first_id}")


def _date_undated(segments: list[SegmentSurvey]) -> None:
    """Give segments without a valid header a neighbour's time: retention depends on it."""
    for older, younger in pairwise(segments):
        younger.created_us = younger.created_us or older.created_us
    for younger, older in pairwise(reversed(segments)):
        older.created_us = older.created_us or younger.created_us


def _fill(
    files: Files, first_id: int, last_id: int, *, created_us: int, report: Report
) -> None:
    """Make a segment that holds only the gap record for first_id..last_id."""
    files.make_dir(LOG_DIR)
    files.sync_dir("")
    rewriting = _Rewriting(files, first_id, created_us, report)
    rewriting.gap(first_id, last_id)
    rewriting.finish()


def _rewrite(files: Files, segment: SegmentSurvey, report: Report) -> None:
    path = segment_path(segment.first_id)
    original = files.open(path, write=False, create=False)
    kept = keep_copy(files, original, f"{segment.first_id:020}.wal", 0)
    report.changed.append(f"{path}: original kept as {kept}")
    rewriting = _Rewriting(files, segment.first_id, segment.created_us, report)
    due = segment.first_id
    for run in segment.runs:
        rewriting.gap(due, run.first_id - 1)
        rewriting.copy(original, run.start, run.end)
        due = run.next_id
    rewriting.gap(due, segment.end_id - 1)
    rewriting.finish()


class _Rewriting:
    """A segment that is written under a temporary name and renamed into place."""

    def __init__(self, files: Files, first_id: int, created_us: int, report: Report) -> None:
        self._files = files
        self._first_id = first_id
        self._report = report
        self._path = segment_path(first_id) + ".tmp"
        self._file = files.open(self._path, write=True, create=True)
        self._file.truncate(0)
        self._size = 0
        self._write(encode_header(SEGMENT_MAGIC, first_id, created_us))

    def _write(self, data: bytes) -> None:
        write_all(self._file, data, self._size)
        self._size += len(data)

    def gap(self, first_id: int, last_id: int) -> None:
        """Write a gap record for the lost ids first..last, if there are any, and report it."""
        if first_id <= last_id:
            # With a fence: the file is synced before it gets its name, so what is before the
            # gap is durable, and a hole there would be damage again.
            self._write(encode_record(first_id, encode_gap(first_id, last_id), fence=True))
            path = segment_path(self._first_id)
            self._report.changed.append(f"{path}: gap {first_id}..{last_id}")

    def copy(self, source: File, start: int, end: int) -> None:
        for at in range(start, end, CHUNK_BYTES):
            self._write(read_all(source, min(CHUNK_BYTES, end - at), at))

    def finish(self) -> None:
        synced(self._file.fsync)
        index = index_path(self._first_id)
        if self._files.exists(index):
            self._files.unlink(index)
        self._files.rename(self._path, segment_path(self._first_id))
        self._files.sync_dir(LOG_DIR)
