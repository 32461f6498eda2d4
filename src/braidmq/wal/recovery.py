"""Walking over a segment's records, and the verdict on how they end. No file, no clock.

A segment is given as a function that reads it. The verdict tells a torn tail from damage. A
crash leaves a torn tail, of records that were never acknowledged, and start-up cuts it off.
Damage has taken committed records, and only an operator may accept that loss:

    the last segment, beyond the durable mark, nothing fenced after it     torn tail
    the same, and every byte is zero                                       zero tail
    an intact record with a fence after the invalid one                    damage
    an intact record whose id is higher than the one that is due           damage
    an id at or below the durable mark                                     damage
    any segment but the last                                               damage

A valid record after an invalid one is not damage by itself: before a sync, a power cut may
keep any sectors of a batch, so its end can survive without its beginning. A *fenced* record was
written after everything before it had been synced; what is invalid before it was durable once.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from braidmq.base.ids import ID_MAX
from braidmq.base.limits import KIB, MIB, RECORD_BYTES_MAX
from braidmq.wal.format import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    SEGMENT_MAGIC,
    VERSION,
    Header,
    decode_header,
    record_at,
    scan,
)

Read = Callable[[int, int], bytes]
"""(size, offset) -> the bytes at offset; fewer at the end of the file."""

CHUNK_BYTES: Final = MIB
_SEARCH_BYTES: Final = 256 * KIB
_SHORTEST_RECORD: Final = RECORD_HEADER_BYTES + 1


class Ending(Enum):
    """How a segment's records end."""

    CLEAN = "clean"
    ZERO_TAIL = "zero tail"
    TORN_TAIL = "torn tail"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is at `offset`, after the last valid record; the ids are the ones that are lost."""

    ending: Ending
    offset: int
    first_id: int
    last_id: int
    reason: str


class Walk:
    """Goes over a segment's records in runs and verifies each one.

    `offset` and `next_id` say where it stands, `problem` why it stopped before the end, and
    `stray_id` the id of an intact record that is out of sequence there, else 0.
    """

    def __init__(
        self, read: Read, size: int, first_id: int, *, offset: int = HEADER_BYTES
    ) -> None:
        self._read = read
        self.size = size
        self.offset = offset
        self.next_id = first_id
        self.problem = ""
        self.stray_id = 0

    def runs(self) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
        """Yield (offset of the first record, records) until the next record is not valid."""
        want = CHUNK_BYTES
        while not self.problem and self.offset < self.size:
            asked = min(want, self.size - self.offset)
            # Never more than the file holds, whatever length a torn header announces.
            data = self._read(asked, self.offset)
            found = scan(data, self.next_id)
            start = self.offset
            self.offset += found.end
            self.next_id = found.next_id
            self.problem = found.problem
            self.stray_id = found.stray_id
            want = max(CHUNK_BYTES, found.wanted)
            left = self.size - self.offset
            if not self.problem and left and found.wanted > left:
                self.problem = f"truncated: {found.wanted} bytes expected, {left} present"
            elif not self.problem and len(data) < asked:
                self.problem = "unreadable: the file is shorter than it was"
            if found.records:
                yield start, found.records


def judge_header(data: bytes, first_id: int) -> tuple[Header | None, str]:
    """Return a segment's header, or None and the problem."""
    header = decode_header(data, SEGMENT_MAGIC)
    if header is None:
        return None, "bad segment header"
    if header.version != VERSION:
        return None, f"segment format version {header.version}, this version reads {VERSION}"
    if header.first_id != first_id:
        return None, f"segment header says first id {header.first_id}, its name {first_id}"
    return header, ""


def judge_sealed(walk: Walk, next_first_id: int, read: Read) -> Verdict:
    """Return the verdict on a segment that has a successor, whose first id is given."""
    # A sealed segment was synced before its successor was made: nothing in it may be torn.
    if walk.problem:
        behind = find_record(read, walk.offset, walk.size, walk.next_id - 1, fenced=False)
        last = (behind[1] if behind else next_first_id) - 1
        return _damage(walk, last, f"{walk.problem} in a sealed segment")
    if walk.next_id != next_first_id:
        return _damage(walk, next_first_id - 1, "missing segment or records")
    return _clean(walk)


def judge_last(walk: Walk, durable_id: int, read: Read) -> Verdict:
    """Return the verdict on the last segment, given the durable mark."""
    due = walk.next_id
    if not walk.problem:
        if durable_id >= due:
            return _damage(walk, durable_id, "the log ends before the durable mark")
        return _clean(walk)
    # A file system may extend a file before it writes the bytes: a crash then leaves zeros.
    zero = _is_zero(read, walk.offset, walk.size)
    behind = None
    if not zero:
        behind = find_record(read, walk.offset, walk.size, due - 1, fenced=True)
    last = max(behind[1] - 1 if behind else durable_id, due)
    # Also if the tail is all zeros: the mark says that something else was there.
    if durable_id >= due:
        return _damage(walk, last, f"{walk.problem} at or below the durable mark {durable_id}")
    # Ids have no holes: an intact record with a later id means that records are gone. One with
    # an earlier id is a leftover of bytes that were overwritten, and proves nothing.
    if walk.stray_id > due:
        return _damage(walk, walk.stray_id - 1, walk.problem)
    if behind:
        return _damage(walk, last, f"{walk.problem}, with valid record {behind[1]} after it")
    ending = Ending.ZERO_TAIL if zero else Ending.TORN_TAIL
    return Verdict(ending, walk.offset, due, due, walk.problem)


def find_record(
    read: Read, start: int, size: int, after_id: int, *, fenced: bool
) -> tuple[int, int] | None:
    """Return (offset, id) of the first intact record from *start* on, id above *after_id*.

    With *fenced*, only a record that carries the fence counts. The length of the invalid record
    cannot be trusted, so every byte is tried as a start. This serves to classify damage and to
    repair it; recovery never resumes after a hole.
    """
    looks_like = _header_pattern(after_id, fenced=fenced)
    for base in range(start, size, _SEARCH_BYTES):
        # Overlap the next chunk by a header: a record may start at the last byte of this one.
        data = read(min(_SEARCH_BYTES + _SHORTEST_RECORD, size - base), base)
        for match in looks_like.finditer(data):
            at = match.start()
            if at >= _SEARCH_BYTES:
                break
            found = _record_id_at(read, base + at, size, data[at : at + RECORD_HEADER_BYTES])
            if found > after_id:
                return base + at, found
    return None


def _header_pattern(after_id: int, *, fenced: bool) -> re.Pattern[bytes]:
    """Return a pattern for the header of any record that may follow.

    The upper half of its id is that of *after_id* or one more, the length is below the limit,
    the type is not 0. Random bytes match once in billions, so checksums are rarely computed:
    without this filter a damaged gigabyte would cost a billion of them.
    """
    upper = after_id >> 32
    halves = [min(half, ID_MAX >> 32).to_bytes(4, "little") for half in (upper, upper + 1)]
    kinds = b"\x81-\xff" if fenced else b"^\x00\x80"
    return re.compile(
        b"(?s)(?=.{4}(?:%b|%b).{3}[\x00\x01].{4}[%b])"
        % (re.escape(halves[0]), re.escape(halves[1]), kinds)
    )


def _record_id_at(read: Read, offset: int, size: int, header: bytes) -> int:
    length = int.from_bytes(header[8:12], "little")
    whole = RECORD_HEADER_BYTES + length
    if length > RECORD_BYTES_MAX or offset + whole > size:
        return 0
    found = record_at(read(whole, offset), 0)
    return found[0] if found else 0


def _is_zero(read: Read, start: int, size: int) -> bool:
    chunks = (read(min(CHUNK_BYTES, size - at), at) for at in range(start, size, CHUNK_BYTES))
    return all(chunk.count(0) == len(chunk) for chunk in chunks)


def _clean(walk: Walk) -> Verdict:
    return Verdict(Ending.CLEAN, walk.offset, walk.next_id, walk.next_id, "")


def _damage(walk: Walk, last_id: int, reason: str) -> Verdict:
    return Verdict(Ending.DAMAGE, walk.offset, walk.next_id, max(last_id, walk.next_id), reason)
