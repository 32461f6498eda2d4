"""The output of a connection: replies in the order of their requests, and deliveries.

    reply ──▶ replies (wait for a commit) ──┐
                                            ├──▶ pieces ──▶ one write per turn
    deliveries of the broker ──▶ collect ───┘

A reply that waits for a commit keeps the later replies behind it. A strand's subclass turns
deliveries into its frames, and waiting replies into its refusals.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from braidmq.broker.broker import Broker
from braidmq.broker.topics import Message
from braidmq.server.engine.host import Host, Limits, Wire

if TYPE_CHECKING:
    from braidmq.server.engine.connection import Connection

WAITING_REPLIES_MAX: Final = 16_384
"""Replies that may wait for a commit; above it the connection's commands wait as well."""


class WaitingReply:
    """A reply that leaves once an id is committed."""

    def __init__(self, after_id: int, data: bytes) -> None:
        self.after_id: int = after_id
        self.data: bytes = data


class Output:
    """What leaves one connection."""

    connection: "Connection"  # sets itself here when it is made

    def __init__(self, host: Host, wire: Wire, limits: Limits) -> None:
        # Connections keep this list too, to look at it for each command: it is never replaced.
        self.replies: deque[WaitingReply] = deque()
        self.pieces: list[bytes] = []  # of the write that ends this turn
        self.is_listed: bool = False  # the connection is in the host's list of waiting ones
        self.host: Host = host
        self.broker: Broker = host.broker
        self.wire: Wire = wire
        self.buffer_bytes: int = limits.output_buffer_bytes

    # What a strand gives.

    def collect(self) -> None:
        """Turn the deliveries into bytes behind the output so far."""
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
            self.host.waiting.append(self.connection)

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
        return WaitingReply(0, refusal) if refusal else WaitingReply(again_id, reply.data)

    def replace_replies(self, kept: list[WaitingReply]) -> None:
        """Let *kept* wait instead of all that waited so far."""
        self.replies.clear()
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
            self.wire.write(data)
            if connection.writable:
                self.measure_room()

    def note_delivered(self) -> None:
        """Count what was handed out since the last call, before it is turned into bytes."""
        connection = self.connection
        count = connection.delivered
        if count:
            connection.delivered = 0
            host = self.host
            host.handed_out[connection.strand] += count
            if host.tracing is not None:
                host.tracing.delivered(
                    connection.strand, connection.deliveries[-count:], host.now_us()
                )

    def measure_room(self) -> None:
        """See how much more may be pushed to the peer, and go on pushing if that is new."""
        # Up to the bound and not above it there is room: only above it does the transport
        # call us again when there is.
        connection = self.connection
        was_full = connection.room_bytes <= 0
        connection.room_bytes = self.buffer_bytes + 1 - self.wire.unsent_bytes()
        if was_full and connection.room_bytes > 0:
            self.broker.resume(connection, self.host.now_us())
