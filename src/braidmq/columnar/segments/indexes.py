"""The index of a segment as verified columns, whichever way it was made.

    sealed     rows are verified by the index's own row sums
    growing    has no sums yet: every row is compared with the record that it points to
    rebuilt    made in memory from the segment, which is verified on the way

A reader never writes: it leaves the data directory unchanged, even a stale index. Each kind has

    rows        the index rows; `check` verifies some of them, or raises DoubtError
    numbers     the topics of the first rows, or of all: verified copies, which stay right
                whatever happens to the file
    topics      the topic names by number, the first one empty
    gap_count   how many rows are of gap records
    has_steps   whether a row is of a CLOCK record: timestamps may go back behind it
    block_sums  checksums of the segment's blocks; empty unless it is sealed
    is_proof    whether making the index has verified the whole segment
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from braidmq.base.records import CLOCK_KIND, GAP_KIND
from braidmq.broker.records import describe
from braidmq.columnar.segments.layout import (
    HEADERS_AT,
    MESSAGE_HEAD,
    RECORD_HEAD,
    ROW,
    TOPIC_LENGTH,
    TOPIC_LENGTH_BYTES,
    Numbers,
    Rows,
    ends_of,
    gather_bytes,
    gather_structs,
    rows_of,
    starts_at,
    starts_of,
    take_rows,
)
from braidmq.columnar.segments.verifying import checksum, records_are_intact
from braidmq.wal.format import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    ROW_BYTES,
    TYPE_MASK,
    decode_gap,
)
from braidmq.wal.maintenance.rebuild import rows_of as index_rows_of
from braidmq.wal.recovery import Ending, Walk, judge_last, judge_sealed
from braidmq.wal.segment import judged_damage
from braidmq.wal.tables import (
    BLOCK_ROWS,
    ROW_BLOCK_BYTES,
    TRAILER_BYTES,
    Tables,
    Trailer,
    decode_tables,
    decode_trailer,
    is_index_of,
    number_bytes,
)

TopicColumn = NDArray[np.unsignedinteger[Any]]

CHECKED_ROWS: Final = 16_384
"""Rows of a growing index to compare at a time: few enough to stay in the CPU's cache."""

NO_NUMBERS: Final[TopicColumn] = np.zeros(0, np.uint32)
_NO_SUMS: Final[list[int]] = []


class DoubtError(Exception):
    """Index and segment disagree; reading the whole segment will tell which one is wrong."""


class SealedIndex:
    """An index whose tables and trailer match the segment."""

    is_proof = False

    def __init__(self, buffer: pa.Buffer, tables: Tables, trailer: Trailer) -> None:
        self._buffer = buffer
        self._row_sums = tables.row_sums
        self._checked = np.zeros(len(tables.row_sums), np.bool_)
        self.rows = rows_of(buffer, trailer.rows, HEADER_BYTES)
        self.numbers: TopicColumn = np.frombuffer(
            tables.numbers, f"<u{number_bytes(len(tables.topics) - 1)}"
        )
        self.topics = tables.topics
        self.gap_count = trailer.gap_count
        self.has_steps = trailer.has_steps
        self.block_sums = tables.block_sums

    def check(self, first: int, last: int) -> None:
        """Verify the blocks of these rows, each at most once."""
        for block in range(first // BLOCK_ROWS, -(-last // BLOCK_ROWS)):
            if self._checked[block]:
                continue
            rows = min(BLOCK_ROWS, len(self.rows) - block * BLOCK_ROWS)
            at = HEADER_BYTES + block * ROW_BLOCK_BYTES
            data = np.frombuffer(self._buffer, np.uint8, rows * ROW_BYTES, at)
            if checksum(data) != self._row_sums[block]:
                raise DoubtError
            self._checked[block] = True

    def renew(self) -> None:
        """Forget what was verified: each block is verified again when it is used."""
        self._checked[:] = False


def sealed_index(
    buffer: pa.Buffer, *, first_id: int, last_id: int, created_us: int, segment_bytes: int
) -> SealedIndex | None:
    """Return the index in *buffer* if it belongs to this segment, else None: rebuild it."""
    size = buffer.size
    if size < HEADER_BYTES + TRAILER_BYTES or not _is_index_of(buffer, first_id, created_us):
        return None
    trailer = decode_trailer(buffer.slice(size - TRAILER_BYTES).to_pybytes(), size)
    if trailer is None or (trailer.segment_bytes, trailer.last_id) != (segment_bytes, last_id):
        return None
    length = size - TRAILER_BYTES - trailer.topics_at
    tables = decode_tables(buffer.slice(trailer.topics_at, length).to_pybytes(), trailer)
    return None if tables is None else SealedIndex(buffer, tables, trailer)


def _is_index_of(buffer: pa.Buffer, first_id: int, created_us: int) -> bool:
    return is_index_of(buffer.slice(0, HEADER_BYTES).to_pybytes(), first_id, created_us)


class GrowingIndex:
    """The index of the active segment, up to the durable mark.

    The topics of its first rows may be *known*: an earlier read verified them.
    """

    is_proof = False
    block_sums = _NO_SUMS

    def __init__(
        self, rows: Rows, segment: pa.Buffer, first_id: int, known: TopicColumn = NO_NUMBERS
    ) -> None:
        self._segment = segment
        self._first_id = first_id
        self._checked = range(0)
        self.rows = rows
        self.gap_count = int(np.count_nonzero(rows["kind"] == GAP_KIND))
        self.has_steps = bool(np.any(rows["kind"] == CLOCK_KIND))
        # A repair may have put a gap record where other rows were: then nothing is known.
        self.numbers = NO_NUMBERS if self.gap_count else known[: len(rows)]
        self._names = self._read_names()
        self._name_bytes = np.array([len(name) for name in self._names], np.int64)
        self.topics = {name: number for number, name in enumerate(self._names)}
        if len(self.topics) < len(self._names):
            raise DoubtError

    def _read_names(self) -> list[bytes]:
        # The file of a growing index has no table of names. Numbers are given in order of first
        # use, so the first row with a new highest number points to a record with that name.
        highest = np.maximum.accumulate(self.rows["topic"])
        grown = np.nonzero(np.diff(highest, prepend=np.uint32(0)))[0]
        if not np.array_equal(highest[grown], np.arange(1, len(grown) + 1)):
            raise DoubtError
        rows = self.rows[grown]
        starts = starts_at(self.rows, grown)
        ids = rows["id"].astype(np.int64)
        if not records_are_intact(self._segment, ids, starts, ends_of(rows)):
            raise DoubtError
        topics_at = self._topics_at(rows, starts, self._heads(rows, starts))
        names = gather_bytes(self._segment, topics_at, rows["payload_at"].astype(np.int64))
        return [b"", *names.to_pylist()]

    def _heads(self, rows: Rows, starts: Numbers) -> Rows:
        behind = starts + MESSAGE_HEAD.itemsize
        if np.any(behind > rows["payload_at"]) or np.any(behind > self._segment.size):
            raise DoubtError
        return gather_structs(self._segment, starts, MESSAGE_HEAD)

    @staticmethod
    def _topics_at(rows: Rows, starts: Numbers, heads: Rows) -> Numbers:
        """Return where the topic names of messages start, behind their lengths."""
        fixed = HEADERS_AT[rows["kind"]]
        topics_at: Numbers = starts + fixed + heads["headers_bytes"] + TOPIC_LENGTH_BYTES
        if np.any(fixed == 0) or np.any(topics_at > rows["payload_at"]):
            raise DoubtError
        return topics_at

    def check(self, first: int, last: int) -> None:
        """Compare these rows with the heads of their records."""
        # Reads go forward, window by window, so the last checked range is enough to remember.
        if self._checked.start <= first and last <= self._checked.stop:
            return
        for start in range(first, last, CHECKED_ROWS):
            self._check(start, min(start + CHECKED_ROWS, last))
        self._checked = range(first, last)
        known = len(self.numbers)
        if first <= known < last:
            self.numbers = np.concatenate([self.numbers, self.rows["topic"][known:last]])

    def _check(self, first: int, last: int) -> None:
        rows = self.rows[first:last]
        starts = starts_of(self.rows, first, last)
        self._check_order(first, rows, rows["id"].astype(np.int64))
        # Only messages have a head with timestamp, headers and topic; the others are compared
        # by what every record has.
        messages = np.nonzero(rows["topic"])[0]
        self._check_messages(take_rows(rows, messages), starts[messages])
        if len(messages) < len(rows):
            others = np.nonzero(rows["topic"] == 0)[0]
            rows, starts = rows[others], starts[others]
            if np.any(starts + RECORD_HEAD.itemsize > self._segment.size):
                raise DoubtError
            heads = gather_structs(self._segment, starts, RECORD_HEAD)
            self._check_heads(rows, starts, heads, are_messages=False)

    def _check_heads(
        self, rows: Rows, starts: Numbers, heads: Rows, *, are_messages: bool
    ) -> None:
        ends = ends_of(rows)
        kinds = heads["kind"] & TYPE_MASK
        if not (
            np.array_equal(heads["id"], rows["id"])
            and np.array_equal(starts + RECORD_HEADER_BYTES + heads["length"], ends)
            and np.array_equal(kinds, rows["kind"])
            and np.all((HEADERS_AT[kinds] > 0) == are_messages)
            and int(ends.max(initial=0)) <= self._segment.size
        ):
            raise DoubtError

    def _check_order(self, first: int, rows: Rows, ids: Numbers) -> None:
        # Each id must follow the one before, or the last id of a gap record before it.
        behind = ids + 1
        for row in np.nonzero(rows["kind"] == GAP_KIND)[0].tolist():
            behind[row] = gap_of(self._segment, rows[row])[1] + 1
        due = self._first_id
        if first:
            before = self.rows[first - 1]
            is_gap = before["kind"] == GAP_KIND
            due = (gap_of(self._segment, before)[1] if is_gap else int(before["id"])) + 1
        if ids[0] != due or not np.array_equal(ids[1:], behind[:-1]):
            raise DoubtError

    def _check_messages(self, rows: Rows, starts: Numbers) -> None:
        heads = self._heads(rows, starts)
        self._check_heads(rows, starts, heads, are_messages=True)
        topics_at = self._topics_at(rows, starts, heads)
        numbers = rows["topic"].astype(np.int64)
        payload_at = rows["payload_at"].astype(np.int64)
        lengths = gather_structs(self._segment, topics_at - TOPIC_LENGTH_BYTES, TOPIC_LENGTH)
        said = ("timestamp_us", "qos", "priority", "origin")
        if not (
            np.array_equal(self._name_bytes[numbers], payload_at - topics_at)
            and np.array_equal(lengths["length"], payload_at - topics_at)
            and all(np.array_equal(heads[name], rows[name]) for name in said)
        ):
            raise DoubtError
        found = gather_bytes(self._segment, topics_at, payload_at)
        if not found.equals(pa.array(self._names, pa.binary()).take(pa.array(numbers))):
            raise DoubtError


def growing_index(
    buffer: pa.Buffer,
    segment: pa.Buffer,
    *,
    first_id: int,
    last_id: int,
    created_us: int,
    known: TopicColumn = NO_NUMBERS,
) -> GrowingIndex | None:
    """Return the index in *buffer* up to the id *last_id*, or None: rebuild it."""
    if not _is_index_of(buffer, first_id, created_us):
        return None
    count = min((buffer.size - HEADER_BYTES) // ROW_BYTES, last_id + 1 - first_id)
    if count <= 0:
        return None
    rows = rows_of(buffer, count, HEADER_BYTES)
    if rows["id"][-1] != last_id:
        # There are fewer rows than ids only if there is a gap record.
        count = int(np.searchsorted(rows["id"], np.uint64(last_id), side="right"))
        rows = rows[:count]
    try:
        index = GrowingIndex(rows, segment, first_id, known)
        if not count or _last_id(rows, segment) < last_id:
            return None
    except DoubtError:
        return None
    return index


def _last_id(rows: Rows, segment: pa.Buffer) -> int:
    last = rows[-1]
    return gap_of(segment, last)[1] if last["kind"] == GAP_KIND else int(last["id"])


def gap_of(segment: pa.Buffer, row: np.void) -> tuple[int, int]:
    """Return the first and the last id of a gap record.

    Raises:
        DoubtError: It is not a gap record.
    """
    body = segment.slice(int(row["payload_at"]), int(row["payload_bytes"])).to_pybytes()
    gap = decode_gap(body)
    if gap is None:
        raise DoubtError
    return gap


class RebuiltIndex:
    """An index that was made in memory from its segment, verifying every record."""

    is_proof = True
    block_sums = _NO_SUMS
    numbers = NO_NUMBERS

    def __init__(self, rows: bytes, topics: dict[bytes, int]) -> None:
        self.rows: Rows = np.frombuffer(rows, ROW)
        self.topics = topics
        self.gap_count = int(np.count_nonzero(self.rows["kind"] == GAP_KIND))
        self.has_steps = bool(np.any(self.rows["kind"] == CLOCK_KIND))

    def check(self, first: int, last: int) -> None:
        """Do nothing: every row was verified when the index was made."""


Index = SealedIndex | GrowingIndex | RebuiltIndex


def rebuilt_index(
    segment: pa.Buffer, *, first_id: int, last_id: int, sealed: bool
) -> RebuiltIndex:
    """Return an index of the segment's records up to *last_id*, each of them verified.

    Raises:
        DamagedLogError: A record is damaged, missing or of an unknown type.
    """

    def read(size: int, offset: int) -> bytes:
        length = min(size, segment.size - offset)
        return segment.slice(offset, length).to_pybytes() if length > 0 else b""

    walk = Walk(read, segment.size, first_id)
    topics: dict[bytes, int] = {b"": 0}
    rows = bytearray()
    for start, records in walk.runs():
        # Records after *last_id* may not be durable yet, and a power cut may still take them.
        wanted = [record for record in records if record[0] <= last_id]
        rows += index_rows_of(first_id, start, wanted, describe, topics)
        if walk.next_id > last_id and not sealed:
            break  # the broker may still be writing after the durable mark
    if sealed:
        verdict = judge_sealed(walk, last_id + 1, read)
    elif walk.next_id <= last_id:
        verdict = judge_last(walk, last_id, read)
    else:
        return RebuiltIndex(bytes(rows), topics)
    if verdict.ending is not Ending.CLEAN:
        raise judged_damage(first_id, verdict)
    return RebuiltIndex(bytes(rows), topics)
