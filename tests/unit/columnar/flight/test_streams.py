"""Batches read over the network: complete, or an error."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from braidmq.columnar import Loss, TypedSchema
from braidmq.columnar.decoding.columns import schema_of
from braidmq.columnar.decoding.decode import Decoding
from braidmq.columnar.decoding.headers import HEADERS_TYPE
from braidmq.columnar.decoding.unsealing import Unsealing
from braidmq.columnar.flight.connections import Connection
from braidmq.columnar.flight.failures import (
    BrokenStreamError,
    EndpointFailedError,
    UnavailableError,
    encode_failure,
)
from braidmq.columnar.flight.requests import EndOfRead, LostIds, ReadRequest, encode
from braidmq.columnar.flight.streams import FetchedBatches, FetchedColumns, columns_to_fetch
from tests.unit.columnar.endpoints import scripted, skipped_line

NAMES = ["topic", "offset"]
SCHEMA = schema_of(NAMES)
TWO = pa.record_batch([["a", "b"], [1, 2]], schema=SCHEMA)
NOTHING = TWO.slice(0, 0)


def fetched(connection: Connection, losses: list[Loss] | None = None) -> FetchedBatches:
    request = ReadRequest(columns=NAMES)
    return FetchedBatches(connection, request, wanted=NAMES, decoding=None, losses=losses)


def end(rows: int, *losses: LostIds) -> tuple[pa.RecordBatch, bytes]:
    return NOTHING, encode(EndOfRead(rows, list(losses)))


def test_a_complete_stream_is_what_was_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its last batch is a mark without rows; losses are passed on and logged."""
    losses: list[Loss] = []
    with scripted(schema=SCHEMA, stream=[TWO, TWO, end(4, LostIds(7, 9, "gone"))]) as server:
        found = fetched(server.connection(), losses)

        assert SCHEMA == found.schema
        assert [TWO, TWO] == list(found)
        assert [skipped_line(server.address, Loss(7, 9, "gone"))] == caplog.messages
    assert [Loss(7, 9, "gone")] == losses


BROKEN: dict[str, tuple[list[Any], str]] = {
    "nothing at all": ([], "ended a stream after 0 rows"),
    "no mark": ([TWO, TWO], "ended a stream after 4 rows"),
    "a row too few": ([TWO, end(3)], "sent 3 rows, 2 arrived"),
    "a row too many": ([TWO, end(1)], "sent 1 rows, 2 arrived"),
}


@pytest.mark.parametrize(("stream", "problem"), BROKEN.values(), ids=BROKEN)
def test_a_short_read_is_never_silent(stream: list[Any], problem: str) -> None:
    """A stream that ends early is an error, even if the endpoint reports none."""
    with (
        scripted(schema=SCHEMA, stream=stream) as server,
        pytest.raises(BrokenStreamError, match=problem),
    ):
        list(fetched(server.connection()))


def test_an_error_in_the_middle_comes_after_the_rows_before_it() -> None:
    """It keeps its type and its text."""
    error = fl.FlightUnavailableError("no", encode_failure(UnavailableError("shutting down")))
    with scripted(schema=SCHEMA, stream=[TWO], error=error) as server:
        found = fetched(server.connection())

        assert TWO == next(found)
        with pytest.raises(UnavailableError, match=r"^shutting down$"):
            next(found)


def test_a_malformed_mark_is_the_endpoints_fault() -> None:
    """Nothing is guessed."""
    with (
        scripted(schema=SCHEMA, stream=[(NOTHING, b"{}")]) as server,
        pytest.raises(EndpointFailedError, match="is not a EndOfRead"),
    ):
        list(fetched(server.connection()))


def test_columns_other_than_those_requested_are_refused() -> None:
    """Types are a contract with Spark, so a difference is reported at once."""
    other = pa.schema([("topic", pa.large_string()), ("offset", pa.int64())])
    with (
        scripted(schema=other, stream=[]) as server,
        pytest.raises(EndpointFailedError, match="sends other columns"),
    ):
        list(fetched(server.connection()))


def test_nothing_is_requested_before_the_first_batch() -> None:
    """The schema is known without the endpoint; a read that has not begun can be closed."""
    found = fetched(Connection("grpc://127.0.0.1:1", "key", None))

    assert SCHEMA == found.schema
    found.close()
    assert [] == list(found)


def test_columns_that_decoding_needs_are_fetched_too() -> None:
    """Only those, and none of them twice."""
    typed = Decoding(TypedSchema.built_in("sensor.Temperature"))
    opened = Decoding(unsealing=Unsealing(bytes(range(32))))

    assert ["offset"] == columns_to_fetch(["offset"], None)
    assert ["offset", "value"] == columns_to_fetch(["offset"], typed)
    assert ["value", "topic", "headers"] == columns_to_fetch(["value"], opened)


def test_a_header_is_found_by_its_name(tmp_path: Path) -> None:
    """One value for each row, null for rows without it and rows without headers."""
    rows: list[list[tuple[str, bytes]] | None] = [
        [("a", b"1"), ("b", b"2")],
        None,
        [("b", b"3")],
        [("a", b"")],
    ]
    headers = pa.array(rows, HEADERS_TYPE)
    columns = FetchedColumns(pa.record_batch({"headers": headers}))
    later = FetchedColumns(pa.record_batch({"headers": headers}).slice(1))

    assert [b"1", None, None, b""] == columns.named_header(b"a").to_pylist()
    assert [None, b"3", None] == later.named_header(b"b").to_pylist()
    assert 4 * [None] == columns.named_header(b"c").to_pylist()
    assert pa.binary() == columns.named_header(b"c").type
