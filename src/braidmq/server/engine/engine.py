"""The engine: one broker, its log, and every connection, turn by turn.

A turn begins when something happens (bytes, a commit, a deadline) and ends in
:meth:`Engine.end_turn`, which hands records to the log, asks it for backlog, and wakes
the peers that the broker touched. Everything here runs on the event loop's thread; the log
works on others and reports back.

What is not promised: a reply that no commit released says nothing about the disk; and after
`log_failed` with anything but a full log, whether the last batch is stored is not known until
the next start has read the log.
"""

from collections.abc import Callable
from typing import Protocol

import structlog

from braidmq.base.errors import BraidError, LogFullError
from braidmq.broker.authorize import Principal
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import Delivery
from braidmq.broker.delivery.dispatch import ReadRequest
from braidmq.broker.delivery.recounts import Corrections, Recount, Survey
from braidmq.broker.snapshots import Snapshot
from braidmq.broker.topics import Message, Pending
from braidmq.server.access.users import Users
from braidmq.server.engine.connection import Connection
from braidmq.server.engine.requests import SHUTTING_DOWN, Waiters
from braidmq.server.engine.unfinished import UnfinishedInput

_log = structlog.get_logger(__name__)


class Log(Protocol):
    """What the engine needs of a log; it reports by the engine's methods of the same names."""

    def append(self, bodies: list[bytes], *, urgent: bool) -> None:
        """Append a batch and commit it; then `committed` or `log_failed` is called.

        An *urgent* batch may use the space that the log keeps in reserve.
        """

    def read(self, request: ReadRequest) -> None:
        """Read backlog; then `backlog_read` or `log_failed` is called."""

    def save(
        self, last_id: int, parts: list[bytes], needed_id: int, *, wall_ahead_us: int
    ) -> None:
        """Keep a snapshot, all of which is committed, then delete what is no longer needed.

        Once it is kept, and only then, `snapshot_kept` is called.
        """

    def count(self, wanted: list[Recount]) -> None:
        """Count messages again; then `recounted` or `log_failed` is called."""

    def make_room(self) -> None:
        """Delete what may be deleted; then `room_made` is called if there is room."""


class Tracing(Protocol):
    """Receives what happens to messages, a batch at a time; times are in microseconds."""

    def appending(self, items: list[Pending], now_us: int) -> None:
        """Note what is handed to the log."""

    def committed(self, up_to: int, now_us: int) -> None:
        """Note that everything up to an id is durable."""

    def refused(self, reason: str, now_us: int) -> None:
        """Note that the log did not take what it was handed."""

    def delivered(self, strand: str, deliveries: list[Delivery], now_us: int) -> None:
        """Note what was handed out to one peer."""


class Engine:
    """Broker, log and connections."""

    def __init__(
        self,
        broker: Broker,
        *,
        now_us: Callable[[], int],
        find_principal: Callable[[str], Principal | None],
        wake_later: Callable[[Connection, int], None],
        fail: Callable[[BraidError], None],
    ) -> None:
        self.broker: Broker = broker
        self.now_us: Callable[[], int] = now_us
        self.find_principal: Callable[[str], Principal | None] = find_principal  # by API key
        self.wake_later: Callable[[Connection, int], None] = wake_later  # after microseconds
        self.rearm: Callable[[], None] = lambda: None
        self.users: Users | None = None
        self.tracing: Tracing | None = None
        self.connections: set[Connection] = set()
        self.waiting: list[Connection] = []  # their replies wait for a commit
        self.starved: list[Connection] = []  # their publishes wait until the log has caught up
        self.draining: bool = False
        self.log_is_full: bool = False
        self.failed: BraidError | None = None
        self.reads_done: int = 0  # backlog reads that have come back from the log
        self.handed_out: dict[str, int] = {"": 0, "blip": 0, "vibe": 0, "qumbed": 0}  # messages
        self.authentication_failures: dict[str, int] = {"blip": 0, "vibe": 0, "qumbed": 0}
        self.uncommitted_bytes_max: int = broker.admission.uncommitted_bytes_max
        self._fail: Callable[[BraidError], None] = fail
        self._log: Log | None = None
        self._log_is_stuck: bool = False  # full, and the reserve is used up
        self._appending: bool = False
        self._in_turn: bool = False
        self.later: Callable[[Callable[[], None]], None] | None = None  # after other events
        self._snapshot: Snapshot | None = None
        self._snapshot_is_taken: bool = False  # it waits for a commit
        self._is_recounting: bool = False
        self._forced_id: int = 0  # of a recount that waits for the one under way
        self._numbers: int = 0  # given to connections so far
        self.unfinished: UnfinishedInput = UnfinishedInput(broker)
        self.waiters: Waiters = Waiters(broker, self.end_turn)

    def start(self, log: Log, *, refusal: str = "") -> None:
        """Begin to work on a log that has been recovered.

        With a *refusal* it has no room yet: publishers are refused, consumers can drain.
        """
        self._log = log
        if refusal:
            self.log_is_full = True
            self.broker.refuse(refusal)

    # Turns.

    def end_turn(self) -> None:
        """Do what this turn has left to do: reads, wake-ups, and one append to the log."""
        if self._in_turn:
            return  # called by a connection that the loop below has woken
        if self._log is None:
            if self.waiters.conditions:
                self.waiters.wake_true()  # the log has failed, but connections still close
            return
        self._in_turn = True
        try:
            # The append comes last, so that the records of this turn are one batch. A peer that
            # is woken may make the broker touch others, or want more backlog.
            while True:
                requests = self.broker.take_reads(self.now_us())
                touched = self.broker.take_touched()
                if not touched and not requests:
                    break
                for request in requests:
                    self._log.read(request)
                for peer in touched:
                    assert isinstance(peer, Connection)
                    peer.wake()
            self._append(self._log)
        finally:
            self._in_turn = False
        if self.waiters.conditions:
            self.waiters.wake_true()
        self.rearm()

    def tick(self) -> None:
        """Do what is due."""
        self.broker.tick(self.now_us())
        for over in self.broker.take_leases_over():
            _log.info(
                "subscription ended: its lease is over",
                subscription=over.subscription_id,
                topic=over.topic,
                principal=over.principal,
            )
        self.uncache_topics()
        if len(self.unfinished):
            self.unfinished.refuse_overdue(self.now_us())
        self.end_turn()

    # The log reports.

    def committed(self, up_to: int) -> None:
        """Acknowledge everything up to an id: it is durable."""
        if self.failed is not None:
            return  # waiting publishers have been told that the outcome is unknown
        self._appending = False
        if self.tracing is not None:
            self.tracing.committed(up_to, self.now_us())
        # First the broker: it routes what is committed, so that replies and deliveries of one
        # connection leave in one write.
        self.broker.committed(up_to, self.now_us())
        self._wake_waiting()
        if self.waiters.commits:
            self.waiters.wake_committed(up_to)
        if self._snapshot_is_taken:
            self._save_snapshot()
        self.end_turn()

    def log_failed(self, error: BraidError) -> None:
        """Refuse what waits for the log; only a full log is tried again."""
        if self.failed is not None:
            return
        self._appending = False
        # A snapshot that is being taken, or waits, contains records which are refused now;
        # their ids are given to others, so it would contain what never happened.
        self._drop_snapshot()
        # It was full before: then this batch was an urgent one, and the reserve is used up.
        self._log_is_stuck = self.log_is_full
        if isinstance(error, LogFullError):
            self._refuse_waiting(str(error))
            self.log_is_full = True  # from here on appends are urgent, see `_append`
        else:
            self.waiters.fail(str(error))  # first: a failed log takes no record again
            self._refuse_waiting(str(error))
            # From here on nothing reaches the log, and its late reports are ignored.
            self.failed = error
            self._log = None
            for peer in self.broker.take_touched():  # publishers that waited for room
                assert isinstance(peer, Connection)
                peer.wake()
            self._fail(error)
        self.end_turn()

    def backlog_read(
        self,
        request: ReadRequest,
        found: list[tuple[int, bytes]],
        *,
        reached_id: int,
        lost_count: int,
    ) -> None:
        """Supply backlog to the broker; forced retention has deleted *lost_count* ids of it."""
        self.reads_done += 1
        self.broker.stats.dropped.retention += lost_count
        self.broker.supply(request, found, reached_id, self.now_us())
        self.end_turn()

    def retained(self, floor_id: int) -> None:
        """Note that the log holds nothing below *floor_id*."""
        self.broker.topics.floor_id = floor_id

    def uncache_topics(self) -> None:
        """Have connections look topics up again, if some have been removed."""
        topics = self.broker.topics
        if topics.removed:
            topics.removed = False
            for connection in self.connections:
                connection.known_topic = None
                connection.known_topics.clear()

    def forced_out(self, first_id: int) -> None:
        """Correct the counts of queues: retention has deleted, by force, all below an id."""
        if self._is_recounting:
            self._forced_id = first_id  # one at a time: each subtracts what it finds missing
            return
        self._is_recounting = True
        self._survey(Survey(self.broker.queues, [(0, first_id - 1)]))

    def _survey(self, survey: Survey) -> None:
        is_done = survey.go_on()
        while not is_done and self.later is None:
            is_done = survey.go_on()
        if not is_done and self.later is not None:
            self.later(lambda: self._survey(survey))
        elif survey.found and self._log is not None:
            self._log.count(survey.found)
        else:
            self._recount_is_over()

    def recounted(self, counts: list[tuple[Recount, int]]) -> None:
        """Apply what the log has counted."""
        self._correct(Corrections(self.broker.queues, counts))

    def _correct(self, corrections: Corrections) -> None:
        is_done = corrections.go_on()
        while not is_done and self.later is None:
            is_done = corrections.go_on()
        if not is_done and self.later is not None:
            self.later(lambda: self._correct(corrections))
        else:
            self._recount_is_over()
        self.end_turn()

    def _recount_is_over(self) -> None:
        self._is_recounting = False
        forced_id, self._forced_id = self._forced_id, 0
        if forced_id:
            self.forced_out(forced_id)

    def room_made(self) -> None:
        """Accept durable publishes again: the log has room."""
        self.log_is_full = False
        self._log_is_stuck = False
        self.broker.accept_again()
        self.end_turn()

    # The daemon asks.

    def look_for_room(self) -> None:
        """Ask a full log whether it has room again."""
        if self.log_is_full and self._log is not None:
            # Retention may have freed some space: let the records that wait try once more, even
            # if there is too little for new publishes.
            self._log_is_stuck = False
            self._log.make_room()
            self.end_turn()

    def take_snapshot(self) -> None:
        """Begin a snapshot, to be kept once it is complete and all of it is committed."""
        # Also while the log is full: only a new snapshot lets retention make room.
        if self.failed is not None or self._snapshot is not None:
            return
        self._snapshot = Snapshot(self.broker, self.now_us())
        self.go_on_with_snapshot()

    def snapshot_kept(self, wall_ahead_us: int) -> None:
        """Note what a start would now find in the newest snapshot."""
        self.broker.times.kept_ahead_us = wall_ahead_us

    def take_last_snapshot(self) -> None:
        """Take a snapshot in one go: the broker is shutting down."""
        self.later = None
        self._drop_snapshot()
        self.take_snapshot()

    def go_on_with_snapshot(self) -> None:
        """Take one turn's rows of the snapshot, and have the next turn called later."""
        taken = self._snapshot
        if taken is None or self._snapshot_is_taken:
            return  # it was dropped: the log refused what it contains
        is_complete = taken.go_on()
        while not is_complete and self.later is None:
            is_complete = taken.go_on()
        if is_complete:
            self._snapshot_is_taken = True
            self._save_snapshot()
        elif self.later is not None:
            self.later(self.go_on_with_snapshot)
        self.end_turn()

    def drain(self) -> None:
        """Accept no more durable publishes, and deliver nothing more."""
        self.draining = True
        self.broker.stop_delivering()
        self.broker.admission.drain(SHUTTING_DOWN)
        self.waiters.drain()
        self.end_turn()

    def next_number(self) -> int:
        """Return a number for a connection: the next one, over all strands."""
        self._numbers += 1
        return self._numbers

    def welcome(self, connection: Connection, strand: str, number: int) -> None:
        """Add an open connection."""
        connection.strand = strand
        connection.number = number
        self.connections.add(connection)

    def leave(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self.connections.discard(connection)
        if self.waiters.conditions:
            self.waiters.wake_true()

    def permissions_changed(self, changed: list[Principal], gone: list[Principal]) -> int:
        """Tell the connections of these principals; return how many were closed.

        What those that are *gone* had open is closed, and the others are judged anew.
        """
        closed = 0
        ended, altered = set(gone), set(changed)  # there may be thousands of each
        for connection in list(self.connections):
            principal = connection.principal
            if principal is None:
                continue
            if principal in ended:
                connection.revoke()
                closed += 1
            elif principal in altered:
                connection.permissions_changed()
        self.end_turn()
        return closed

    def say_goodbye(self) -> None:
        """Tell every peer that the broker shuts down; what they give back is no attempt."""
        for connection in list(self.connections):
            connection.say_goodbye()
        self.end_turn()

    def is_quiet(self) -> bool:
        """Return whether nothing is in flight and nothing waits for the log."""
        return self.broker.in_flight_count() == 0 and self.is_committed()

    def is_committed(self) -> bool:
        """Return whether nothing waits for the log."""
        return not self._appending and not self.broker.wants_commit()

    # Inside.

    def _save_snapshot(self) -> None:
        """Hand a complete snapshot to the log, if everything in it is committed."""
        taken = self._snapshot
        if taken is None or taken.covered_id > self.broker.committed_id:
            return
        if self._log is not None:
            # What is needed only grows, so at worst too little is deleted; but for a cursor,
            # which may be opened at any offset.
            needed_id = self.broker.cursors.needed_id(taken.needed_id)
            ahead_us = taken.wall_ahead_us
            self._log.save(taken.last_id, taken.parts(), needed_id, wall_ahead_us=ahead_us)
        self._drop_snapshot()

    def _drop_snapshot(self) -> None:
        self._snapshot = None
        self._snapshot_is_taken = False

    def _append(self, log: Log) -> None:
        # The group commit: while one batch is written, the records of the next accumulate.
        if self._appending or self._log_is_stuck or not self.broker.wants_commit():
            return
        bodies = self.broker.take_records()
        if bodies:
            self._appending = True
            if self.tracing is not None:
                self.tracing.appending(self.broker.outgoing.pending(), self.now_us())
            log.append(bodies, urgent=self.log_is_full)

    def _wake_waiting(self) -> None:
        waiting = self.waiting
        self.waiting = []  # a connection that still has to wait lists itself again
        for connection in waiting:
            connection.output.is_listed = False
            connection.wake()
        # At half, not at the bound: otherwise each commit would wake every publisher, to let in
        # a message or two.
        if self.starved and 2 * self.broker.outgoing.bytes < self.uncommitted_bytes_max:
            starved = self.starved
            self.starved = []
            for connection in starved:
                connection.feed()

    def _refuse_waiting(self, reason: str) -> None:
        # It may have been a read or a snapshot that failed: what is committed stays so.
        from_id = self.broker.committed_id + 1
        if self.tracing is not None:
            self.tracing.refused(reason, self.now_us())
        refused: dict[Connection, list[Message]] = {}
        for item in self.broker.refused(from_id, reason, self.now_us()):
            if isinstance(item, Message) and isinstance(item.publisher, Connection):
                refused.setdefault(item.publisher, []).append(item)
        # The broker has queued progress and ends again: replies that waited for those now wait
        # for this id.
        again_id = self.broker.barrier()
        for connection in self.connections:
            connection.refuse(from_id, refused.get(connection, []), again_id, reason)
        if self.waiters.commits:
            self.waiters.refuse_commits(again_id, reason, is_final=self._log_is_stuck)
        self._wake_waiting()
