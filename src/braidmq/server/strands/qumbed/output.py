"""What leaves a Qumbed stream: answers in their order, and messages as far as the window goes.

Answers leave before what is delivered in the same turn, so that a Subscribe's Ack comes before
its first Message. What the frames mean that come in is not here (qumbed.py).
"""

from collections import deque
from typing import Final, final

from braidmq.broker.delivery.followers import Follower
from braidmq.broker.topics import Message
from braidmq.server.engine.connection import Connection, WaitingReply
from braidmq.server.engine.host import Host, Limits
from braidmq.server.strands.qumbed.deliveries import Delivering
from braidmq.server.strands.qumbed.link import Link, QumbedOptions, StreamWire
from braidmq.wire.qumbed import messages, session

FRAME_PER_BODY: Final = 4
"""How much longer a small message's frame is than what the broker counts of it."""


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


class QumbedOutput(Connection):
    """A stream as far as it is about what leaves it."""

    def __init__(
        self, host: Host, wire: StreamWire, limits: Limits, options: QumbedOptions, link: Link
    ) -> None:
        super().__init__(host, wire, limits)
        self._stream: StreamWire = wire
        self._options: QumbedOptions = options
        self._link: Link = link
        self._delivering = Delivering(options.gateway)
        self._is_done: bool = False  # what the peer sends from now on is not looked at
        self._follow_id: int = 0  # the record of its newest subscription
        self._collected_bytes: int = 0  # pushed and not written yet
        self._room_is_stale: bool = False  # something that was given to us was not sent
        self._collected: list[Sent] = []  # of recorded followers, not written yet
        self._sent: deque[Sent] = deque()  # written, and perhaps not arrived
        self.room_bytes = options.window_bytes // FRAME_PER_BODY

    # What the transport and the host say.

    def set_writable(self, writable: bool) -> None:  # noqa: FBT001 - the transport's own word
        """Note whether there is room in the connection's output and the stream's window."""
        self._writable = writable
        self.room_bytes = 0
        self._collected_bytes = 0
        if writable and not self._closed:
            self.note_received()
            self.wake()  # first what was given to it before
            self._measure_room()
            self._host.end_turn()

    def refuse(self, from_id: int, refused: list[Message], again_id: int, reason: str) -> None:  # noqa: ARG002 - every Publish has a reply that waits
        """Turn the answers to what the log refused, from *from_id* on, into Errors."""
        kept: deque[WaitingReply] = deque()
        for reply in self._replies:
            if reply.after_id < from_id:
                kept.append(reply)
            elif isinstance(reply, Answer):
                error = messages.error(session.SERVER_ERROR, reason, reply.frame_id)
                kept.append(WaitingReply(0, error))
            else:
                kept.append(WaitingReply(again_id, reply.data))
        self._replies = kept
        if self._last_id >= from_id:
            self._last_id = again_id
        if self._follow_id >= from_id:
            self._follow_id = 0
        self._note_waiting()

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

    # The end.

    def _end(self) -> None:
        self._is_done = True
        self._ending = True
        self._end_subscriptions()

    def _end_subscriptions(self) -> None:
        self._collect()
        self._broker.detach(self, self._host.now_us())

    # Answers.

    def _error(self, frame: messages.Frame, code: str, text: str) -> None:
        self._reply(messages.error(code, text, frame.id))

    def _reply(self, data: bytes) -> None:
        if self._replies:
            # Behind what may still be refused, so that a refusal comes before it.
            self._replies.append(WaitingReply(self._last_id, data))
        else:
            self._out.append(data)

    def _answer(self, reply: WaitingReply) -> None:
        if not self._replies and reply.after_id <= self._broker.committed_id:
            self._out.append(_data_of(reply))
        else:
            self._replies.append(reply)
            self._note_waiting()

    def _send_committed(self) -> None:
        replies = self._replies
        committed_id = self._broker.committed_id
        while replies and replies[0].after_id <= committed_id:
            self._out.append(_data_of(replies.popleft()))
        self._note_waiting()

    def _collect(self) -> None:
        deliveries = self.deliveries
        if not deliveries or not self._writable:
            return
        if self._stream.is_stopped:
            # It wants no more of us: what it would have got is not passed off as delivered.
            self._broker.detach(self, self._host.now_us())
            return
        room = self._window_room() - self._collected_bytes
        now_us = self._host.now_us()
        taken = 0
        for delivery in deliveries:
            if room <= 0:
                break  # its elders go first; the rest has its place in the list
            taken += 1
            message = delivery.message
            follower = self.following.get(message.topic.name)
            frame: bytes | None = None
            if follower is not None:
                frame = self._delivering.frame(message, follower.key, now_us)
                if frame is None:
                    self._broker.too_large(self, message, now_us)
            if frame is None:
                self._room_is_stale = True
            else:
                room -= len(frame)
                self._collected_bytes += len(frame)
                self._out.append(frame)
                if follower is not None and follower.id > 0 and message.id:
                    follower.unreceived.append(message.id)
                    self._collected.append(Sent(0, follower, message.id))
        self.deliveries = deliveries[taken:]
        if self.deliveries:
            self._room_is_stale = True

    def _flush(self) -> None:
        super()._flush()
        if self._collected:
            # All of one write arrive with its end: a few may come twice, none is missed.
            written_bytes = self._stream.written_bytes
            for one in self._collected:
                one.end = written_bytes
                self._sent.append(one)
            self._collected = []
        if self._room_is_stale:
            self._room_is_stale = False
            if self._writable:
                self._measure_room()

    def _window_room(self) -> int:
        """Return how many bytes may be pushed; when none, have us called when they may."""
        # The window is the stream's, the output buffer all streams' together.
        stream = self._stream
        window_bytes = self._options.window_bytes
        in_window = window_bytes - stream.stream_unsent_bytes()
        if in_window <= 0:
            stream.tell_below(window_bytes // 2)
        return min(in_window, self._limits.output_buffer_bytes + 1 - stream.unsent_bytes())

    def _measure_room(self) -> None:
        self._collected_bytes = 0
        was_full = self.room_bytes <= 0
        room = self._window_room()
        if self.deliveries:
            room = 0  # what was given before goes first
            self._stream.tell_below(self._options.window_bytes // 2)
        self.room_bytes = (room + FRAME_PER_BODY - 1) // FRAME_PER_BODY
        if was_full and room > 0:
            self._broker.resume(self, self._host.now_us())


def _data_of(reply: WaitingReply) -> bytes:
    if not isinstance(reply, Published):
        return reply.data
    message = reply.message
    message_id = reply.frame_id or (str(message.id) if message.id else "")
    return messages.ack(message_id, message.routed)
