"""A connection of any strand: joins a wire to the broker, turn by turn.

One call of :meth:`Connection.receive` handles every command that has arrived, and answers with
one write. A command that cannot be answered yet is held, and all commands behind it with it;
:meth:`Connection.wake` names what lets it go on. What leaves is the business of `output`.

What the bytes mean is not here: each strand has a subclass in a module of its own.
"""

from collections import deque
from typing import Final

from braidmq.broker.admission import PublishAdmission
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import Peer
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.topics import Message
from braidmq.server.engine.host import Host, Limits, Wire
from braidmq.server.engine.output import Output, WaitingReply
from braidmq.server.engine.tokens import TokenBucket
from braidmq.wire.errors import WireError

READ_AHEAD_BYTES: Final = 256 * 1024
"""Unhandled input of a connection that waits; above it the connection stops reading."""


class Connection(Peer):
    """One connection; a strand's subclass gives the methods that are not implemented here."""

    def __init__(self, host: Host, wire: Wire, limits: Limits, output: Output) -> None:
        super().__init__()
        self.strand: str = ""  # set, like the number, by the listener that accepts it
        self.number: int = 0
        self.since_us: int = host.now_us()
        self.output: Output = output
        self.last_id: int = 0  # the newest record that this connection caused
        self.subscribed_id: int = 0  # the record of its newest subscription
        self.writable: bool = True
        self.closed: bool = False
        self.input_finished: bool = False
        self._host: Host = host
        self._broker: Broker = host.broker
        self._admission: PublishAdmission = host.broker.admission
        self._wire: Wire = wire
        self._limits: Limits = limits
        self._replies: deque[WaitingReply] = output.replies
        self._tokens: TokenBucket | None = None
        self._starving: bool = False
        self._waits_in: list[Peer] = []  # the list of a queue that has no room for us
        self._ending: bool = False  # close when everything is answered
        self._reading: bool = True
        self._will_wake: bool = False  # a timer for the next token runs
        self.room_bytes = limits.output_buffer_bytes
        if limits.messages_per_s:
            self._tokens = TokenBucket(limits.messages_per_s)
        output.connection = self

    # What a strand gives.

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proven who it is."""
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
        """Answer everything before the malformed bytes, then close: framing is lost."""
        raise NotImplementedError

    def _is_blocked(self) -> bool:
        """Return whether a command is held."""
        raise NotImplementedError

    def _held_bytes(self) -> int:
        """Return how much input was taken in and not handled."""
        raise NotImplementedError

    # What the transport says.

    def receive(self, data: bytes) -> None:
        """Handle bytes of the peer."""
        if self._ending or self.closed:
            return
        self._take_in(data)
        if self._is_blocked():
            self._after_run()  # what the held command waits for will wake us
            return
        self._run()
        self._host.end_turn()

    def finish_input(self) -> None:
        """Answer everything, then close: the peer sends no more."""
        self.input_finished = True
        self._broker.stop_pushing(self)
        self._run()
        self._ending = True
        self._after_run()
        self._host.end_turn()

    def set_writable(self, writable: bool) -> None:  # noqa: FBT001 - the transport's own signature
        """Note whether the output buffer has room."""
        self.writable = writable
        if writable and not self.closed:
            self.room_bytes = self._limits.output_buffer_bytes
            self._broker.resume(self, self._host.now_us())
            self.wake()
            self._host.end_turn()
        elif not writable:
            self.room_bytes = 0

    def lost(self) -> None:
        """Give back what the peer held: its connection is lost."""
        self.closed = True
        self._stop_parking()
        self._replies.clear()
        self._broker.detach(self, self._host.now_us())
        self._host.end_turn()

    # What the host says.

    def say_goodbye(self) -> None:
        """Tell the peer that the broker shuts down, if its strand has a frame for that."""

    def refuse(self, from_id: int, refused: list[Message], again_id: int, reason: str) -> None:
        """Turn the answers to what the log refused, from *from_id* on, into refusals.

        Replies that wait for acknowledgements wait for *again_id* instead.
        """
        self.output.refuse(from_id, refused, again_id, reason)
        if self.last_id >= from_id:
            self.last_id = again_id
        if self.subscribed_id >= from_id:
            self.subscribed_id = 0

    def wake(self) -> None:
        """Go on, after a commit, a read from the log, new room, or a timer."""
        if self.closed:
            return
        self.output.send_committed()
        self._run()

    def earn(self) -> None:
        """Go on publishing: the timer for the next token has run out."""
        self._will_wake = False
        self.wake()

    def feed(self) -> None:
        """Go on publishing: the log has caught up."""
        self._starving = False
        self.wake()

    def no_longer_listed(self) -> None:
        """Note that the host has taken this connection off its list of waiting connections."""
        self.output.is_listed = False

    # The turn.

    def _run(self) -> None:
        try:
            self._handle(self._host.now_us())
        except WireError as error:
            self._lost_framing(error)
        self.output.flush()
        self._after_run()

    def _after_run(self) -> None:
        blocked = self._is_blocked() or not self.writable
        if blocked:
            if self._reading and self._held_bytes() > READ_AHEAD_BYTES:
                self._reading = False
                self._wire.pause_reading()
        elif not self._reading:
            self._reading = True
            self._wire.resume_reading()
        if self._ending and not blocked and not self.closed and not self._replies:
            self.closed = True
            self._wire.close()

    # What a publisher waits for.

    def _starve(self) -> None:
        """Wait for the log to catch up, listed once."""
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
