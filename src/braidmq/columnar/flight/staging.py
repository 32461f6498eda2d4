"""Sending a stage: rows for a later commit, in small batches, with an end mark.

To the server, a connection that breaks looks like one that has finished sending. Only the mark
tells that all rows have arrived.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain

import pyarrow as pa
import pyarrow.flight as fl

from braidmq.columnar.flight.connections import Connection
from braidmq.columnar.flight.failures import BrokenStreamError
from braidmq.columnar.flight.requests import (
    STAGE_BATCH_BYTES,
    EndOfStage,
    Stage,
    StageRequest,
    encode,
)


def send_stage(
    connection: Connection,
    topic: str | None,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> Stage:
    """Send rows and return the stage that the broker stores.

    The stream is opened once the first batch is there: the endpoint takes a limited number of
    streams, and one that waits for its rows must not block others.

    Raises:
        BraidError: The endpoint's error.
    """
    rows = iter(batches)
    first = next(rows, None)
    writer, answers = connection.put(StageRequest(topic), schema)
    sent = 0
    try:
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
