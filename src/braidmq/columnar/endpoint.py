"""A client of the broker's Arrow Flight endpoint: the log over the network, like a directory.

An endpoint connects on first use; it can be pickled, and shared by threads. Reads raise the
errors of reads of a directory, and those of `columnar.flight.failures`.

The client matches patterns itself, against the topic names that the endpoint lists: a regular
expression from outside could keep the broker busy for hours.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Self, Unpack

import msgspec
import pyarrow as pa

from braidmq.columnar.cuts import Part
from braidmq.columnar.decoding.columns import column_names
from braidmq.columnar.decoding.decode import Decoding
from braidmq.columnar.flight import requests
from braidmq.columnar.flight.connections import Connection
from braidmq.columnar.flight.failures import TooManyTopicsError
from braidmq.columnar.flight.requests import CursorPlace, SinkCommit, SinkKey, Stage
from braidmq.columnar.flight.streams import FetchedBatches, columns_to_fetch, send_stage
from braidmq.columnar.loss import Loss
from braidmq.columnar.reading import BATCH_ROWS, OfBatches, Offsets, TopicCount
from braidmq.columnar.selection import Selection

NAMES_BYTES_MAX: Final = requests.REQUEST_BYTES_MAX - 64 * 1024
"""The longest list of topic names, as JSON; the rest is for the request's other fields."""


class Endpoint:
    """The log behind a Flight address, `grpc://host:port` or `grpc+tls://host:port`.

    *roots* are the CA certificates, as PEM, to verify the server with; by default the system's.

    Raises:
        ConfigError: The address or the key is not valid.
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
        """The address it was made with."""
        return self._connection.address

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self._connection.close()

    def offsets(self) -> Offsets:
        """Return the first id in the log, and the one after the last durable id."""
        request = requests.OffsetsRequest()
        answer = self._connection.ask("offsets", request, requests.OffsetsAnswer)
        return Offsets(answer.earliest, answer.latest)

    def offset_at(self, time_us: int) -> int:
        """Return the id of the first durable message that was accepted then or later."""
        request = requests.OffsetAtRequest(time_us)
        return self._connection.ask("offset_at", request, requests.NumberAnswer).offset

    def offset_behind(self, time_us: int) -> int:
        """Return the id behind the last durable message that was accepted before then."""
        request = requests.OffsetAtRequest(time_us)
        return self._connection.ask("offset_behind", request, requests.NumberAnswer).offset

    def topic_counts(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        fail_on_data_loss: bool = True,
    ) -> dict[str, TopicCount]:
        """Return messages and payload bytes of each topic that the key may read in a range."""
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
        """Return a range in parts; see `columnar.cut`."""
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
        """Return the id after so many wanted messages; see `columnar.advance`."""
        names, behind = self._names(topics, pattern, start, None)
        request = requests.AdvanceRequest(
            start=start,
            topics=names,
            messages=messages,
            payload_bytes=payload_bytes,
            fail_on_data_loss=fail_on_data_loss,
        )
        found = self._connection.ask("advance", request, requests.NumberAnswer).offset
        # Behind the range whose topics were listed, there may be more that match the pattern.
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
        """Return the messages of a range as one table; they must fit into memory."""
        found = self.batches(**wanted)
        return pa.Table.from_batches(found, found.schema)

    def _names(
        self,
        topics: Iterable[str] | None,
        pattern: str | None,
        start: int | None,
        end: int | None,
    ) -> tuple[list[str] | None, int | None]:
        """Return the names of the wanted topics, and the end of the range they hold for."""
        selection = Selection(topics, pattern)
        if pattern is None:
            named = None if topics is None else sorted(filter(_is_utf8, selection.topics or ()))
            behind = end
        else:
            request = requests.TopicsRequest(
                0 if start is None else start, requests.ID_MAX if end is None else end
            )
            pages = list(self._connection.answers("topics", request, requests.TopicsAnswer))
            named = [name for page in pages for name in page.topics if selection.wants(name)]
            behind = pages[-1].end if end is None and pages else end
        if (
            named is not None  # 3: two quotes and a comma for each name
            and sum(len(name.encode()) + 3 for name in named) > NAMES_BYTES_MAX
        ):
            raise TooManyTopicsError("topics" if pattern is None else "pattern")
        return named, behind

    def open_cursor(self, name: str, start: int | None = None) -> CursorPlace:
        """Return the cursor of that name; create it at *start* if there is none.

        *start* None is the end of the durable log. An existing cursor stays where it is.
        """
        request = requests.OpenCursorRequest(name, start)
        return self._connection.ask("open_cursor", request, CursorPlace)

    def move_cursor(self, name: str, offset: int) -> None:
        """Report that everything before *offset* is done; a cursor never moves back."""
        request = requests.MoveCursorRequest(name, offset)
        self._connection.ask("move_cursor", request, requests.Done)

    def remove_cursor(self, name: str) -> None:
        """Remove a cursor, so that retention no longer waits for it."""
        request = requests.RemoveCursorRequest(name)
        self._connection.ask("remove_cursor", request, requests.Done)

    def cursors(self) -> list[dict[str, Any]]:
        """Return the cursors that the key may move: name, principal, initial, position, lag."""
        request = requests.CursorsRequest()
        answer = self._connection.ask("cursors", request, requests.CursorsAnswer)
        return [msgspec.structs.asdict(row) for row in answer.cursors]

    def stage(
        self, topic: str | None, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> Stage:
        """Send rows, which the broker stores durably, and return their stage.

        Raises:
            RefusedRowError: A row is not a valid message.
            NotAllowedError: The key may not publish to its topic.
        """
        return send_stage(self._connection, topic, schema, batches)

    def commit(self, key: SinkKey, stages: list[str]) -> SinkCommit:
        """Commit stages as the batch of that key; return once its messages are durable."""
        request = requests.CommitRequest(key, stages)
        return self._connection.ask("commit", request, SinkCommit)

    def abort(self, stages: list[str]) -> None:
        """Drop stages that will not be committed."""
        self._connection.ask("abort", requests.AbortRequest(stages), requests.Done)


def _is_utf8(topic: str) -> bool:
    """Tell whether a topic can have this name: none contains a lone surrogate."""
    try:
        topic.encode()
    except UnicodeEncodeError:
        return False
    return True
