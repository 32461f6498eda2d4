"""Sending stages."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from braidmq.base.errors import RefusedRowError
from braidmq.columnar.flight.connections import Connection
from braidmq.columnar.flight.failures import BrokenStreamError, UnavailableError, encode_failure
from braidmq.columnar.flight.requests import (
    STAGE_BATCH_BYTES,
    STAGE_BATCH_BYTES_MAX,
    EndOfStage,
    Stage,
    encode,
)
from braidmq.columnar.flight.streams import pieces, send_stage
from tests.unit.columnar.endpoints import scripted

SCHEMA = pa.schema([("value", pa.binary())])
STAGE = Stage("ab" * 16, 7)


def rows(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], schema=SCHEMA)


def test_the_number_of_rows_is_sent_last() -> None:
    """The mark has a batch of its own, so that it is never lost with rows."""
    with scripted(answers=[encode(STAGE)]) as server:
        found = send_stage(server.connection(), "t", SCHEMA, [rows(b"1", b"2"), rows(b"3")])

        assert STAGE == found
        assert [(2, None), (1, None), (0, encode(EndOfStage(3)))] == server.received


def test_a_stage_may_be_empty() -> None:
    """It has no rows, and a mark that says so."""
    with scripted(answers=[encode(STAGE)]) as server:
        send_stage(server.connection(), None, SCHEMA, [])

        assert [(0, encode(EndOfStage(0)))] == server.received


def test_the_endpoint_is_not_called_before_there_is_a_row() -> None:
    """A task that waits for rows must not keep out one that has some."""
    failing = (rows(bytes(1 // none)) for none in [0])
    with pytest.raises(ZeroDivisionError):
        send_stage(Connection("grpc://127.0.0.1:1", "k", None), "t", SCHEMA, failing)


def test_rows_that_fail_in_the_middle_leave_no_mark() -> None:
    """The broker must notice that it did not get all of them."""

    def one_and_no_more() -> Iterator[pa.RecordBatch]:
        yield rows(b"1")
        raise ZeroDivisionError

    with scripted(answers=[encode(STAGE)]) as server:
        with pytest.raises(ZeroDivisionError):
            send_stage(server.connection(), "t", SCHEMA, one_and_no_more())

        assert [(1, None)] == server.received


def test_a_refusal_is_noticed_while_sending() -> None:
    """The client raises the reason, however much is still to be sent."""
    error = fl.FlightServerError("no", encode_failure(RefusedRowError(0, "value is null")))
    batch = rows(*100 * [bytes(10_000)])
    with scripted(error=error) as server, pytest.raises(RefusedRowError, match="row 0: value"):
        send_stage(server.connection(), "t", SCHEMA, (batch for _ in range(200)))


def test_a_stage_without_an_answer_is_an_error() -> None:
    """Without one, the client knows nothing about its rows."""
    with (
        scripted(answers=[]) as server,
        pytest.raises(BrokenStreamError, match="has not confirmed"),
    ):
        send_stage(server.connection(), "t", SCHEMA, [rows(b"1")])


def test_an_endpoint_that_does_not_listen_is_unavailable() -> None:
    """The caller has to send the rows again."""
    connection = Connection("grpc://127.0.0.1:1", "k", None)
    with pytest.raises(UnavailableError):
        send_stage(connection, "t", SCHEMA, [rows(b"1")])


def test_large_batches_are_sent_in_pieces() -> None:
    """Each is small, or a single row; together they are the batch."""
    batch = rows(*(bytes(size) for size in (1, STAGE_BATCH_BYTES, 2, 3, 2 * STAGE_BATCH_BYTES)))
    found = list(pieces(batch))

    assert batch.to_pylist() == [row for piece in found for row in piece.to_pylist()]
    assert all(len(piece) == 1 or piece.nbytes <= STAGE_BATCH_BYTES for piece in found)
    assert all(piece.nbytes < STAGE_BATCH_BYTES_MAX for piece in found)
    assert [batch.slice(0, 0)] == list(pieces(batch.slice(0, 0)))
