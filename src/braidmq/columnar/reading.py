"""Reading the durable log as Arrow batches: `read`, `batches`, `offsets`, `topic_counts`.

A data directory is enough, whether its broker runs or not: readers take no lock and write
nothing. Ids go from `start` up to but not including `end`; columns that are not asked for are
not read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypedDict, Unpack

import numpy as np
import pyarrow as pa

from braidmq.base.errors import ConfigError
from braidmq.base.limits import MIB
from braidmq.columnar.decoding.columns import OF_HEADERS, Columns, column_names, schema_of
from braidmq.columnar.decoding.decode import Decoding
from braidmq.columnar.loss import NOT_DURABLE, REPAIRED, RETAINED, Loss, Losses
from braidmq.columnar.segments.layout import ends_of, near_groups
from braidmq.columnar.segments.segments import (
    DENSE_WINDOW_ROWS,
    WINDOW_ROWS,
    Need,
    Picked,
    Segment,
)
from braidmq.columnar.segments.times import Times
from braidmq.columnar.segments.views import DurableView, view_of
from braidmq.columnar.selection import EVERYTHING, Selection

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 32 * MIB
BATCH_BYTES_MAX: Final = 1024 * MIB
"""Arrow's binary columns have 32-bit offsets; a single large record may exceed this."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class OfTopics(TypedDict, total=False):
    """The arguments of every query: which topics, and whether lost ids are an error."""

    topics: Iterable[str] | None
    pattern: str | None
    fail_on_data_loss: bool


class OfRange(TypedDict, total=False):
    """The arguments of `topic_counts`."""

    start: int | None
    end: int | None
    fail_on_data_loss: bool


class OfBatches(OfTopics, OfRange, total=False):
    """The arguments of `batches`."""

    columns: Sequence[str] | None
    headers: bool
    qos: int | None
    decoding: Decoding | None
    losses: list[Loss] | None
    batch_rows: int


class Wanted(OfBatches, total=False):
    """The arguments of a read of a directory, where more can be asked for; see `batches`."""

    start_time: datetime | int | None
    end_time: datetime | int | None
    allowed: Callable[[str], bool] | None
    batch_bytes: int


class Offsets(NamedTuple):
    """The ids in the log: from `earliest` up to but not including `latest`."""

    earliest: int
    latest: int


class TopicCount(NamedTuple):
    """The messages and payload bytes of a topic in a range of ids."""

    messages: int
    payload_bytes: int


def read(path: Path | str | DurableView, **wanted: Unpack[Wanted]) -> pa.Table:
    """Return the messages as one table, which must fit into memory; see `batches`."""
    found = batches(path, **wanted)
    return pa.Table.from_batches(found, found.schema)


def batches(path: Path | str | DurableView, **wanted: Unpack[Wanted]) -> "Batches":
    """Return the messages of the log below *path* in batches of bounded size, in id order.

    topics, pattern      names, or a regular expression for whole names; default: all
    start, end           ids, the end exclusive; default: all that is durable
    start_time, end_time moments (or microseconds since 1970), the end exclusive; they
                         override start and end
    qos                  only messages of this quality of service
    allowed              tells which topics may be seen; messages of others are left out
    headers, columns     add the column of headers; or return exactly these columns
    decoding             unseal and decode the payloads: `braidmq.columnar.decoding.decode`
    fail_on_data_loss    False: skip lost ids, with a warning, and add them to *losses*
    batch_rows, -_bytes  bounds of one batch

    Raises:
        ConfigError: An argument is not valid.
        TypeError: There is no such argument.
        DataLossError: While reading: an id of the range is lost.
        DamagedLogError: While reading: the log is damaged.
    """
    for name in wanted.keys() - Wanted.__annotations__.keys():
        raise TypeError(f"a read has no argument {name!r}: {', '.join(Wanted.__annotations__)}")
    return Batches(view_of(path), wanted)


class Batches:
    """An iterator of record batches that knows their schema before the first one."""

    def __init__(self, view: DurableView, wanted: Wanted) -> None:
        within = range_of(view, wanted)
        self.start, self.end = within.start, within.end
        self._selection = Selection(
            wanted.get("topics"),
            wanted.get("pattern"),
            wanted.get("qos"),
            wanted.get("allowed"),
            within.since_us,
            within.before_us,
        )
        self._names = column_names(wanted.get("columns"), headers=wanted.get("headers", False))
        self._decoding = wanted.get("decoding")
        self._rows, self._bytes = _bounds(wanted)
        self.schema = schema_of(self._names)
        if self._decoding is not None:
            self.schema = self._decoding.schema_behind(self.schema)
        fail = wanted.get("fail_on_data_loss", True)
        self._losses = Losses(str(view.root), fail=fail, noted=wanted.get("losses"))
        self._view = view
        self._found = self._read()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._found)

    def _read(self) -> Iterator[pa.RecordBatch]:
        found = windows(self._view, self.start, self.end, self._losses, self._selection)
        for segment, first, last in found:
            # A function, not its result: a rebuilt index may have the rows elsewhere.
            select = partial(self._selection.rows, segment, first, last)
            picked = segment.verified(select, self._need)
            for part in _cut(segment, picked, rows=self._rows, record_bytes=self._bytes):
                yield self._batch(Columns(segment, part))

    @property
    def _need(self) -> Need:
        # Verify only what will be returned: a read of ids and topics touches no record.
        if self._decoding is not None or not OF_HEADERS.isdisjoint(self._names):
            return Need.RECORDS
        return Need.PAYLOADS if "value" in self._names else Need.ROWS

    def _batch(self, columns: Columns) -> pa.RecordBatch:
        batch = columns.batch(self._names)
        return batch if self._decoding is None else self._decoding.decode(batch, columns)


def _bounds(wanted: Wanted) -> tuple[int, int]:
    rows = wanted.get("batch_rows", BATCH_ROWS)
    record_bytes = wanted.get("batch_bytes", BATCH_BYTES)
    if rows < 1:
        raise ConfigError("batch_rows", "must be at least 1")
    if not 1 <= record_bytes <= BATCH_BYTES_MAX:
        raise ConfigError("batch_bytes", f"must be between 1 and {BATCH_BYTES_MAX}")
    return rows, record_bytes


class Within(NamedTuple):
    """The ids from `start` to before `end`; the times are None unless they exclude some."""

    start: int
    end: int
    since_us: int | None = None
    before_us: int | None = None


def range_of(view: DurableView, wanted: Wanted) -> Within:
    """Return the first wanted id and the one after the last; by default all durable ones.

    Where the clock was set back, messages from before a moment are mixed with those from after
    it. Then the range has them all, and says which of their times are wanted.

    Raises:
        ConfigError: An id is negative.
    """
    start, end = wanted.get("start"), wanted.get("end")
    start_time, end_time = wanted.get("start_time"), wanted.get("end_time")
    times = None if start_time is None and end_time is None else Times(view)
    since_us = before_us = None
    if times is not None and start_time is not None:
        moment_us = microseconds(start_time)
        start = times.at(moment_us)
        since_us = moment_us if times.behind(moment_us) > start else None
    if times is not None and end_time is not None:
        moment_us = microseconds(end_time)
        end = times.behind(moment_us)
        before_us = moment_us if times.at(moment_us) < end else None
    start = view.earliest if start is None else start
    end = view.latest if end is None else end
    if start < 0 or end < 0:
        raise ConfigError("start" if start < 0 else "end", "must not be negative")
    return Within(start, end, since_us, before_us)


def microseconds(moment: datetime | int) -> int:
    """Return a moment as microseconds since 1970.

    Raises:
        ConfigError: It has no time zone.
    """
    if isinstance(moment, int):
        return moment
    if moment.tzinfo is None:
        raise ConfigError("start_time, end_time", "a datetime needs a time zone")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def windows(
    view: DurableView, start: int, end: int, losses: Losses, selection: Selection = EVERYTHING
) -> Iterator[tuple[Segment, int, int]]:
    """Yield the verified rows (segment, first, last) of the ids start..end; record losses.

    Segments in which *selection* finds nothing are skipped. Rows that it can choose by their
    topics alone are verified later, once they are picked: most of them never are.

    Raises:
        DataLossError: Ids are lost, and *losses* treats that as an error.
        DamagedLogError: The log is damaged.
    """
    if start >= end:
        return
    # No record has id 0: a read from 0 is a read from the start, and loses nothing.
    losses.note(max(start, 1), min(view.earliest, end) - 1, RETAINED)
    losses.note(max(start, view.latest), end - 1, NOT_DURABLE)
    for segment in view.segments(start, end, losses, hold=selection.is_partial):
        if selection.misses(segment):
            continue
        rows_max = WINDOW_ROWS if selection.is_partial else DENSE_WINDOW_ROWS
        for first, last in segment.windows(
            start, min(end, view.latest), rows_max, settled=selection.needs_rows
        ):
            for gap_first, gap_last in segment.gaps(first, last):
                losses.note(max(gap_first, start), min(gap_last, end - 1), REPAIRED)
            yield segment, first, last


def _cut(segment: Segment, picked: Picked, *, rows: int, record_bytes: int) -> Iterator[Picked]:
    """Yield what was picked in parts within the bounds, each of at least one row."""
    if not len(picked.rows):
        return
    if len(picked.rows) <= rows and segment.span(picked) <= record_bytes:
        yield picked
        return
    starts, ends = segment.starts_of(picked), ends_of(picked.rows)
    for part in near_groups(starts, ends, rows=rows, record_bytes=record_bytes):
        yield picked.part(part)


def offsets(path: Path | str | DurableView) -> Offsets:
    """Return the first id in the log, and the one after the last durable id.

    Raises:
        ConfigError: There is no log.
    """
    view = view_of(path)
    return Offsets(view.earliest, view.latest)


def topic_counts(
    path: Path | str | DurableView,
    *,
    start: int | None = None,
    end: int | None = None,
    fail_on_data_loss: bool = True,
) -> dict[str, TopicCount]:
    """Return the messages and payload bytes of each topic in a range, from the index alone.

    Raises:
        ConfigError: An argument is not valid.
        DataLossError: An id of the range is lost.
        DamagedLogError: The log is damaged.
    """
    view = view_of(path)
    start, end, *_ = range_of(view, {"start": start, "end": end})
    counts: dict[str, TopicCount] = {}
    losses = Losses(str(view.root), fail=fail_on_data_loss)
    for segment, first, last in windows(view, start, end, losses):
        rows = segment.rows[first:last]
        numbers = rows["topic"]
        # Topic 0 stands for records that are not messages. Weighted counts are floats, exact up
        # to 2^53 bytes, which is more than a segment holds.
        messages = np.bincount(numbers, minlength=len(segment.names))
        sizes = np.bincount(numbers, rows["payload_bytes"], len(segment.names))
        for number in np.nonzero(messages[1:])[0] + 1:
            name = segment.names[number]
            so_far = counts.get(name, TopicCount(0, 0))
            counts[name] = TopicCount(
                so_far.messages + int(messages[number]),
                so_far.payload_bytes + int(sizes[number]),
            )
    return counts
