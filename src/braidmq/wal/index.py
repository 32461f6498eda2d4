"""The index beside a segment: written with it, read block by block, rebuilt from it.

The index is derived data: it is never synced, and never trusted over the segment. Rows are
verified by the checksum of their block, and the record that a row points to by its own. If any
of this fails, the index is rebuilt. The bytes are drawn in `braidmq.wal.format` and
`braidmq.wal.tables`.
"""

import re
from array import array
from dataclasses import dataclass
from typing import Final, Literal

from braidmq.base.records import CLOCK_KIND, GAP_KIND
from braidmq.wal.disk import LOG_DIR, File, Files, read_all, write_all
from braidmq.wal.format import HEADER_BYTES, INDEX_MAGIC, ROW_BYTES, checksum, encode_header
from braidmq.wal.memory import MemoryFile
from braidmq.wal.tables import (
    BLOCK_ROWS,
    ROW_BLOCK_BYTES,
    TRAILER_BYTES,
    Trailer,
    decode_tables,
    decode_trailer,
    encode_tables,
    is_index_of,
    number_bytes,
)

_INDEX_NAME: Final = re.compile(r"(\d{20})\.idx")
_TOPIC_AT: Final = 24  # in a row: after id, time, offset and length
_TOPIC_CODES: Final[dict[int, Literal["B", "H", "I"]]] = {1: "B", 2: "H", 4: "I"}
_KIND_AT: Final = ROW_BYTES - 1
_ID_BYTES: Final = 8
_END_AT: Final = ROW_BYTES - 16
"""How far before a row's end its payload's offset and length are."""


def index_path(first_id: int) -> str:
    """Return the path of the index of the segment that starts with *first_id*."""
    return f"{LOG_DIR}/{first_id:020}.idx"


def remove_orphans(files: Files, first_id: int) -> None:
    """Remove the indexes of segments below *first_id*, which retention has deleted.

    Retention removes a segment before its index, and does not sync the latter.
    """
    for name in files.list_dir(LOG_DIR):
        found = _INDEX_NAME.fullmatch(name)
        if found and int(found[1]) < first_id:
            files.unlink(f"{LOG_DIR}/{name}")


@dataclass(slots=True)
class IndexView:
    """An index as it was at one moment, readable from any thread.

    The writer goes on appending to the same file and the same `topics`. A view is unaffected:
    it reads only its first `rows` rows, and no row among them has the number of a newer topic.
    """

    file: File
    first_id: int
    rows: int
    gap_count: int
    topics: dict[bytes, int]
    row_sums: list[int]
    last_sum: int
    block_sums: list[int]

    def block(self, number: int) -> bytes | None:
        """Return the rows of block *number*, or None if their checksum does not match."""
        rows = min(BLOCK_ROWS, self.rows - number * BLOCK_ROWS)
        data = read_all(self.file, rows * ROW_BYTES, HEADER_BYTES + number * ROW_BLOCK_BYTES)
        whole = rows == BLOCK_ROWS
        expected = self.row_sums[number] if whole else self.last_sum
        return data if len(data) == rows * ROW_BYTES and checksum(data) == expected else None

    def end_before(self, row: int) -> int:
        """Return where the record of the row before *row* ends in the segment file."""
        # Not verified: `cut_records` finds no intact record there if it is wrong.
        data = read_all(self.file, 8, HEADER_BYTES + row * ROW_BYTES - _END_AT)
        return int.from_bytes(data[:4], "little") + int.from_bytes(data[4:], "little")

    def row_after(self, after_id: int) -> int:
        """Return the number of the first row whose id is above *after_id* (or `rows`)."""
        # Ids are consecutive unless a repair wrote gap records.
        if not self.gap_count:
            return min(max(after_id + 1 - self.first_id, 0), self.rows)
        low, high = 0, self.rows
        while low < high:
            middle = (low + high) // 2
            data = read_all(self.file, _ID_BYTES, HEADER_BYTES + middle * ROW_BYTES)
            if int.from_bytes(data, "little") > after_id:
                high = middle
            else:
                low = middle + 1
        return low


class BlockSums:
    """Running CRC-32C of each block of a file that only grows.

    `sums` holds the blocks that are full, `last` the sum of the one that is not.
    """

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.sums: list[int] = []
        self.last = 0
        self.filled = 0

    def update(self, data: bytes) -> None:
        """Add the bytes that follow those of the last call."""
        at = 0
        size = len(data)
        while at < size:
            part = data[at : at + self.block_bytes - self.filled]
            self.last = checksum(part, self.last)
            self.filled += len(part)
            at += len(part)
            if self.filled == self.block_bytes:
                self.sums.append(self.last)
                self.last = 0
                self.filled = 0

    def place(self) -> tuple[int, int, int]:
        """Return what `go_back` needs to forget all later calls."""
        return len(self.sums), self.last, self.filled

    def go_back(self, place: tuple[int, int, int]) -> None:
        """Forget what was added since `place` returned this."""
        full, self.last, self.filled = place
        del self.sums[full:]

    def all(self) -> list[int]:
        """Return the sum of every block, the unfinished one included."""
        return [*self.sums, self.last] if self.filled else list(self.sums)


class TopicNumbers:
    """The topic number of each row of a growing index, in as few bytes as the numbers allow."""

    def __init__(self) -> None:
        self._width = 1
        self._data = bytearray()

    def update(self, rows: bytes, topic_count: int) -> None:
        """Add the rows that follow those of the last call, now of *topic_count* topics."""
        # Numbers get wider with the 256th and the 65,536th topic; older ones are widened then.
        if topic_count >> 8 * self._width:
            before = memoryview(self._data).cast(_TOPIC_CODES[self._width])
            width = number_bytes(topic_count)
            wider = bytearray(array(_TOPIC_CODES[width], before).tobytes())
            self._width, self._data = width, wider
        column = memoryview(rows).cast(_TOPIC_CODES[self._width])
        self._data += column[_TOPIC_AT // self._width :: ROW_BYTES // self._width].tobytes()

    def shorten(self, rows: int) -> None:
        """Forget all but the first *rows*."""
        del self._data[rows * self._width :]

    def all(self) -> bytes:
        """Return the number of each row."""
        return bytes(self._data)


class IndexWriter:
    """The index of the active segment."""

    def __init__(self, file: File, first_id: int) -> None:
        self.file = file
        self.first_id = first_id
        self.rows = 0
        self.gap_count = 0
        self.has_steps = False
        self.topics: dict[bytes, int] = {b"": 0}
        self._sums = BlockSums(ROW_BLOCK_BYTES)
        self._numbers = TopicNumbers()

    @classmethod
    def create(
        cls, files: Files, path: str, *, first_id: int, created_us: int
    ) -> "IndexWriter":
        """Start an empty index at *path*; nothing of it is synced, since it can be rebuilt.

        Raises:
            OSError: It could not be made.
        """
        file = files.open(path, write=True, create=True)
        file.truncate(0)
        write_all(file, encode_header(INDEX_MAGIC, first_id, created_us), 0)
        return cls(file, first_id)

    @classmethod
    def in_memory(cls, *, first_id: int, created_us: int) -> "IndexWriter":
        """Start an empty index that is on no disk: there is no room for it."""
        file = MemoryFile()
        write_all(file, encode_header(INDEX_MAGIC, first_id, created_us), 0)
        return cls(file, first_id)

    @property
    def size(self) -> int:
        """Where the next row goes."""
        return HEADER_BYTES + self.rows * ROW_BYTES

    def grow(self, rows: bytes, gap_count: int = 0) -> None:
        """Account for *rows*, which are now in the file."""
        self.rows += len(rows) // ROW_BYTES
        self.gap_count += gap_count
        self.has_steps = self.has_steps or CLOCK_KIND in rows[_KIND_AT::ROW_BYTES]
        self._sums.update(rows)
        self._numbers.update(rows, len(self.topics) - 1)

    def place(self) -> tuple[int, int, tuple[int, int, int]]:
        """Return what `go_back` needs to forget all later rows and topics."""
        return self.rows, len(self.topics), self._sums.place()

    def go_back(self, place: tuple[int, int, tuple[int, int, int]]) -> None:
        """Forget what was added since `place` returned this; the file stays as it is."""
        self.rows, topics, sums = place
        # Numbers given to new topics must not outlive rows that were never written, or the
        # next batch would leave holes in the numbering, which the tables cannot express.
        while len(self.topics) > topics:
            self.topics.popitem()
        self._sums.go_back(sums)
        self._numbers.shorten(self.rows)

    def append(self, rows: bytes) -> None:
        """Write *rows*, which may include those of gap records.

        Raises:
            OSError: They were not all written.
        """
        write_all(self.file, rows, self.size)
        self.grow(rows, rows[_KIND_AT::ROW_BYTES].count(GAP_KIND))

    def seal(self, trailer: Trailer, block_sums: list[int]) -> None:
        """Write the tables and the trailer after the rows.

        Raises:
            OSError: They were not all written.
        """
        names = list(self.topics)[1:]  # without the name of number 0, which stands for none
        tables = encode_tables(
            trailer, names, self._numbers.all(), self._sums.all(), block_sums
        )
        write_all(self.file, tables, self.size)

    def view(self) -> IndexView:
        """Return the index as it is now."""
        # Dict and list are shared, not copied: the writer only adds to them, and the view uses
        # nothing that was added after it was made. `last_sum` changes, so it is copied.
        return IndexView(
            self.file,
            first_id=self.first_id,
            rows=self.rows,
            gap_count=self.gap_count,
            topics=self.topics,
            row_sums=self._sums.sums,
            last_sum=self._sums.last,
            block_sums=[],
        )


def read_trailer(
    files: Files, first_id: int, created_us: int, size: int
) -> tuple[File, Trailer] | None:
    """Return a sealed index and its trailer if it belongs to this segment of *size* bytes.

    None if the index is missing, torn, stale or of another version: rebuild it then. First id,
    creation time and size together tell a stale index, for example one from before a repair.
    """
    try:
        file = files.open(index_path(first_id), write=False, create=False)
    except FileNotFoundError:
        return None
    index_bytes = file.size()
    if index_bytes < HEADER_BYTES + TRAILER_BYTES:
        return None
    if not is_index_of(read_all(file, HEADER_BYTES, 0), first_id, created_us):
        return None
    end = read_all(file, TRAILER_BYTES, index_bytes - TRAILER_BYTES)
    trailer = decode_trailer(end, index_bytes)
    return (file, trailer) if trailer is not None and trailer.segment_bytes == size else None


def open_sealed(files: Files, first_id: int, created_us: int, size: int) -> IndexView | None:
    """Return a sealed index whose trailer and tables are verified, or None: rebuild it."""
    found = read_trailer(files, first_id, created_us, size)
    if found is None:
        return None
    file, trailer = found
    length = file.size() - TRAILER_BYTES - trailer.topics_at
    tables = decode_tables(read_all(file, length, trailer.topics_at), trailer)
    if tables is None:
        return None
    return IndexView(
        file,
        first_id=first_id,
        rows=trailer.rows,
        gap_count=trailer.gap_count,
        topics=tables.topics,
        row_sums=tables.row_sums,
        last_sum=tables.row_sums[-1] if tables.row_sums else 0,
        block_sums=tables.block_sums,
    )
