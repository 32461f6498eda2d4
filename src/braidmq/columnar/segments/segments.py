"""Segments as a reader maps them: index rows, and bytes that are verified before use.

A mapped segment stays readable if retention deletes its file meanwhile. Readers take no lock
and never write. They read only durable records, and the broker no longer writes there.
"""

import os
from collections.abc import Callable, Iterator
from enum import IntEnum
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from braidmq.base.errors import DamagedLogError
from braidmq.base.records import GAP_KIND
from braidmq.columnar.segments.indexes import (
    NO_NUMBERS,
    DoubtError,
    Index,
    SealedIndex,
    TopicColumn,
    gap_of,
    growing_index,
    rebuilt_index,
    sealed_index,
)
from braidmq.columnar.segments.layout import (
    Bytes,
    Numbers,
    Rows,
    ends_at,
    ends_of,
    is_run,
    starts_at,
    take_rows,
)
from braidmq.columnar.segments.verifying import (
    Blocks,
    blocks_are_cheaper,
    records_are_intact,
    rows_of_records,
    rows_of_sizes,
)
from braidmq.wal.format import HEADER_BYTES
from braidmq.wal.index import index_path
from braidmq.wal.recovery import judge_header
from braidmq.wal.segment import damage, segment_path
from braidmq.wal.tables import BLOCK_ROWS

WINDOW_ROWS: Final = 128 * BLOCK_ROWS
"""Rows that are processed together, so that memory does not grow with a segment's length."""

DENSE_WINDOW_ROWS: Final = 4 * BLOCK_ROWS
"""The same if every row is wanted: few, so that verified bytes are still in the CPU's cache."""

SPARSE_ROWS: Final = 16
"""If at most one of this many rows is wanted, records are verified instead of index blocks."""


class Need(IntEnum):
    """How far rows must be verified, in increasing order.

    SIZES: ids are right, payload lengths are an estimate. ROWS: all fields of the rows.
    PAYLOADS: the payloads as well. RECORDS: the whole records.
    """

    SIZES = 0
    ROWS = 1
    PAYLOADS = 2
    RECORDS = 3


class Picked(NamedTuple):
    """Rows that were picked: their numbers in order, their content, where their records start.

    If the records were copied, the copy is *copied*, and *moved* is the distance from each
    record in the segment to its place in the copy.
    """

    chosen: Numbers
    rows: Rows
    starts: Numbers | None = None
    copied: pa.Buffer | None = None
    moved: Numbers | None = None

    def part(self, rows: slice) -> "Picked":
        """Return a slice of them."""
        starts = None if self.starts is None else self.starts[rows]
        moved = None if self.moved is None else self.moved[rows]
        return Picked(self.chosen[rows], self.rows[rows], starts, self.copied, moved)


class Question(NamedTuple):
    """Which rows are wanted: those of some topics, as flags by topic number, in a window."""

    topics: bytes
    first: int
    last: int


FileIdentity = tuple[int, int]
"""Device and inode: a file, whatever its name and content."""


class KnownTopics(NamedTuple):
    """The verified topic numbers of a file's first rows, in order."""

    file: FileIdentity
    created_us: int
    numbers: TopicColumn

    def of(self, file: FileIdentity, created_us: int) -> TopicColumn:
        """Return the numbers if this is the same segment file, else none."""
        is_same = (file, created_us) == (self.file, self.created_us)
        return self.numbers if is_same else NO_NUMBERS


class MappedFile:
    """A file, mapped at its current size; pages are read when they are used.

    Raises:
        FileNotFoundError: It does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            self._state = _state(status)
            self.identity: FileIdentity = self._state[:2]
            # Not Arrow's memory map: it reads ahead the whole file, and little is wanted.
            self.buffer: pa.Buffer = pa.py_buffer(
                mmap(file.fileno(), 0, access=ACCESS_READ) if status.st_size else b""
            )

    def is_current(self) -> bool:
        """Tell whether the name still belongs to this file, and it was not written since."""
        try:
            return _state(self._path.stat()) == self._state
        except FileNotFoundError:
            return False


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Segment:
    """One segment from its first id up to *last_id*, all of which is durable.

    For the active segment, *known* may hold topics that an earlier read verified.

    Raises:
        FileNotFoundError: It does not exist.
        DamagedLogError: It cannot be read.
    """

    def __init__(
        self,
        root: Path,
        first_id: int,
        last_id: int,
        *,
        sealed: bool,
        known: "KnownTopics | None" = None,
    ) -> None:
        self.first_id = first_id
        self.last_id = last_id
        self._sealed = sealed
        file = MappedFile(root / segment_path(first_id))
        self._files = [file]
        self._identity = file.identity
        self.buffer = file.buffer
        self._data: Bytes = np.frombuffer(self.buffer, np.uint8)
        head = self.buffer.slice(0, min(HEADER_BYTES, self.buffer.size)).to_pybytes()
        header, problem = judge_header(head, first_id)
        if header is None:
            raise self._damage(problem)
        self._created_us = header.created_us
        self._take(self._open_index(root, known))
        self.mapped_bytes = sum(int(file.buffer.size) for file in self._files)

    def _open_index(self, root: Path, known: "KnownTopics | None") -> Index:
        first_id, last_id, created_us = self.first_id, self.last_id, self._created_us
        try:
            file = MappedFile(root / index_path(first_id))
        except FileNotFoundError:
            return self._rebuilt()
        self._files.append(file)
        buffer = file.buffer
        if buffer.size < HEADER_BYTES:
            return self._rebuilt()
        index: Index | None
        if self._sealed:
            index = sealed_index(
                buffer,
                first_id=first_id,
                last_id=last_id,
                created_us=created_us,
                segment_bytes=self.buffer.size,
            )
        else:
            index = growing_index(
                buffer,
                self.buffer,
                first_id=first_id,
                last_id=last_id,
                created_us=created_us,
                known=NO_NUMBERS if known is None else known.of(self._identity, created_us),
            )
        return index if index is not None else self._rebuilt()

    def _rebuilt(self) -> Index:
        return rebuilt_index(
            self.buffer, first_id=self.first_id, last_id=self.last_id, sealed=self._sealed
        )

    def _take(self, index: Index) -> None:
        self.index = index
        self._blocks = Blocks(self._data, index.block_sums)
        try:
            self.names = [name.decode() for name in index.topics]
        except UnicodeDecodeError:
            raise self._damage("a topic is not UTF-8") from None
        # Both of these hold row numbers, which mean nothing for another index.
        self._asked: tuple[Question, Numbers] | None = None
        self._placed: tuple[Numbers, Numbers, Numbers] | None = None
        self.name_array = pa.array(self.names, pa.string())
        self.name_bytes: Numbers = np.array([len(name) for name in index.topics], np.int64)

    def is_current(self) -> bool:
        """Tell whether the mapped files are still those of the log."""
        return all(file.is_current() for file in self._files)

    def renew(self) -> bool:
        """Forget what was verified, so that the next read verifies it again.

        Returns False if that is not possible: the segment is still growing, or its index was
        rebuilt in memory, which verified the segment as a whole.
        """
        if not isinstance(self.index, SealedIndex):
            return False
        self.index.renew()
        self._blocks = Blocks(self._data, self.index.block_sums)
        return True

    def remember(self, question: Question, chosen: Numbers) -> None:
        """Keep the rows that answer a question, if they are few: it may be asked again."""
        chosen.flags.writeable = False  # later reads share it
        if len(chosen) * SPARSE_ROWS < question.last - question.first:
            self._asked = question, chosen

    def chosen_before(self, question: Question) -> Numbers | None:
        """Return the rows that answer a question, if it is the one that was asked last."""
        return self._asked[1] if self._asked and self._asked[0] == question else None

    def known_topics(self) -> "KnownTopics":
        """Return the topics of its rows, from the first one on as far as they are verified."""
        return KnownTopics(self._identity, self._created_us, self.index.numbers)

    def number(self, topic: str) -> int:
        """Return the number of a topic; 0 if the segment has no message of it."""
        # No topic contains a lone surrogate, but asking for one is no error: it is just absent.
        return self.index.topics.get(topic.encode(errors="surrogatepass"), 0)

    def _damage(self, reason: str) -> DamagedLogError:
        return damage(self.first_id, (self.first_id, max(self.first_id, self.last_id)), reason)

    @property
    def rows(self) -> Rows:
        """The rows of the index; only those that `windows` yielded are verified."""
        return self.index.rows

    def windows(
        self, start: int, end: int, rows_max: int = WINDOW_ROWS, *, settled: bool = True
    ) -> Iterator[tuple[int, int]]:
        """Yield the verified rows first..last that hold the ids from *start* to before *end*.

        A gap record that reaches into this range is included. Without *settled*, rows whose
        topics are known from elsewhere are yielded unverified; `verified` checks those that
        are picked.

        Raises:
            DamagedLogError: The segment is damaged.
        """
        at = start
        while at < end:
            first, behind = self._find(at), self._row_at(end)
            if first >= behind:
                return
            last = min(behind, (first // rows_max + 1) * rows_max)
            # Continue by id, not by row: if the index is rebuilt meanwhile, rows move.
            at = self._id_at(last) if last < behind else end
            unsettled = first if settled else max(first, len(self.index.numbers))
            if unsettled < last:
                self._settled(unsettled, last)
            yield first, last

    def _settled(self, first: int, last: int) -> None:
        try:
            self.index.check(first, last)
        except DoubtError:
            self.doubt()

    def doubt(self) -> None:
        """Settle a disagreement of index and segment by reading the whole segment.

        Raises:
            DamagedLogError: The segment is wrong, not the index.
        """
        if self.index.is_proof:
            raise self._damage("its records do not agree with themselves")
        self._take(self._rebuilt())

    def _id_at(self, row: int) -> int:
        return int(self.rows["id"][row]) if self.index.gap_count else self.first_id + row

    def _row_at(self, wanted_id: int) -> int:
        """Return the first row whose id is not below this one."""
        rows = self.index.rows
        if not self.index.gap_count:
            return min(max(wanted_id - self.first_id, 0), len(rows))
        # Gap records make ids run ahead of rows. Only verified rows can be searched, and to
        # verify them may replace the index.
        self._settled(0, len(rows))
        return int(np.searchsorted(self.rows["id"], np.uint64(max(wanted_id, 0))))

    def _find(self, wanted_id: int) -> int:
        """Return the row of an id, or of the gap record that stands for it."""
        row = self._row_at(wanted_id)
        before = self.gaps(row - 1, row) if row else []
        return row - 1 if before and before[0][1] >= wanted_id else row

    def gaps(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the id ranges (first, last) of the gap records in rows[first:last].

        Raises:
            DamagedLogError: A gap record is damaged.
        """
        if not self.index.gap_count:
            return []
        found = self.verified(
            lambda: np.nonzero(self.rows["kind"][first:last] == GAP_KIND)[0] + first,
            Need.RECORDS,
        )
        return [gap_of(self.buffer, row) for row in found.rows]

    def verified(self, select: Callable[[], Numbers], need: Need) -> Picked:
        """Return the rows that *select* returns, verified as far as *need* says.

        *select* is called again if the index had to be rebuilt.

        Raises:
            DamagedLogError: A record is damaged.
        """
        picked = self._picked(select(), need)
        if picked is None:
            self.doubt()
            chosen = select()
            picked = Picked(chosen, take_rows(self.rows, chosen))
        return picked

    def _picked(self, chosen: Numbers, need: Need) -> Picked | None:
        """Return the chosen rows, verified for *need*; None if index and segment disagree."""
        if self.index.is_proof or not len(chosen):
            return Picked(chosen, take_rows(self.rows, chosen))
        numbers = self.index.numbers
        # Rows within the known topic column were chosen unverified, see `windows`. Verify now
        # what is needed of them: their records if they are few, else their index blocks.
        if int(chosen[-1]) < len(numbers):
            if need is not Need.ROWS and self._is_sparse(chosen):
                return self._picked_sparsely(numbers, chosen, need)
            try:
                self.index.check(int(chosen[0]), int(chosen[-1]) + 1)
            except DoubtError:
                return None
        if need > Need.ROWS and not self._are_intact(chosen, whole=need is Need.RECORDS):
            return None
        return Picked(chosen, take_rows(self.rows, chosen))

    def _picked_sparsely(
        self, numbers: TopicColumn, chosen: Numbers, need: Need
    ) -> Picked | None:
        """Do the same by the records alone: few rows are wanted, so their blocks cost more."""
        ids = chosen + self.first_id
        if need is Need.SIZES:
            return Picked(chosen, rows_of_sizes(ids, self.rows["payload_bytes"][chosen]))
        starts, ends = self._positions(chosen)
        found = rows_of_records(
            self.buffer,
            starts,
            ends,
            ids=ids,
            topics=numbers[chosen],
            name_bytes=self.name_bytes,
        )
        if found is None:
            return None
        rows, copy = found
        if copy is None:
            return Picked(chosen, rows, starts)
        return Picked(chosen, rows, starts, copy.buffer, copy.moved)

    def _positions(self, chosen: Numbers) -> tuple[Numbers, Numbers]:
        """Return where the records of these rows start and end, according to the index.

        A repeated read of the same topics of a held segment picks the same rows: keep them.
        """
        if self._placed is None or self._placed[0] is not chosen:
            self._placed = chosen, self.starts(chosen), ends_at(self.rows, chosen)
        return self._placed[1:]

    def _is_sparse(self, chosen: Numbers) -> bool:
        # With gap records an id does not follow from its row number: sparse picking needs that.
        around = int(chosen[-1]) + 1 - int(chosen[0])
        return not self.index.gap_count and len(chosen) * SPARSE_ROWS < around

    def _are_intact(self, chosen: Numbers, *, whole: bool) -> bool:
        if self.index.block_sums:
            starts, ends = self._ranges(chosen)
            # The rows are verified already: for payloads, the bytes before them do not matter.
            used = starts if whole else self.rows["payload_at"][chosen[: len(starts)]]
            blocks = self._blocks.unverified(used.astype(np.int64), ends)
            if blocks_are_cheaper(len(blocks), len(chosen), int((ends - starts).sum())):
                return self._blocks.are_intact(blocks)
        starts, ends = self.starts(chosen), ends_of(take_rows(self.rows, chosen))
        ids = self.rows["id"][chosen].astype(np.int64)
        return records_are_intact(self.buffer, ids, starts, ends)

    def _ranges(self, chosen: Numbers) -> tuple[Numbers, Numbers]:
        """Return where the records of these rows start and end; a run counts as one range."""
        if is_run(chosen):
            last = chosen[-1:]
            return self.starts(chosen[:1]), ends_of(take_rows(self.rows, last))
        return self.starts(chosen), ends_of(take_rows(self.rows, chosen))

    def span(self, picked: Picked) -> int:
        """Return the bytes from the start of the first record to the end of the last."""
        if not len(picked.chosen):
            return 0
        return int(ends_of(picked.rows[-1:])[0] - self.starts_of(picked.part(slice(1)))[0])

    def starts_of(self, picked: Picked) -> Numbers:
        """Return where the records of these rows start."""
        return self.starts(picked.chosen) if picked.starts is None else picked.starts

    def starts(self, chosen: Numbers) -> Numbers:
        """Return where the records of these rows, which are in order, start."""
        return starts_at(self.rows, chosen)
