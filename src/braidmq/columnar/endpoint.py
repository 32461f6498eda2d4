"""A client of the broker's Arrow Flight endpoint: the log over the network, as a directory is.

An endpoint is a description until it is used: it connects then, and can be pickled and shared
by threads. Reads raise what reads of a directory raise, and the errors of `columnar.failures`.

A pattern is matched on this side, by the names of the topics that the endpoint has: the broker
runs nobody's regular expression.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Self, Unpack

import pyarrow as pa

from braidmq.columnar.cuts import Part
from braidmq.columnar.decoding.columns import column_names
from braidmq.columnar.decoding.decode import Decoding
from braidmq.columnar.flight import requests
from braidmq.columnar.flight.connections import Connection
from braidmq.columnar.flight.failures import TooManyTopicsError
from braidmq.columnar.flight.fetched import FetchedBatches, columns_to_fetch
from braidmq.columnar.flight.requests import CursorPlace, SinkCommit, SinkKey, Stage
from braidmq.columnar.flight.staging import send_stage
from braidmq.columnar.logs import OfBatches
from braidmq.columnar.loss import Loss
from braidmq.columnar.reading import BATCH_ROWS, Offsets, TopicCount
from braidmq.columnar.selection import Selection

NAMES_BYTES_MAX: Final = requests.REQUEST_BYTES_MAX - 64 * 1024
"""The names of the wanted topics, as JSON; the rest of a request is beside them."""


class Endpoint:
    """The log behind a Flight address, `grpc://host:port` or `grpc+tls://host:port`.

    *roots* are the certificates, as PEM, that the server's is checked with; the system's own
    when they are not given.

    Raises:
        ConfigError: The address or the key cannot be one.
    """

    def __init__(self, address: str, api_key: str, *, roots: bytes | None = None) -> None:
        self._connection = Connection(address, api_key, roots)

    def __repr__(self) -> str:
        return f"Endpoint({self.address!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where it is."""
        return self._connection.address

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self._connection.close()

    def offsets(self) -> Offsets:
        """Return the first id that the log has and the one behind the last durable one."""
        request = requests.OffsetsRequest()
        answer = self._connection.ask("offsets", request, requests.OffsetsAnswer)
        return Offsets(answer.earliest, answer.latest)

    def offset_at(self, time_us: int) -> int:
        """Return the id of the first durable message that was accepted then or later."""
        request = requests.OffsetAtRequest(time_us)
        return self._connection.ask("offset_at", request, requests.NumberAnswer).offset

    def topic_counts(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        fail_on_data_loss: bool = True,
    ) -> dict[str, TopicCount]:
        """Return what each topic that the key may read has in a range of ids."""
        request = requests.TopicCountsRequest(start, end, fail_on_data_loss)
        counts: dict[str, TopicCount] = {}
        kind = requests.TopicCountsAnswer
        for answer in self._connection.answers("topic_counts", request, kind):
            counts |= {topic: TopicCount(*count) for topic, count in answer.counts.items()}
        return counts

    def cut(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        target_bytes: int | None = None,
        parts: int | None = None,
        fail_on_data_loss: bool = True,
    ) -> list[Part]:
        """Return parts of a range; see `columnar.cut`."""
        names, behind = self._names(topics, pattern, start, end)
        request = requests.CutRequest(
            start=start,
            end=behind,
            topics=names,
            target_bytes=target_bytes,
            parts=parts,
            fail_on_data_loss=fail_on_data_loss,
        )
        answer = self._connection.ask("cut", request, requests.CutAnswer)
        return [Part(*part) for part in answer.parts]

    def advance(
        self,
        start: int,
        *,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        messages: int = requests.ID_MAX,
        payload_bytes: int = requests.ID_MAX,
        fail_on_data_loss: bool = True,
    ) -> int:
        """Return the id behind so many wanted messages; see `columnar.advance`."""
        names, behind = self._names(topics, pattern, start, None)
        request = requests.AdvanceRequest(
            start=start,
            topics=names,
            messages=messages,
            payload_bytes=payload_bytes,
            fail_on_data_loss=fail_on_data_loss,
        )
        found = self._connection.ask("advance", request, requests.NumberAnswer).offset
        # Behind the names' end there may be topics that match and could not be named yet.
        return found if behind is None else max(min(found, behind), start)

    def batches(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        columns: Sequence[str] | None = None,
        headers: bool = False,
        qos: int | None = None,
        decoding: Decoding | None = None,
        fail_on_data_loss: bool = True,
        losses: list[Loss] | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> FetchedBatches:
        """Return the messages of a range in batches; see `columnar.batches`."""
        names, behind = self._names(topics, pattern, start, end)
        wanted = column_names(columns, headers=headers)
        request = requests.ReadRequest(
            start=start,
            end=behind,
            topics=names,
            columns=columns_to_fetch(wanted, decoding),
            qos=qos,
            fail_on_data_loss=fail_on_data_loss,
            batch_rows=min(batch_rows, requests.BATCH_ROWS_MAX),
        )
        return FetchedBatches(
            self._connection, request, wanted=wanted, decoding=decoding, losses=losses
        )

    def read(self, **wanted: Unpack[OfBatches]) -> pa.Table:
        """Return the messages of a range, which fits into memory, as one table."""
        found = self.batches(**wanted)
        return pa.Table.from_batches(found, found.schema)

    def _names(
        self,
        topics: Iterable[str] | None,
        pattern: str | None,
        start: int | None,
        end: int | None,
    ) -> tuple[list[str] | None, int | None]:
        """Return the wanted topics by name, and the end of the range that they hold for."""
        selection = Selection(topics, pattern)
        if pattern is None:
            named = None if topics is None else sorted(selection.topics or ())
            behind = end
        else:
            request = requests.TopicsRequest(
                0 if start is None else start, requests.ID_MAX if end is None else end
            )
            pages = list(self._connection.answers("topics", request, requests.TopicsAnswer))
            named = [name for page in pages for name in page.topics if selection.wants(name)]
            behind = pages[-1].end if end is None and pages else end
        if (
            named is not None
            and sum(len(name.encode()) + 3 for name in named) > NAMES_BYTES_MAX
        ):
            raise TooManyTopicsError("topics" if pattern is None else "pattern")
        return named, behind

    def open_cursor(self, name: str, start: int | None = None) -> CursorPlace:
        """Return the cursor of that name, which is made at *start* if there is none.

        *start* None is the end of the durable log. A cursor that is there stays where it is.
        """
        request = requests.OpenCursorRequest(name, start)
        return self._connection.ask("open_cursor", request, CursorPlace)

    def move_cursor(self, name: str, offset: int) -> None:
        """Say that everything before *offset* is done with; a cursor never goes back."""
        request = requests.MoveCursorRequest(name, offset)
        self._connection.ask("move_cursor", request, requests.Done)

    def remove_cursor(self, name: str) -> None:
        """Remove a cursor, so that retention waits for it no longer."""
        request = requests.RemoveCursorRequest(name)
        self._connection.ask("remove_cursor", request, requests.Done)

    def cursors(self) -> list[dict[str, Any]]:
        """Return the cursors that the key may move: name, principal, initial, position, lag."""
        request = requests.CursorsRequest()
        answer = self._connection.ask("cursors", request, requests.CursorsAnswer)
        return [
            {name: getattr(row, name) for name in row.__struct_fields__}
            for row in answer.cursors
        ]

    def stage(
        self, topic: str | None, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> Stage:
        """Send rows, which the broker keeps durably, and return the stage that they are.

        Raises:
            RefusedRowError: A row cannot be a message.
            NotAllowedError: The key may not publish to its topic.
        """
        return send_stage(self._connection, topic, schema, batches)

    def commit(self, key: SinkKey, stages: list[str]) -> SinkCommit:
        """Make stages the batch of that key, once; return when its messages are durable."""
        request = requests.CommitRequest(key, stages)
        return self._connection.ask("commit", request, SinkCommit)

    def abort(self, stages: list[str]) -> None:
        """Drop stages that are not wanted."""
        self._connection.ask("abort", requests.AbortRequest(stages), requests.Done)
