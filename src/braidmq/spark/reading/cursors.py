"""The cursor of a group: where a stream began and how far it has read, kept by the broker.

It pins the start of a new stream, shows the lag, and keeps retention from deleting unread
messages. The position that the query resumes from is in Spark's checkpoint, so a failed report
to the cursor never fails the query.

Spark tells a source that a batch is done only when it plans the next one, so the source never
learns about the last batch. A query listener does. It runs in the driver's Python, though, and
the reader in a process of its own, so the listener takes the source's options from the JVM:
the streaming leaves of the query's analysed plan, without duplicates, are the sources in the
query's progress, in the same order.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from braidmq.base.errors import BraidError
from braidmq.columnar.endpoint import Endpoint
from braidmq.spark.brokers import endpoint_of
from braidmq.spark.options import ReadOptions, for_stream
from braidmq.spark.reading.offsets import StreamOffset
from braidmq.spark.runtime.workers import log_event

_RELATION: Final = "StreamingRelationV2"


class Cursor:
    """The cursor that *options* name; it is pickled together with its reader, unconnected."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.group_id is not None
        self.name = options.group_id
        self._options = options
        self._endpoint: Endpoint | None = None
        self._reported: int | None = None
        self._failing = False

    def open(self, start: int | None) -> int:
        """Return where the group began; a new one begins at *start*, if None at the log's end.

        A repeated call returns the same offset, whatever was published in between.

        Raises:
            BraidError: The broker cannot be reached, or refuses the key access to the cursor.
        """
        return self._connected().open_cursor(self.name, start).initial

    def report(self, offset: int) -> None:
        """Report that everything before *offset* is done; on failure, warn once and go on."""
        if self._reported is not None and offset <= self._reported:
            return
        try:
            endpoint = self._connected()
            if self._reported is None:
                # The cursor may not exist: the query got its groupId later than its
                # checkpoint, or an operator has deleted the cursor since.
                endpoint.open_cursor(self.name, offset)
            endpoint.move_cursor(self.name, offset)
        except BraidError as error:
            self._forget()
            if not self._failing:
                facts = {"group": self.name, "offset": offset, "problem": str(error)}
                log_event("warning", "cursor_not_reported", **facts)
            self._failing = True
        else:
            self._reported = offset
            self._failing = False

    def _connected(self) -> Endpoint:
        if self._endpoint is None:
            self._endpoint = endpoint_of(self._options)
        return self._endpoint

    def _forget(self) -> None:
        # A restarted broker may listen at another address, so look it up again.
        if self._endpoint is not None:
            self._endpoint.close()
        self._endpoint = None
        self._reported = None


class CursorListener(StreamingQueryListener):
    """Reports the end of each finished batch of each query of a session; on the driver.

    If it cannot find out what a query reads, the cursor still gets the reader's own reports.
    """

    def __init__(self, session: SparkSession, source: str) -> None:
        self._session = session
        self._source = source
        self._cursors: dict[str, list[Cursor | None]] = {}  # by run, one for each source

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Look up what the query reads, while the query is still registered."""
        try:
            query = self._session.streams.get(str(event.id))
            found = [] if query is None else sources_of(query, self._source)
            cursors = [None if given is None else cursor_of(given) for given in found]
        except (Py4JError, PySparkException, AttributeError, BraidError) as error:
            log_event("debug", "sources_not_found", problem=repr(error))
            return
        if any(cursors):
            self._cursors[str(event.runId)] = cursors

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the end of a finished batch."""
        progress = event.progress
        cursors = self._cursors.get(str(progress.runId), [])
        if len(cursors) != len(progress.sources):
            return
        for cursor, source in zip(cursors, progress.sources, strict=True):
            if cursor is not None and source.endOffset:
                end = StreamOffset.from_json(msgspec.json.decode(source.endOffset))
                cursor.report(end.id)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query."""
        self._cursors.pop(str(event.runId), None)


def cursor_of(given: Mapping[str, str]) -> Cursor | None:
    """Return the cursor of a stream with these options, or None if it is in no group."""
    options = for_stream(given)
    return None if options.group_id is None else Cursor(options)


def sources_of(query: StreamingQuery, name: str) -> list[dict[str, str] | None]:
    """Return the options of each source of a query with this format, None for other formats.

    Raises:
        Py4JError: The plan has another shape in this version of Spark.
    """
    leaves = query._jsq.streamingQuery().analyzedPlan().collectLeaves()  # noqa: SLF001 - no other way
    seen: list[Any] = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.isStreaming() and not any(leaf.equals(other) for other in seen):
            seen.append(leaf)
    return [_options(leaf) if _is_of(leaf, name) else None for leaf in seen]


def _is_of(leaf: Any, name: str) -> bool:  # noqa: ANN401 - an object of the JVM
    is_second = str(leaf.getClass().getSimpleName()) == _RELATION
    return is_second and str(leaf.sourceName()).lower() == name


def _options(leaf: Any) -> dict[str, str]:  # noqa: ANN401 - an object of the JVM
    return {str(k): str(v) for k, v in dict(leaf.extraOptions().asCaseSensitiveMap()).items()}
