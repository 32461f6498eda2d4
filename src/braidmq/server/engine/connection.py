"""A connection, whatever its strand: joins a wire to the broker, turn by turn.

One call of :meth:`Connection.receive` handles every command that is in, and answers with one
write. A command that cannot be answered yet is held, and everything behind it with it; what
wakes it is named in :meth:`Connection.wake`. Replies leave in the order of their requests: one
that waits for a commit keeps the later ones behind it.

What the bytes mean is not here: each strand has a subclass in a module of its own.
"""

from collections import deque
from typing import Final

from braidmq.broker.admission import PublishAdmission
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import Peer
from braidmq.broker.delivery.queues import Queue
from braidmq.broker.topics import Message
from braidmq.server.engine.host import Host, Limits, Wire
from braidmq.wire.errors import WireError

READ_AHEAD_BYTES: Final = 256 * 1024
"""What a connection that waits may have unhandled before it is no longer read from."""

WAITING_REPLIES_MAX: Final = 16_384
"""Replies that may wait for a commit; above it the connection's commands wait as well."""


class WaitingReply:
    """A reply that leaves once an id is committed; a SUBSCRIBE's can still be refused."""

    def __init__(self, after_id: int, data: bytes, subscribe_correlation_id: int = -1) -> None:
        self.after_id: int = after_id
        self.data: bytes = data
        self.subscribe_correlation_id: int = subscribe_correlation_id


class Connection(Peer):
    """One connection; a strand's subclass gives the methods that are not implemented here."""

    def __init__(self, host: Host, wire: Wire, limits: Limits) -> None:
        super().__init__()
        self.strand: str = ""  # whoever accepts it says which, and numbers it
        self.number: int = 0
        self.since_us: int = host.now_us()
        self._host: Host = host
        self._broker: Broker = host.broker
        self._admission: PublishAdmission = host.broker.admission
        self._wire: Wire = wire
        self._limits: Limits = limits
        self._rate: int = limits.messages_per_s
        self._out: list[bytes] = []
        self._replies: deque[WaitingReply] = deque()
        self._last_id: int = 0  # the newest record that this connection caused
        self._starving: bool = False
        self._waits_in: list[Peer] = []  # the list of a queue that has no room for us
        self._is_waiting: bool = False  # is in the host's list
        self._ending: bool = False  # close when everything is answered
        self._closed: bool = False
        self._reading: bool = True
        self._writable: bool = True
        self._tokens: float = float(limits.messages_per_s)
        self._tokens_us: int = 0
        self._will_wake: bool = False  # a timer for the next token runs
        self._input_finished: bool = False
        self.room_bytes = limits.output_buffer_bytes

    # What a strand gives.

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proven who it is."""
        raise NotImplementedError

    def refuse(self, from_id: int, refused: list[Message], again_id: int, reason: str) -> None:
        """Turn the answers to what the log refused, from *from_id* on, into refusals.

        Replies that wait for acknowledgements wait for *again_id* instead.
        """
        raise NotImplementedError

    def _take_in(self, data: bytes) -> None:
        """Give bytes of the peer to the session."""
        raise NotImplementedError

    def _handle(self, now_us: int) -> None:
        """Execute commands while the wire is writable, until none is left or one is held.

        The loop is the strand's, so that nothing is called here once per command.

        Raises:
            WireError: Framing is lost.
        """
        raise NotImplementedError

    def _lost_framing(self, error: WireError) -> None:
        """End: nothing more can be read; everything before it is answered."""
        raise NotImplementedError

    def _is_blocked(self) -> bool:
        """Say whether a command is held."""
        raise NotImplementedError

    def _held_bytes(self) -> int:
        """Return how much input was taken in and not handled."""
        raise NotImplementedError

    def _collect(self) -> None:
        """Turn the deliveries into bytes behind the output so far."""
        raise NotImplementedError

    # What the transport says.

    def receive(self, data: bytes) -> None:
        """Handle bytes of the peer."""
        if self._ending or self._closed:
            return
        self._take_in(data)
        if self._is_blocked():
            self._after_run()  # whatever the held command waits for will wake us
            return
        self._run()
        self._host.end_turn()

    def finish_input(self) -> None:
        """Answer everything, then close: the peer sends no more."""
        self._input_finished = True
        self._broker.stop_pushing(self)
        self._ending_after_input()
        self._host.end_turn()

    def set_writable(self, writable: bool) -> None:  # noqa: FBT001 - the transport's own word
        """Note whether the output buffer has room."""
        self._writable = writable
        if writable and not self._closed:
            self.room_bytes = self._limits.output_buffer_bytes
            self._broker.resume(self, self._host.now_us())
            self.wake()
            self._host.end_turn()
        elif not writable:
            self.room_bytes = 0

    def lost(self) -> None:
        """Give back what the peer was holding: it is gone."""
        self._closed = True
        self._stop_parking()
        self._replies.clear()
        self._broker.detach(self, self._host.now_us())
        self._host.end_turn()

    # What the host says.

    def say_goodbye(self) -> None:
        """Tell the peer that the broker ends, where its strand has a word for it."""

    def wake(self) -> None:
        """Go on: a commit, a read, room, or time has come."""
        if self._closed:
            return
        self._send_committed()
        self._run()

    def earn(self) -> None:
        """Go on publishing: time has passed, and a token is there."""
        self._will_wake = False
        self.wake()

    def feed(self) -> None:
        """Go on publishing: what waited for the log is committed."""
        self._starving = False
        self.wake()

    def no_longer_listed(self) -> None:
        """Note that the host has taken this connection off its list of waiting ones."""
        self._is_waiting = False

    # The turn.

    def _run(self) -> None:
        try:
            self._handle(self._host.now_us())
        except WireError as error:
            self._lost_framing(error)
        self._flush()
        self._after_run()

    def _after_run(self) -> None:
        blocked = self._is_blocked() or not self._writable
        if blocked:
            if self._reading and self._held_bytes() > READ_AHEAD_BYTES:
                self._reading = False
                self._wire.pause_reading()
        elif not self._reading:
            self._reading = True
            self._wire.resume_reading()
        if self._ending and not blocked and not self._closed and not self._replies:
            self._closed = True
            self._wire.close()

    def _ending_after_input(self) -> None:
        self._run()
        self._ending = True
        self._after_run()

    # What a publisher waits for.

    def _take_token(self, now_us: int) -> bool:
        """Pay for a message, or be woken when there is a token for it."""
        if self._earn_token(now_us):
            return True
        if not self._will_wake:
            self._will_wake = True
            missing = (1.0 - self._tokens) * 1_000_000 / self._rate
            self._host.wake_later(self, int(missing) + 1)
        return False

    def _earn_token(self, now_us: int) -> bool:
        """Pay for a message; say whether there was a token for it."""
        rate = self._rate
        earned = (now_us - self._tokens_us) * rate / 1_000_000
        self._tokens = min(float(rate), self._tokens + earned)
        self._tokens_us = now_us
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _starve(self) -> None:
        if not self._starving:
            self._starving = True
            self._host.starved.append(self)

    def _park(self, queue: Queue) -> None:
        """Wait for room in a queue, listed once however often this connection is woken."""
        if self._waits_in is not queue.blocked:
            self._stop_parking()
            queue.blocked.append(self)
            self._waits_in = queue.blocked

    def _stop_parking(self) -> None:
        if self in self._waits_in:
            self._waits_in.remove(self)

    # Output.

    def _reply(self, data: bytes) -> None:
        if self._replies:
            # Behind what may still be refused, so that a refusal comes before it.
            self._replies.append(WaitingReply(self._last_id, data))
        else:
            self._note_delivered()
            self._collect()
            self._out.append(data)

    def _reply_after(self, reply: WaitingReply) -> None:
        if not self._replies and reply.after_id <= self._broker.committed_id:
            self._note_delivered()
            self._collect()
            self._out.append(reply.data)
        else:
            self._replies.append(reply)
            self._note_waiting()

    def _note_waiting(self) -> None:
        if not self._is_waiting and self._replies:
            self._is_waiting = True
            self._host.waiting.append(self)

    def _send_committed(self) -> None:
        replies = self._replies
        committed_id = self._broker.committed_id
        self._note_delivered()
        while replies and replies[0].after_id <= committed_id:
            self._collect()
            self._out.append(replies.popleft().data)
        self._note_waiting()

    def _flush(self) -> None:
        self._note_delivered()
        self._collect()
        if self._out and not self._closed:
            data = b"".join(self._out)
            self._out = []
            self._wire.write(data)
            if self._writable:
                self._measure_room()

    def _note_delivered(self) -> None:
        """Count what was handed out since the last call, before it is turned into bytes."""
        count = self.delivered
        if count:
            self.delivered = 0
            self._host.handed_out[self.strand] += count
            if self._host.tracing is not None:
                self._host.tracing.delivered(
                    self.strand, self.deliveries[-count:], self._host.now_us()
                )

    def _measure_room(self) -> None:
        # Up to the bound and not above it there is room: only above it does the transport
        # call us again when there is.
        was_full = self.room_bytes <= 0
        self.room_bytes = self._limits.output_buffer_bytes + 1 - self._wire.unsent_bytes()
        if was_full and self.room_bytes > 0:
            self._broker.resume(self, self._host.now_us())
