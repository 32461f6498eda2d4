"""The output of a Qumbed stream: answers in order, and messages as far as the window goes.

Answers leave before what is delivered in the same turn, so that a Subscribe's Ack comes before
its first Message. What incoming frames mean is in `stream`.
"""

from collections import deque
from typing import Final, final

from braidmq.broker.delivery.followers import Follower
from braidmq.broker.topics import Message
from braidmq.server.engine.host import Host, Limits
from braidmq.server.engine.output import Output, WaitingReply
from braidmq.server.strands.qumbed.deliveries import Delivering
from braidmq.server.strands.qumbed.link import QumbedOptions, StreamWire
from braidmq.wire.qumbed import messages, session

FRAME_PER_BODY: Final = 4
"""Bytes of a small message's frame for each byte that the broker counts of it."""


class Answer(WaitingReply):
    """A reply that becomes an Error when the log refuses the record it waits for."""

    def __init__(self, after_id: int, data: bytes, frame_id: str) -> None:
        super().__init__(after_id, data)
        self.frame_id: str = frame_id


@final
class Published(Answer):
    """The Ack of a Publish; how many streams it was routed to is known when it leaves."""

    def __init__(self, message: Message, frame_id: str) -> None:
        super().__init__(message.id, b"", frame_id)
        self.message: Message = message


@final
class Sent:
    """A message for a recorded follower that is on its way, up to *end* in the stream."""

    def __init__(self, end: int, follower: Follower, message_id: int) -> None:
        self.end: int = end
        self.follower: Follower = follower
        self.message_id: int = message_id


@final
class QumbedOutput(Output):
    """What leaves one stream."""

    def __init__(
        self, host: Host, wire: StreamWire, limits: Limits, options: QumbedOptions
    ) -> None:
        super().__init__(host, wire, limits)
        self.delivering: Delivering = Delivering(options.gateway)
        self.collected_bytes: int = 0  # pushed and not written yet
        self._stream: StreamWire = wire
        self._window_bytes: int = options.window_bytes
        self._room_is_stale: bool = False  # something that was given to us was not sent
        self._collected: list[Sent] = []  # of recorded followers, not written yet
        self._sent: deque[Sent] = deque()  # written, and perhaps not arrived

    # Answers.

    def reply(self, data: bytes) -> None:
        """Send a reply that waits for nothing but the replies before it."""
        if self.replies:
            # Behind what may still be refused, so that a refusal comes before it.
            self.replies.append(WaitingReply(self.connection.last_id, data))
        else:
            self.pieces.append(data)

    def reply_after(self, reply: WaitingReply) -> None:
        """Send a reply once its id is committed."""
        if not self.replies and reply.after_id <= self.broker.committed_id:
            self.pieces.append(_data_of(reply))
        else:
            self.replies.append(reply)
            self.wait_for_commit()

    def send_committed(self) -> None:
        """Send the replies whose ids are committed."""
        replies = self.replies
        committed_id = self.broker.committed_id
        while replies and replies[0].after_id <= committed_id:
            self.pieces.append(_data_of(replies.popleft()))
        if replies:
            self.wait_for_commit()

    def refusal_of(self, reply: WaitingReply, reason: str) -> bytes:
        """Return the Error in place of an answer whose record the log refused."""
        if isinstance(reply, Answer):
            return messages.error(session.SERVER_ERROR, reason, reply.frame_id)
        return b""

    # Messages.

    def collect(self) -> None:
        """Turn the deliveries into bytes behind the output so far, while the window lasts."""
        connection = self.connection
        deliveries = connection.deliveries
        if not deliveries or not connection.writable:
            return
        if self._stream.is_stopped:
            # The peer reads no more: what it would have got must not count as delivered.
            self.broker.detach(connection, self.host.now_us())
            return
        room = self._window_room() - self.collected_bytes
        now_us = self.host.now_us()
        taken = 0
        for delivery in deliveries:
            if room <= 0:
                break  # the older messages go first; the rest keeps its place in the list
            taken += 1
            message = delivery.message
            follower = connection.following.get(message.topic.name)
            frame: bytes | None = None
            if follower is not None:
                frame = self.delivering.frame(message, follower.key, now_us)
                if frame is None:
                    self.broker.too_large(connection, message, now_us)
            if frame is None:
                self._room_is_stale = True
            else:
                room -= len(frame)
                self.collected_bytes += len(frame)
                self.pieces.append(frame)
                if follower is not None and follower.id > 0 and message.id:
                    follower.unreceived.append(message.id)
                    self._collected.append(Sent(0, follower, message.id))
        connection.deliveries = deliveries[taken:]
        if connection.deliveries:
            self._room_is_stale = True

    def flush(self) -> None:
        """Write what this turn has brought, and note how far in the stream it reaches."""
        super().flush()
        if self._collected:
            # A message counts as received with the end of its write: after a break a few may
            # be sent twice, none is missed.
            written_bytes = self._stream.written_bytes
            for one in self._collected:
                one.end = written_bytes
                self._sent.append(one)
            self._collected = []
        if self._room_is_stale:
            self._room_is_stale = False
            if self.connection.writable:
                self.measure_room()

    def _window_room(self) -> int:
        """Return how many bytes may be pushed; if none, have the wire tell when some may."""
        # The window is the stream's, the output buffer all streams' together.
        stream = self._stream
        window_bytes = self._window_bytes
        in_window = window_bytes - stream.stream_unsent_bytes()
        if in_window <= 0:
            stream.tell_below(window_bytes // 2)
        return min(in_window, self.buffer_bytes + 1 - stream.unsent_bytes())

    def measure_room(self) -> None:
        """See how much more may be pushed to the peer, and go on pushing if that is new."""
        connection = self.connection
        self.collected_bytes = 0
        was_full = connection.room_bytes <= 0
        room = self._window_room()
        if connection.deliveries:
            room = 0  # what was given before goes first
            self._stream.tell_below(self._window_bytes // 2)
        connection.room_bytes = (room + FRAME_PER_BODY - 1) // FRAME_PER_BODY
        if was_full and room > 0:
            self.broker.resume(connection, self.host.now_us())

    def note_received(self) -> None:
        """Bring the followers' `unreceived` up to date."""
        sent = self._sent
        if sent:
            received_bytes = self._stream.received_bytes()
            while sent and sent[0].end <= received_bytes:
                arrived = sent.popleft()
                waiting = arrived.follower.unreceived
                if waiting and waiting[0] == arrived.message_id:
                    waiting.popleft()


def _data_of(reply: WaitingReply) -> bytes:
    if not isinstance(reply, Published):
        return reply.data
    message = reply.message
    message_id = reply.frame_id or (str(message.id) if message.id else "")
    return messages.ack(message_id, message.routed)
