"""Index rows and segment bytes as Arrow columns, named like those of Spark's Kafka source.

key            binary          the header `key`, else null
value          binary          the payload
topic          string
partition      int32           always 0
offset         int64           the id
timestamp      timestamp       when it was accepted: microseconds, UTC
timestampType  int32           always 1, "log append time"
headers        list<struct>    of key and value; null if there are none; only on request
qos            int32
priority       string          low, normal, high, critical
origin         string          blip, vibe, qumbed, http, spark
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from braidmq.base.errors import ConfigError, DamagedLogError
from braidmq.broker import topics as words
from braidmq.columnar.decoding.headers import HEADERS_TYPE, Headers, MalformedHeadersError
from braidmq.columnar.segments.layout import (
    HEADERS_AT,
    NOTHING,
    TOPIC_LENGTH_BYTES,
    FileOffsets,
    gather_bytes,
    is_run,
)
from braidmq.columnar.segments.segments import Picked, Segment
from braidmq.wal.segment import damage

KEY_HEADER: Final = b"key"
LOG_APPEND_TIME: Final = 1
REPEATED_ROWS: Final = 65_536
REPEATED_VALUES: Final = 16
"""Constant columns are cached: up to this many rows, and this many different values."""

TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
    "qos": pa.int32(),
    "priority": pa.string(),
    "origin": pa.string(),
}
OF_HEADERS: Final = frozenset({"key", "headers"})
"""Columns that need a message's headers."""


def _words(named: dict[int, str]) -> pa.Array:
    # A number without a name, of a later version, is shown as the number.
    return pa.array([named.get(number, str(number)) for number in range(256)], pa.string())


PRIORITIES: Final = _words(
    {
        words.PRIORITY_LOW: "low",
        words.PRIORITY_NORMAL: "normal",
        words.PRIORITY_HIGH: "high",
        words.PRIORITY_CRITICAL: "critical",
    }
)
ORIGINS: Final = _words(
    {
        words.ORIGIN_BLIP: "blip",
        words.ORIGIN_VIBE: "vibe",
        words.ORIGIN_QUMBED: "qumbed",
        words.ORIGIN_HTTP: "http",
        words.ORIGIN_SPARK: "spark",
    }
)


def schema_of(names: Sequence[str]) -> pa.Schema:
    """Return the schema of the columns *names*, in their order."""
    return pa.schema([(name, TYPES[name]) for name in names])


def column_names(columns: Sequence[str] | None, *, headers: bool) -> list[str]:
    """Return the names of the wanted columns; None means all.

    Raises:
        ConfigError: There is no such column, or one is named twice.
    """
    if columns is None:
        return [name for name in TYPES if headers or name != "headers"]
    for name in columns:
        if name not in TYPES:
            problem = f"there is no column {name!r}; there are: {', '.join(TYPES)}"
            raise ConfigError("columns", problem)
    if len(set(columns)) != len(columns):
        raise ConfigError("columns", "a column is named twice")
    return list(columns)


class Columns:
    """The columns of some rows of a segment, each made on request.

    The rows are in order, verified, and within a span that 32-bit offsets can address.
    """

    def __init__(self, segment: Segment, picked: Picked) -> None:
        self._segment = segment
        self._picked = picked
        self.rows = picked.rows
        self._headers: Headers | None = None
        self._buffer = segment.buffer if picked.copied is None else picked.copied

    def batch(self, names: Sequence[str]) -> pa.RecordBatch:
        """Return the columns *names* as a batch; without columns it still has its row count.

        Raises:
            DamagedLogError: Headers are not what the broker writes.
        """
        # A batch made from arrays has no rows without a column; one made from structs does.
        if not names:
            nothing = pa.StructArray.from_buffers(pa.struct([]), len(self.rows), [None])
            return pa.RecordBatch.from_struct_array(nothing)
        arrays = [_MAKERS[name](self) for name in names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema_of(names))

    def named_header(self, name: bytes) -> pa.Array:
        """Return the value of one header for each row, null where there is none; as binary.

        Raises:
            DamagedLogError: Headers are not what the broker writes.
        """
        return self._parsed().named(name)

    def value(self) -> pa.Array:
        """Return the payloads."""
        starts: FileOffsets = self.rows["payload_at"]
        if self._picked.moved is not None:
            starts = starts + self._picked.moved
        return gather_bytes(self._buffer, starts, starts + self.rows["payload_bytes"])

    def topic(self) -> pa.Array:
        """Return the topic names."""
        return _named(self._segment.name_array, self.rows["topic"])

    def _parsed(self) -> Headers:
        if self._headers is None and self._have_no_headers():
            self._headers = Headers(self._buffer, NOTHING, NOTHING, len(self.rows))
        if self._headers is None:
            rows = self.rows
            heads = HEADERS_AT[rows["kind"]]
            starts = self._segment.starts_of(self._picked) + heads
            topic_bytes = self._segment.name_bytes[rows["topic"]] + TOPIC_LENGTH_BYTES
            ends = rows["payload_at"].astype(np.int64) - topic_bytes
            if np.any(heads == 0) or np.any(ends < starts):
                raise self._damage()
            if self._picked.moved is not None:
                starts += self._picked.moved
                ends += self._picked.moved
            try:
                self._headers = Headers(self._buffer, starts, ends, len(rows))
            except MalformedHeadersError:
                raise self._damage() from None
        return self._headers

    def _have_no_headers(self) -> bool:
        """Tell whether these rows certainly have no headers, without reading any record.

        For a run of rows this is arithmetic: if heads, topics and payloads add up to all bytes
        from the first record to the last, nothing is left for headers.
        """
        rows = self.rows
        if not is_run(self._picked.chosen):
            return False
        kinds = np.bincount(rows["kind"], minlength=len(HEADERS_AT))
        topics = np.bincount(rows["topic"], minlength=len(self._segment.name_bytes))
        other = int(kinds @ HEADERS_AT) + int(topics @ self._segment.name_bytes)
        other += TOPIC_LENGTH_BYTES * len(rows) + int(rows["payload_bytes"].sum(dtype=np.int64))
        known = not np.any(kinds[HEADERS_AT == 0])
        return known and other == self._segment.span(self._picked)

    def headers(self) -> pa.Array:
        """Return the headers as lists."""
        try:
            return self._parsed().array()
        except MalformedHeadersError:
            raise self._damage() from None

    def _damage(self) -> DamagedLogError:
        ids = self.rows["id"]
        lost, at = (int(ids[0]), int(ids[-1])), int(self.rows["payload_at"][0])
        return damage(self._segment.first_id, lost, "malformed headers", offset=at)


def _named(
    names: pa.Array,
    numbers: NDArray[np.unsignedinteger[Any]],
    repeat: Callable[[pa.Scalar, int], pa.Array] = pa.repeat,
) -> pa.Array:
    # As a rule all rows of a batch have the same value: then nothing is looked up per row.
    if len(numbers) and (numbers == numbers[0]).all():
        return repeat(names[int(numbers[0])], len(numbers))
    return names.take(pa.array(numbers.astype(np.int32)))


def _repeated(value: pa.Scalar, count: int) -> pa.Array:
    """Return a value *count* times, as a slice of a cached array if that is long enough."""
    return _many(value).slice(0, count) if count <= REPEATED_ROWS else pa.repeat(value, count)


@lru_cache(maxsize=REPEATED_VALUES)
def _many(value: pa.Scalar) -> pa.Array:
    return pa.repeat(value, REPEATED_ROWS)


_MAKERS: Final[dict[str, Callable[[Columns], pa.Array]]] = {
    "key": lambda of: of.named_header(KEY_HEADER),
    "value": Columns.value,
    "topic": Columns.topic,
    "partition": lambda of: _repeated(pa.scalar(0, pa.int32()), len(of.rows)),
    "offset": lambda of: pa.array(of.rows["id"].astype(np.int64)),
    "timestamp": lambda of: pa.array(of.rows["timestamp_us"].astype(np.int64)).view(
        TYPES["timestamp"]
    ),
    "timestampType": lambda of: _repeated(pa.scalar(LOG_APPEND_TIME, pa.int32()), len(of.rows)),
    "headers": Columns.headers,
    "qos": lambda of: pa.array(of.rows["qos"].astype(np.int32)),
    "priority": lambda of: _named(PRIORITIES, of.rows["priority"], _repeated),
    "origin": lambda of: _named(ORIGINS, of.rows["origin"], _repeated),
}
assert _MAKERS.keys() == TYPES.keys()
