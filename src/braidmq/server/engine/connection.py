"""A connection of any strand: joins a wire to the broker, turn by turn.

One call of :meth:`Connection.receive` handles every command that has arrived, and answers with
one write. A command that cannot be executed yet is held, and so are all commands after it;
:meth:`Connection.wake` says what lets them go on.

    reply ──▶ replies (wait for a commit) ──┐
                                            ├──▶ pieces ──▶ one write per turn
    deliveries of the broker ──▶ collect ───┘

A reply that waits for a commit holds up the replies after it. What the bytes mean is not known
here: each strand has a subclass of `Connection`, and one of `Output` that turns deliveries into
its frames, and replies whose record the log refused into its errors.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, final

from braidmq.broker.admission import PublishAdmission
from braidmq.broker.authorize import Principal
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import Peer
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.topics import Message, Topic
from braidmq.server.engine.rates import TokenBucket
from braidmq.wire.errors import WireError

if TYPE_CHECKING:
    from braidmq.server.engine.engine import Engine

UNFINISHED_MIN: Final = 4 * 1024
"""Input up to this size is not counted as unfinished: most turns end within a frame."""

READ_AHEAD_BYTES: Final = 256 * 1024
"""Unhandled input of a connection that waits; above this it stops reading."""

WAITING_REPLIES_MAX: Final = 16_384
"""Replies that may wait for a commit; above this the connection's commands wait as well."""

TOPICS_REMEMBERED_MAX: Final = 1024
"""Topics whose permission a connection remembers."""


class Wire(Protocol):
    """What carries a connection's bytes."""

    def write(self, data: bytes) -> None:
        """Send *data*, now or when there is room."""

    def unsent_bytes(self) -> int:
        """Return how much was written and not yet sent."""

    def pause_reading(self) -> None:
        """Deliver no more data for a while."""

    def resume_reading(self) -> None:
        """Deliver data again."""

    def close(self) -> None:
        """Send what is written, then close."""

    def abort(self) -> None:
        """Close at once."""

    def greeted(self, name: str) -> bool:
        """Cancel the handshake timeout; say whether principal *name* may have the place."""


@final
class Intake:
    """Whether a connection reads from its wire."""

    def __init__(self, wire: Wire) -> None:
        self.is_open: bool = True
        self._wire: Wire = wire

    def stop(self) -> None:
        """Read no more; what the peer sends waits at its own end."""
        if self.is_open:
            self.is_open = False
            self._wire.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        self.is_open = True
        self._wire.resume_reading()


class Limits:
    """The bounds of one connection."""

    def __init__(self, *, output_buffer_bytes: int, messages_per_s: int) -> None:
        self.output_buffer_bytes: int = output_buffer_bytes
        self.messages_per_s: int = messages_per_s


class WaitingReply:
    """A reply that leaves once an id is committed."""

    def __init__(self, after_id: int, data: bytes) -> None:
        self.after_id: int = after_id
        self.data: bytes = data


class Output:
    """What leaves one connection."""

    connection: "Connection"  # sets itself here when it is made

    def __init__(self, engine: "Engine", wire: Wire, limits: Limits) -> None:
        # The connection holds this deque too, and checks it for each command: never replace it.
        self.replies: deque[WaitingReply] = deque()
        self.pieces: list[bytes] = []  # of the write that ends this turn
        self.is_listed: bool = False  # the connection is in the engine's list of waiting ones
        self.engine: Engine = engine
        self.broker: Broker = engine.broker
        self.wire: Wire = wire
        self.buffer_bytes: int = limits.output_buffer_bytes

    # Each strand implements these.

    def collect(self) -> None:
        """Turn the deliveries into bytes and append them to the output."""
        raise NotImplementedError

    def frame_refusal(self, text: str) -> bytes:
        """Return the refusal of a frame that the peer has not finished."""
        raise NotImplementedError

    def refusal_of(self, reply: WaitingReply, reason: str) -> bytes:
        """Return what is sent in place of a reply whose record the log refused.

        Empty when the reply only waits for what came before it: it is sent later, unchanged.
        """
        raise NotImplementedError

    # Replies.

    def reply(self, data: bytes) -> None:
        """Send a reply that waits for nothing but the replies before it."""
        if self.replies:
            # Behind what may still be refused, so that a refusal comes before it.
            self.replies.append(WaitingReply(self.connection.last_id, data))
        else:
            # Deliveries so far go first: a consumer must see a message before the answer to a
            # command that came after it.
            self.note_delivered()
            self.collect()
            self.pieces.append(data)

    def reply_after(self, reply: WaitingReply) -> None:
        """Send a reply once its id is committed."""
        if not self.replies and reply.after_id <= self.broker.committed_id:
            self.note_delivered()
            self.collect()
            self.pieces.append(reply.data)
        else:
            self.replies.append(reply)
            self.wait_for_commit()

    def wait_for_commit(self) -> None:
        """Have the connection woken by the next commit."""
        if not self.is_listed:
            self.is_listed = True
            self.engine.waiting.append(self.connection)

    def send_committed(self) -> None:
        """Send the replies whose ids are committed."""
        replies = self.replies
        committed_id = self.broker.committed_id
        self.note_delivered()
        while replies and replies[0].after_id <= committed_id:
            self.collect()
            self.pieces.append(replies.popleft().data)
        if replies:
            self.wait_for_commit()

    def refuse(self, from_id: int, refused: list[Message], again_id: int, reason: str) -> None:  # noqa: ARG002 - for strands whose publishes have no reply that waits
        """Turn the replies to what the log refused, from *from_id* on, into refusals.

        Replies that wait for acknowledgements wait for *again_id* instead.
        """
        kept: list[WaitingReply] = []
        for reply in self.replies:
            if reply.after_id < from_id:
                kept.append(reply)
            else:
                kept.append(self.refused_reply(reply, again_id, reason))
        self.replace_replies(kept)

    def refused_reply(self, reply: WaitingReply, again_id: int, reason: str) -> WaitingReply:
        """Return what waits in place of a reply whose record the log refused."""
        refusal = self.refusal_of(reply, reason)
        # Id 0 is always committed: the refusal waits only for the replies before it.
        return WaitingReply(0, refusal) if refusal else WaitingReply(again_id, reply.data)

    def replace_replies(self, kept: list[WaitingReply]) -> None:
        """Make *kept* the replies that wait."""
        self.replies.clear()  # in place: the connection holds the same deque
        self.replies.extend(kept)
        if kept:
            self.wait_for_commit()

    # The write.

    def flush(self) -> None:
        """Write what this turn has brought."""
        self.note_delivered()
        self.collect()
        connection = self.connection
        if self.pieces and not connection.closed:
            data = b"".join(self.pieces)
            self.pieces = []
            if data:
                self.wire.write(data)
            if connection.writable:
                self.measure_room()

    def note_delivered(self) -> None:
        """Count what was handed out since the last call, before it is turned into bytes."""
        connection = self.connection
        count = connection.delivered
        if count:
            connection.delivered = 0
            engine = self.engine
            engine.handed_out[connection.strand] += count
            if engine.tracing is not None:
                engine.tracing.delivered(
                    connection.strand, connection.deliveries[-count:], engine.now_us()
                )

    def measure_room(self) -> None:
        """Measure how much more may be pushed to the peer; resume if there is room again."""
        # Up to the bound and not above it there is room: only above it does the transport
        # call us again when there is.
        connection = self.connection
        was_full = connection.room_bytes <= 0
        connection.room_bytes = self.buffer_bytes + 1 - self.wire.unsent_bytes()
        if was_full and connection.room_bytes > 0:
            self.broker.resume(connection, self.engine.now_us())


class Connection(Peer):
    """One connection; each strand implements the methods that raise NotImplementedError."""

    def __init__(self, engine: "Engine", wire: Wire, limits: Limits, output: Output) -> None:
        super().__init__()
        self.strand: str = ""  # set, like the number, by the listener that accepts it
        self.number: int = 0
        self.since_us: int = engine.now_us()
        self.output: Output = output
        self.last_id: int = 0  # the newest record that this connection caused
        self.subscribed_id: int = 0  # the record of its newest subscription
        self.writable: bool = True
        self.closed: bool = False
        self.input_finished: bool = False
        self.known_topic: Topic | None = None  # of the last publish, and others by their names;
        self.known_topics: dict[str, Topic] = {}  # the engine clears both when some are gone
        self.intake: Intake = Intake(wire)
        self.is_noted: bool = False  # `UnfinishedInput` counts its input
        self.vouched_for: Principal | None = None  # who pays for it until `principal` is known
        self._engine: Engine = engine
        self._broker: Broker = engine.broker
        self._admission: PublishAdmission = engine.broker.admission
        self._wire: Wire = wire
        self._limits: Limits = limits
        self._replies: deque[WaitingReply] = output.replies
        self._tokens: TokenBucket | None = None
        self._starving: bool = False
        self._waits_in: list[Peer] = []  # the list of a queue that has no room for us
        self._ending: bool = False  # close when everything is answered
        self._waits: bool = False  # commands wait, and do not stop those after them
        self._will_wake: bool = False  # a timer for the next token runs
        self.room_bytes = limits.output_buffer_bytes
        if limits.messages_per_s:
            self._tokens = TokenBucket(limits.messages_per_s)
        output.connection = self

    # Each strand implements these.

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proven who it is."""
        raise NotImplementedError

    def _take_in(self, data: bytes) -> None:
        """Pass the peer's bytes to the session."""
        raise NotImplementedError

    def _handle(self, now_us: int) -> None:
        """Execute commands while the wire is writable, until none is left or one is held.

        The loop is the strand's, so that nothing is called here once per command.

        Raises:
            WireError: Framing is lost.
        """
        raise NotImplementedError

    def _is_blocked(self) -> bool:
        """Return whether a command is held."""
        raise NotImplementedError

    def _held_bytes(self) -> int:
        """Return how much was taken in and not handled, commands that wait included."""
        raise NotImplementedError

    def _lost_framing(self, error: WireError) -> None:
        """Answer everything before the malformed bytes, then close."""
        raise AssertionError(error)  # most sessions answer lost framing themselves

    # The transport calls these.

    def receive(self, data: bytes) -> None:
        """Handle bytes of the peer."""
        if self._ending or self.closed:
            return  # nothing more is answered
        self._take_in(data)
        if self._is_blocked():
            self._after_run()  # what the held command waits for will wake us
            return
        self._run()
        self._engine.end_turn()

    def finish_input(self) -> None:
        """Answer everything, then close: the peer sends no more."""
        self.input_finished = True
        self._broker.stop_pushing(self)
        self._run()
        self._ending = True
        self._after_run()
        self._engine.end_turn()

    def set_writable(self, writable: bool) -> None:  # noqa: FBT001 - the transport's own signature
        """Note whether the output buffer has room."""
        self.writable = writable
        if writable and not self.closed:
            self.room_bytes = self._limits.output_buffer_bytes
            # Deliveries first, then the commands that were held.
            self._broker.resume(self, self._engine.now_us())
            self.wake()
            self._engine.end_turn()
        elif not writable:
            self.room_bytes = 0

    def lost(self) -> None:
        """Give back what the peer held: its connection is lost."""
        self.closed = True
        # The engine's lists may still hold it: `wake` does nothing once it is closed. Leave a
        # queue's list now, as the queue may have no room for a long time.
        _leave(self._waits_in, self)
        self._replies.clear()
        if self.is_noted:
            self._engine.unfinished.forget(self)
        self._broker.detach(self, self._engine.now_us())
        self._engine.end_turn()

    # The engine calls these.

    def say_goodbye(self) -> None:
        """Tell the peer that the broker shuts down, if its strand has a frame for that."""

    def permissions_changed(self) -> None:
        """Forget what was allowed: the principal may do more now, or less."""
        self._broker.resume(self, self._engine.now_us())  # more may be handed out

    def revoke(self) -> None:
        """Close at once, without a word: the principal is gone. Nothing more is handled."""
        self._ending = True
        self.closed = True
        self._wire.abort()

    def refuse(self, from_id: int, refused: list[Message], again_id: int, reason: str) -> None:
        """Turn the answers to what the log refused, from *from_id* on, into refusals.

        Replies that wait for acknowledgements wait for *again_id* instead.
        """
        self.output.refuse(from_id, refused, again_id, reason)
        # Those ids are given to other records now.
        if self.last_id >= from_id:
            self.last_id = again_id
        if self.subscribed_id >= from_id:
            self.subscribed_id = 0

    def refuse_unfinished(self, text: str) -> None:
        """Tell the peer why its unfinished frame is refused, and disconnect it."""
        if self.closed or self._ending:
            return
        self._ending = True  # from here on its input is ignored
        output = self.output
        if self.writable and not self._is_blocked() and not self._waits:
            output.reply(output.frame_refusal(text))
            output.flush()
            self._engine.unfinished.forget(self)
            self._after_run()
            return
        # Its commands may wait for long, and their memory is needed now: close at once.
        output.pieces.append(output.frame_refusal(text))
        output.flush()
        self._engine.unfinished.forget(self)
        self.closed = True
        if self.writable:
            self._wire.close()
        else:
            self._wire.abort()

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

    # The turn.

    def _run(self) -> None:
        try:
            self._handle(self._engine.now_us())
        except WireError as error:
            self._lost_framing(error)
        self.output.flush()
        self._after_run()

    def _after_run(self) -> None:
        blocked = self._is_blocked() or not self.writable
        held_up = blocked or self._waits
        # Once everything is answered what is left is the beginning of a frame, which goes.
        held = 0 if self._ending and not held_up else self._held_bytes()
        if (held > UNFINISHED_MIN or held_up or self.is_noted) and not self.closed:
            counted = held if held > UNFINISHED_MIN else 0
            unfinished = self._engine.unfinished
            refusal = unfinished.note(self, counted, self._engine.now_us(), held_up=held_up)
            if refusal:
                self.refuse_unfinished(refusal)
                return
        # A blocked peer may still send a bounded amount, so that it need not wait for a round
        # trip when it goes on; beyond that TCP's flow control stops it.
        if blocked:
            if held > READ_AHEAD_BYTES:
                self.intake.stop()
        elif not self.intake.is_open and not (
            held_up and self._engine.unfinished.must_wait(self)
        ):
            self.intake.go_on()
        if self._ending and not blocked and not self.closed and not self._replies:
            self.closed = True
            self._wire.close()

    # What a publisher waits for.

    def _starve(self) -> None:
        """Wait for the log to catch up, listed once."""
        if not self._starving:
            self._starving = True
            self._engine.starved.append(self)

    def _park(self, queue: Queue) -> None:
        """Wait for room in a queue, listed once however often this connection is woken."""
        # Compared by identity: a queue that wakes its publishers starts a new list, and this
        # connection must join that one if there is still no room.
        line = queue.line()
        if self._waits_in is not line:
            _leave(self._waits_in, self)
            line.append(self)
            self._waits_in = line


def _leave(line: list[Peer], peer: Peer) -> None:
    if peer in line:
        line.remove(peer)
