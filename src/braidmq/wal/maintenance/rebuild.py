"""Building an index from its segment, verifying every record on the way.

The new index is written under a temporary name and renamed, without a sync of its bytes. *After
a power cut the name may belong to a file that is empty or torn: its checksums tell, and it is
rebuilt again.* Readers that hold the old file keep reading it.
"""

from collections.abc import Callable
from dataclasses import replace

from braidmq.base.errors import UnknownRecordError
from braidmq.wal.disk import LOG_DIR, File, Files, read_all
from braidmq.wal.format import HEADER_BYTES, RECORD_HEADER_BYTES, Describe, Header, encode_rows
from braidmq.wal.index import IndexView, IndexWriter, index_path
from braidmq.wal.recovery import CHUNK_BYTES, Ending, Walk, judge_header, judge_sealed
from braidmq.wal.segment import (
    ActiveSegment,
    SegmentInfo,
    damage,
    judged_damage,
    reader_of,
    segment_path,
)

Visit = Callable[[int, bytes], object]
"""Called with the id and the body of each verified record, in order."""


def read_header(file: File, first_id: int) -> Header:
    """Return the header of a segment that must have a valid one.

    Raises:
        DamagedLogError: It has none.
    """
    header, problem = judge_header(read_all(file, HEADER_BYTES, 0), first_id)
    if header is None:
        raise damage(first_id, (first_id, first_id), problem)
    return header


def visit_run(
    first_id: int, start: int, records: list[tuple[int, bytes]], visit: Visit
) -> None:
    """Call *visit* with each of *records*, the first of which starts at *start*.

    Raises:
        DamagedLogError: *visit* does not know a record's type.
    """
    at = start
    for record_id, body in records:
        try:
            visit(record_id, body)
        except UnknownRecordError as error:
            lost = record_id, record_id
            raise damage(first_id, lost, str(error), offset=at) from error
        at += RECORD_HEADER_BYTES + len(body)


def rows_of(
    first_id: int,
    start: int,
    records: list[tuple[int, bytes]],
    describe: Describe,
    topics: dict[bytes, int],
) -> bytes:
    """Return the index rows of *records*.

    Raises:
        DamagedLogError: A record's type is not known.
    """
    try:
        return encode_rows(records, start, describe, topics)
    except UnknownRecordError:
        # The error does not say which record it was: ask for each, to report its place.
        visit_run(first_id, start, records, lambda _, body: describe(body))
        raise


def build_index(
    walk: Walk, segment: ActiveSegment, describe: Describe, visit: Visit | None = None
) -> None:
    """Append a row for each valid record of *walk* to *segment*'s index, and visit the record.

    Raises:
        DamagedLogError: A record's type is not known.
    """
    index = segment.index
    for start, records in walk.runs():
        index.append(rows_of(segment.first_id, start, records, describe, index.topics))
        if visit is not None:
            visit_run(segment.first_id, start, records, visit)
    # The walk hands out bodies, and the block sums are of the file's bytes: read those again.
    for at in range(HEADER_BYTES, walk.offset, CHUNK_BYTES):
        size = min(CHUNK_BYTES, walk.offset - at)
        segment.grow(read_all(segment.file, size, at), walk.next_id)


def start_index(files: Files, file: File, header: Header) -> ActiveSegment:
    """Return *file* as a segment with an empty index under a temporary name."""
    path = index_path(header.first_id) + ".tmp"
    index = IndexWriter.create(
        files, path, first_id=header.first_id, created_us=header.created_us
    )
    return ActiveSegment(file, index, header.created_us)


def finish_index(files: Files, first_id: int) -> None:
    """Rename the temporary index into place."""
    path = index_path(first_id)
    files.rename(path + ".tmp", path)
    files.sync_dir(LOG_DIR)


def rebuild_sealed(
    files: Files, first_id: int, next_first_id: int, describe: Describe
) -> SegmentInfo:
    """Verify a sealed segment, rewrite its index, and return the facts about the segment.

    Raises:
        DamagedLogError: The segment is damaged; nothing was changed.
        OSError: The index could not be written.
    """
    file = files.open(segment_path(first_id), write=False, create=False)
    segment = start_index(files, file, read_header(file, first_id))
    _build_sealed(segment, next_first_id, describe)
    segment.seal_index()
    finish_index(files, first_id)
    return segment.info(sealed=True)


def index_in_memory(
    files: Files, first_id: int, next_first_id: int, describe: Describe
) -> tuple[SegmentInfo, IndexView]:
    """Verify a sealed segment, and return its facts and an index that is on no disk.

    Raises:
        DamagedLogError: The segment is damaged.
        OSError: It could not be read.
    """
    file = files.open(segment_path(first_id), write=False, create=False)
    segment = start_in_memory(file, read_header(file, first_id))
    _build_sealed(segment, next_first_id, describe)
    index = replace(segment.index.view(), block_sums=segment.blocks.all())
    return segment.info(sealed=True), index


def start_in_memory(file: File, header: Header) -> ActiveSegment:
    """Return *file* as a segment with an empty index that is on no disk."""
    index = IndexWriter.in_memory(first_id=header.first_id, created_us=header.created_us)
    return ActiveSegment(file, index, header.created_us)


def _build_sealed(segment: ActiveSegment, next_first_id: int, describe: Describe) -> None:
    read = reader_of(segment.file)
    walk = Walk(read, segment.file.size(), segment.first_id)
    build_index(walk, segment, describe)
    verdict = judge_sealed(walk, next_first_id, read)
    if verdict.ending is not Ending.CLEAN:
        raise judged_damage(segment.first_id, verdict)
