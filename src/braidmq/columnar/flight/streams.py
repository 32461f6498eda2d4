"""Streams from and to an endpoint: complete, or an error.

A connection that breaks can look like the end of a stream, to either side. So each stream ends
with an empty batch that carries a mark: the number of rows, and of a read also the ids that it
skipped. A stream that ends without its mark, or with another number of rows, is broken.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl

from braidmq.columnar.decoding.columns import schema_of
from braidmq.columnar.decoding.decode import Decoding
from braidmq.columnar.flight.connections import Connection
from braidmq.columnar.flight.failures import BrokenStreamError, EndpointFailedError
from braidmq.columnar.flight.requests import (
    STAGE_BATCH_BYTES,
    EndOfRead,
    EndOfStage,
    ReadRequest,
    Stage,
    StageRequest,
    encode,
)
from braidmq.columnar.loss import Loss, warn


def columns_to_fetch(wanted: Sequence[str], decoding: Decoding | None) -> list[str]:
    """Return the columns to fetch: the wanted ones, and those that decoding needs."""
    needed: list[str] = []
    if decoding is not None:
        needed = ["value", "topic", "headers"] if decoding.unseals else ["value"]
    return [*wanted, *(name for name in needed if name not in wanted)]


class FetchedColumns:
    """The columns of a fetched batch, as decoding needs them."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def value(self) -> pa.Array:
        """Return the payloads."""
        return self._batch.column("value")

    def topic(self) -> pa.Array:
        """Return the topic names."""
        return self._batch.column("topic")

    def named_header(self, name: bytes) -> pa.Array:
        """Return the value of one header for each row, null where there is none; as binary."""
        headers = self._batch.column("headers")
        entries = headers.flatten()
        rows = pc.list_parent_indices(headers)
        found = pc.equal(entries.field("key"), name.decode())  # a key occurs once per message
        places = pa.array(range(len(headers)), pa.int64())
        # For each row, its position among the matches, or null.
        at = pc.index_in(places, value_set=rows.filter(found).cast(pa.int64()))
        return entries.field("value").filter(found).take(at)


class FetchedBatches:
    """An iterator of record batches that knows their schema before the first one.

    The stream is opened with the first batch, and closed with the last one or by `close`.
    """

    def __init__(
        self,
        connection: Connection,
        request: ReadRequest,
        *,
        wanted: Sequence[str],
        decoding: Decoding | None,
        losses: list[Loss] | None,
    ) -> None:
        self._connection = connection
        self._request = request
        self._wanted = list(wanted)
        self._decoding = decoding
        self._losses = losses
        assert request.columns is not None
        self._fetched = schema_of(request.columns)
        self.schema = schema_of(wanted)
        if decoding is not None:
            self.schema = decoding.schema_behind(self.schema)
        self._found = self._read()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._found)

    def close(self) -> None:
        """Cancel a stream that is not read to its end."""
        self._found.close()

    def _read(self) -> Generator[pa.RecordBatch]:
        reader = self._connection.get(self._request)
        try:
            if not reader.schema.equals(self._fetched):
                text = f"{self._connection.address} sends other columns: another version?"
                raise EndpointFailedError(text)
            yield from self._batches(reader)
        finally:
            # Without this, the endpoint would go on sending to a reader that stopped early.
            reader.cancel()

    def _batches(self, reader: fl.FlightStreamReader) -> Iterator[pa.RecordBatch]:
        rows = 0
        while True:
            with self._connection.typed_errors():
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    break
            if chunk.app_metadata is not None:
                self._finish(self._connection.decoded(EndOfRead, chunk.app_metadata), rows)
                return
            rows += len(chunk.data)
            yield self._decoded(chunk.data)
        raise BrokenStreamError(f"{self._connection.address} ended a stream after {rows} rows")

    def _finish(self, mark: EndOfRead, rows: int) -> None:
        if mark.rows != rows:
            text = f"{self._connection.address} sent {mark.rows} rows, {rows} arrived"
            raise BrokenStreamError(text)
        for lost in mark.losses:
            loss = Loss(lost.first_id, lost.last_id, lost.reason)
            if self._losses is not None:
                self._losses.append(loss)
            warn(self._connection.address, loss)

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._decoding is None:
            return batch
        return self._decoding.decode(batch.select(self._wanted), FetchedColumns(batch))


def send_stage(
    connection: Connection,
    topic: str | None,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> Stage:
    """Send rows and return the stage that the broker stores.

    The stream is opened once the first batch is there: the endpoint takes a limited number of
    streams, and one that waits for its rows must not block others. They are sent once it has a
    place: until then the broker would hold them.

    Raises:
        BraidError: The endpoint's error.
    """
    rows = iter(batches)
    first = next(rows, None)
    writer, answers = connection.put(StageRequest(topic, waits=True), schema)
    sent = 0
    try:
        with connection.typed_errors():
            if answers.read() is None:
                writer.close()  # raises the endpoint's reason, if there is one
        for batch in chain(() if first is None else (first,), rows):
            for piece in pieces(batch):
                _write(connection, writer, piece, None)
                sent += len(piece)
        nothing = pa.RecordBatch.from_pylist([], schema=schema)
        _write(connection, writer, nothing, encode(EndOfStage(sent)))
        with connection.typed_errors():
            writer.done_writing()
            answer = answers.read()
            writer.close()
    except BaseException:
        with suppress(fl.FlightError, pa.ArrowException, OSError):
            writer.close()
        raise
    if answer is None:
        raise BrokenStreamError(f"{connection.address} has not confirmed a stage")
    return connection.decoded(Stage, answer)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in slices of about `STAGE_BATCH_BYTES`, each of at least one row."""
    if batch.nbytes <= STAGE_BATCH_BYTES or len(batch) <= 1:
        yield batch
        return
    middle = len(batch) // 2
    yield from pieces(batch.slice(0, middle))
    yield from pieces(batch.slice(middle))


def _write(
    connection: Connection,
    writer: fl.FlightStreamWriter,
    batch: pa.RecordBatch,
    mark: bytes | None,
) -> None:
    with connection.typed_errors():
        try:
            if mark is None:
                writer.write_batch(batch)
            else:
                writer.write_with_metadata(batch, mark)
        except (fl.FlightError, pa.ArrowException, OSError):
            writer.close()  # raises the endpoint's reason, which says more than this error
            raise
