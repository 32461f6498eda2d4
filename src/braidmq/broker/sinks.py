"""Sinks: batches of rows that are appended exactly once, even if a process is killed.

A batch has a key (query, sink, batch), and its rows wait in stages, outside the log. What the
log gets:

    INTENT    from here on exactly these stages are the batch
    SINK ROW  a message, one for each row in order; other records may come between
    DONE      all rows are in the log

One intent is open at a time, so each SINK ROW after an INTENT is its next row: after a
crash the number of records says which row is next. The broker remembers the last batch of each
query that is done, and so recognises a repeat of it, or of an earlier one, even if its rows are
divided into stages differently.
"""

from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import Final, NamedTuple, final

from braidmq.broker import records
from braidmq.broker.admission import GO, REDIRECT, REFUSED, PublishAdmission
from braidmq.broker.authorize import Principal
from braidmq.broker.outgoing import Outgoing
from braidmq.broker.quotas import SINK_QUERIES
from braidmq.broker.settings import Settings
from braidmq.broker.topics import (
    ORIGIN_SPARK,
    TOO_MANY,
    Message,
    Pending,
    Topics,
    body_of,
)

PLAIN_WRITES_MAX: Final = 10_000
"""Plain writes that are remembered; Spark does not repeat one that was answered."""

QUERIES_MAX: Final = 100_000
"""Streaming queries of all principals; they are never forgotten: a repeat would be appended
again. Above this no new one is accepted, and of one principal above its quota."""

NAME_BYTES_MAX: Final = 1_024
"""The name of a query or of a sink, in UTF-8."""

STAGES_MAX: Final = 100_000
"""Stages of one batch: an INTENT must fit into a record."""

STAGE_ID_BYTES: Final = 16

_PLAIN_QUERY_CHARS: Final = 32

Row = tuple[str, bytes, bytes, int]
"""Topic, payload, block of headers, priority."""


@final
class Intent:
    """A batch that is being appended."""

    def __init__(  # noqa: PLR0917 - the parts of a record
        self,
        intent_id: int,
        principal: str,
        query: str,
        sink: str,
        batch: int,
        stages: list[tuple[bytes, int]],
    ) -> None:
        self.id: int = intent_id
        self.principal: str = principal
        self.query: str = query
        self.sink: str = sink
        self.batch: int = batch
        self.stages: list[tuple[bytes, int]] = stages  # id and number of rows
        self._ends: list[int] = list(accumulate([rows for _, rows in stages]))
        self.rows: int = self._ends[-1] if stages else 0
        self.appended: int = 0  # rows that have their records

    def locate(self, row: int) -> tuple[bytes, int]:
        """Return the stage that has a row of the batch, and the row's number in it."""
        assert row < self.rows
        at = bisect_right(self._ends, row)
        stage_id, rows = self.stages[at]
        return stage_id, row - (self._ends[at] - rows)


class Done(NamedTuple):
    """The last batch that a query has done."""

    principal: str
    batch: int
    rows: int


@final
class SinkMark(Pending):
    """The beginning or the end of an intent; `Sinks` tells which by the id."""


class Sinks:
    """The open intent, and what is done."""

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        outgoing: Outgoing,
        admission: PublishAdmission,
    ) -> None:
        self._ttl_us: int = settings.message_ttl_us
        self._topics: Topics = topics
        self._outgoing: Outgoing = outgoing
        self._admission: PublishAdmission = admission
        self.open: Intent | None = None
        self.waits_for: str = ""  # why the last `append` did not take all rows
        self._done: dict[tuple[str, str], Done] = {}
        self._plain: dict[tuple[str, str], None] = {}  # the keys of plain writes
        self._row_ids: deque[int] = deque()  # of rows that may not be committed
        self._finished: Intent | None = None  # the last one, while its DONE can be refused
        self._finished_id: int = 0
        self._done_before: Done | None = None

    # A batch, from its beginning to its end.

    def last_done(self, query: str, sink: str) -> Done | None:
        """Return the last batch that a query has done, if it is known."""
        return self._done.get((query, sink))

    def has_room(self, query: str, sink: str, batch: int) -> bool:
        """Say whether one more batch of this query can be remembered as done."""
        if is_plain(query, batch) or (query, sink) in self._done:
            return True
        return len(self._done) - len(self._plain) < QUERIES_MAX

    def quota_refusal(self, principal: Principal, query: str, sink: str, batch: int) -> str:
        """Return why *principal* may not have one more query; "" if it may, or has this one."""
        if is_plain(query, batch) or (query, sink) in self._done:
            return ""
        return self._topics.accounts.refusal(principal.name, principal.quotas, SINK_QUERIES)

    def begin(
        self, principal: str, query: str, sink: str, batch: int, stages: list[tuple[bytes, int]]
    ) -> Intent:
        """Open an intent; rows may be appended at once."""
        assert self.open is None
        assert len(stages) <= STAGES_MAX
        record = records.encode_intent(principal, query, sink, batch, stages)
        given = self._outgoing.add(SinkMark(), record)
        self.open = Intent(given, principal, query, sink, batch, stages)
        self._finished = None  # its DONE is committed: the caller waits for that
        return self.open

    def append(self, rows: list[Row], committed_id: int, now_us: int) -> int:
        """Append the next rows of the open intent; return how many were taken.

        All of them, unless `waits_for` says what the rest waits for.
        """
        intent = self.open
        assert intent is not None
        # Only uncommitted rows can be refused; forget the ids of the others.
        row_ids = self._row_ids
        while row_ids and row_ids[0] <= committed_id:
            row_ids.popleft()
        self.waits_for = ""
        for taken, row in enumerate(rows):
            message = self._message(row, now_us)
            if message is None:
                return taken
            row_ids.append(self._record(message, now_us))
            intent.appended += 1
        return len(rows)

    def finish(self) -> int:
        """Close the open intent, all of whose rows are appended; return the id of its DONE."""
        intent = self.open
        assert intent is not None
        assert intent.appended == intent.rows
        self._done_before = self._done.get((intent.query, intent.sink))
        self._finished_id = self._outgoing.add(SinkMark(), records.encode_done(intent.id))
        self._finished = intent
        self._close(intent)
        return self._finished_id

    def take_back(self, from_id: int) -> int:
        """Undo what the log refused from *from_id* on; return how many rows that were."""
        # First: the rows that are taken back below belong to the intent that this reopens.
        finished = self._finished
        if finished is not None and self._finished_id >= from_id:
            self._reopen(finished)
        count = 0
        while self._row_ids and self._row_ids[-1] >= from_id:
            self._row_ids.pop()
            count += 1
        intent = self.open
        if intent is not None:
            intent.appended -= count
            if intent.id >= from_id:  # the INTENT itself was refused: the batch was never begun
                assert intent.appended == 0
                self.open = None
        return count

    # What the log and a snapshot keep.

    def replay_intent(self, record_id: int, record: bytes) -> None:
        """Apply an INTENT record again."""
        principal, query, sink, batch, stages = records.read_intent(record)
        self.open = Intent(record_id, principal, query, sink, batch, stages)

    def replay_row(self) -> None:
        """Count a SINK ROW; after a repair there may be some whose intent is lost."""
        if self.open is not None:
            self.open.appended += 1

    def replay_done(self, intent_id: int) -> None:
        """Apply a DONE record again."""
        if self.open is not None and self.open.id == intent_id:
            self._close(self.open)

    def open_row(self) -> list[object]:
        """Return what a snapshot keeps of the open intent: nothing when there is none."""
        one = self.open
        if one is None:
            return []
        key: list[object] = [one.id, one.principal, one.query, one.sink, one.batch]
        return [*key, one.stages, one.appended]

    def queries(self) -> list[tuple[str, str]]:
        """Return the queries that have done something, each with its sink, oldest first."""
        return list(self._done)

    def restore(
        self, intent: Intent | None, done: list[tuple[str, str, str, int, int]]
    ) -> None:
        """Restore what a snapshot kept."""
        self.open = intent
        for query, sink, principal, batch, rows in done:
            self._remember((query, sink), Done(principal, batch, rows))

    # Inside.

    def _message(self, row: Row, now_us: int) -> Message | None:
        """Return the message that a row becomes, or None when it has to wait."""
        name, payload, headers, priority = row
        intent = self.open
        assert intent is not None
        topic = self._topics.find(name)
        if topic is None:
            # Not refused for a quota: no other batch could begin while this one waits. The
            # sink has asked for all of them before the intent.
            topic = self._topics.make(name, self._topics.accounts.of(intent.principal))
            if topic is None:
                self.waits_for = TOO_MANY
                return None
            topic.unrecorded = False  # a replay knows the intent, and so its principal
        message = Message(topic, 1, body_of(topic, payload))
        message.priority = priority
        message.origin = ORIGIN_SPARK
        message.headers = headers
        verdict = self._admission.judge_row(message, now_us)
        if verdict == GO:
            queue = topic.queue
            message.set_ttl(self._ttl_us if queue is None else queue.ttl_us, now_us)
            return message
        if verdict == REDIRECT:
            return self._admission.take_letter()
        # Any other publisher would be refused or wait, and then try again; so does the sink.
        is_full = verdict != REFUSED
        self.waits_for = f"queue {name[:64]!r} is full" if is_full else self._admission.reason
        return None

    def _record(self, message: Message, now_us: int) -> int:
        """Queue the record of a row or its letter, as `Broker` does for a durable message.

        It is durable in a queue that is not, too: a row without a record could not be counted.
        """
        queue = message.topic.queue
        if queue is not None:
            queue.pending += 1
        message.timestamp_us = now_us
        self._outgoing.bytes += len(message.body)
        return self._outgoing.add(message, records.encode_message(message, records.SINK_ROW))

    def _close(self, intent: Intent) -> None:
        self.open = None
        self._remember(
            (intent.query, intent.sink), Done(intent.principal, intent.batch, intent.rows)
        )

    def _remember(self, key: tuple[str, str], done: Done) -> None:
        is_new = self._forget(key) is None
        if is_new and is_plain(key[0], done.batch):
            self._plain[key] = None
            if len(self._plain) > PLAIN_WRITES_MAX:
                oldest = next(iter(self._plain))
                self._forget(oldest)
                del self._plain[oldest]
        self._done[key] = done  # after all others: it is the newest
        self._charge(key, done, 1)

    def _forget(self, key: tuple[str, str]) -> Done | None:
        done = self._done.pop(key, None)
        if done is not None:
            self._charge(key, done, -1)
        return done

    def _charge(self, key: tuple[str, str], done: Done, count: int) -> None:
        """Charge a query to the principal of its last batch; a plain write is no query."""
        if key not in self._plain:
            self._topics.accounts.of(done.principal).add(SINK_QUERIES, count)

    def _reopen(self, intent: Intent) -> None:
        key = (intent.query, intent.sink)
        # As it was before `_close`, except for a plain write that was forgotten to make room.
        self._forget(key)
        self._plain.pop(key, None)
        if self._done_before is not None:
            self._remember(key, self._done_before)
        self._finished = None
        self.open = intent


def is_plain(query: str, batch: int) -> bool:
    """Say whether a batch is a plain write, whose query is fresh: 32 letters and digits.

    The id of a stream is a UUID with its hyphens: a stream that has done nothing but batch 0
    is not taken for one.
    """
    return batch == 0 and len(query) == _PLAIN_QUERY_CHARS and query.isalnum()
