"""Segments as a reader maps them: their rows, and bytes that are verified before they are used.

A segment is mapped once and stays readable when retention deletes its file meanwhile. Whoever
maps a segment does not lock, and never writes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from braidmq.base.errors import DamagedLogError
from braidmq.base.records import GAP_KIND
from braidmq.columnar.checksums import RECORDS_PER_BLOCK_MIN, Blocks, records_are_intact
from braidmq.columnar.indexes import (
    DoubtError,
    Index,
    gap_of,
    growing_index,
    rebuilt_index,
    sealed_index,
)
from braidmq.columnar.layout import Bytes, Numbers, Rows, ends_of, take_rows
from braidmq.wal.format import HEADER_BYTES
from braidmq.wal.index import index_path
from braidmq.wal.recovery import judge_header
from braidmq.wal.segment import segment_path
from braidmq.wal.tables import BLOCK_ROWS

WINDOW_ROWS: Final = 64 * BLOCK_ROWS
"""Rows that are looked at together, so that memory does not grow with a segment's length."""


def map_file(path: Path) -> pa.Buffer:
    """Return the bytes of a file as they are now, without reading them.

    Raises:
        FileNotFoundError: It is not there.
    """
    if not path.stat().st_size:
        return pa.py_buffer(b"")
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


class Segment:
    """One segment from its first id up to *last_id*, all of which is durable.

    Raises:
        FileNotFoundError: It is not there.
        DamagedLogError: It cannot be read.
    """

    def __init__(self, root: Path, first_id: int, last_id: int, *, sealed: bool) -> None:
        self.first_id = first_id
        self.last_id = last_id
        self._sealed = sealed
        self.buffer = map_file(root / segment_path(first_id))
        self._data: Bytes = np.frombuffer(self.buffer, np.uint8)
        head = self.buffer.slice(0, min(HEADER_BYTES, self.buffer.size)).to_pybytes()
        header, problem = judge_header(head, first_id)
        if header is None:
            raise self._damage(problem)
        self._take(self._open_index(root, header.created_us))

    def _open_index(self, root: Path, created_us: int) -> Index:
        first_id, last_id = self.first_id, self.last_id
        try:
            buffer = map_file(root / index_path(first_id))
        except FileNotFoundError:
            return self._rebuilt()
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
            self.names = [name.decode() for name in index.names]
        except UnicodeDecodeError:
            raise self._damage("a topic is not UTF-8") from None
        self.name_array = pa.array(self.names, pa.string())
        self.name_bytes: Numbers = np.array([len(name) for name in index.names], np.int64)

    def _damage(self, reason: str) -> DamagedLogError:
        return DamagedLogError(
            segment_path(self.first_id),
            offset=0,
            first_id=self.first_id,
            last_id=max(self.first_id, self.last_id),
            reason=reason,
        )

    @property
    def rows(self) -> Rows:
        """The rows of the index; `windows` says which can be believed."""
        return self.index.rows

    @property
    def blocks_verified(self) -> int:
        """How many blocks of the segment were verified as a whole so far."""
        return int(self._blocks.verified.sum())

    def windows(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the rows first..last, verified, that have the ids start up to before *end*.

        A gap record that reaches into these ids is among them.

        Raises:
            DamagedLogError: The segment is damaged.
        """
        at = start
        while at < end:
            first, behind = self._find(at), self._find(end)
            if first >= behind:
                return
            last = min(behind, (first // WINDOW_ROWS + 1) * WINDOW_ROWS)
            self._settled(first, last)
            yield first, last
            # By ids: if the index was made anew meanwhile, rows may have moved.
            at = int(self.rows["id"][last - 1]) + 1 if last < behind else end

    def _settled(self, first: int, last: int) -> None:
        try:
            self.index.check(first, last)
        except DoubtError:
            self.doubt()

    def doubt(self) -> None:
        """Find out who is right, index or segment, by walking over the segment.

        Raises:
            DamagedLogError: It is the segment that is wrong.
        """
        if self.index.is_proof:
            raise self._damage("its records do not agree with themselves")
        self._take(self._rebuilt())

    def _find(self, wanted_id: int) -> int:
        """Return the row of an id, or of the gap record that stands for it."""
        rows = self.index.rows
        if not self.index.gap_count:
            return min(max(wanted_id - self.first_id, 0), len(rows))
        self._settled(0, len(rows))
        rows = self.index.rows
        row = int(np.searchsorted(rows["id"], np.uint64(max(wanted_id, 0))))
        if row and rows["kind"][row - 1] == GAP_KIND:
            gap_last = gap_of(self.buffer, rows[row - 1])[1]
            row -= gap_last >= wanted_id
        return row

    def gaps(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ids (first, last) of the gap records in rows[first:last].

        Raises:
            DamagedLogError: One is not what was written.
        """
        if not self.index.gap_count:
            return []
        found = self.verified(
            lambda: np.nonzero(self.rows["kind"][first:last] == GAP_KIND)[0] + first, whole=True
        )
        return [gap_of(self.buffer, self.rows[row]) for row in found.tolist()]

    def verified(self, select: Callable[[], Numbers], *, whole: bool) -> Numbers:
        """Return the rows that *select* selects, their payloads or *whole* records verified.

        It is called again if the index had to be made anew.

        Raises:
            DamagedLogError: They are not what was written.
        """
        chosen = select()
        if not self._are_intact(chosen, whole=whole):
            self.doubt()
            chosen = select()
        return chosen

    def _are_intact(self, chosen: Numbers, *, whole: bool) -> bool:
        if self.index.is_proof or not len(chosen):
            return True
        ends = ends_of(take_rows(self.rows, chosen))
        starts = self.starts(chosen)
        if not self.index.block_sums:
            return self._records_are_intact(chosen, starts, ends)
        used = starts if whole else self.rows["payload_at"][chosen].astype(np.int64)
        blocks = self._blocks.unverified(used, ends)
        if len(chosen) < RECORDS_PER_BLOCK_MIN * len(blocks):
            return self._records_are_intact(chosen, starts, ends)
        return self._blocks.are_intact(blocks)

    def _records_are_intact(self, chosen: Numbers, starts: Numbers, ends: Numbers) -> bool:
        ids = self.rows["id"][chosen].astype(np.int64)
        return records_are_intact(self._data, ids, starts, ends)

    def starts(self, chosen: Numbers) -> Numbers:
        """Return where the records of these rows, which are in order, start."""
        if not len(chosen):
            return np.zeros(0, np.int64)
        if chosen[0]:
            return ends_of(take_rows(self.rows, chosen - 1))
        return np.append(HEADER_BYTES, ends_of(take_rows(self.rows, chosen[1:] - 1)))
