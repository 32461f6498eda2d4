"""Messages on Qumbed: a Publish becomes a message, any strand's message becomes a Message.

A sealed box is passed on as it is; anything else is sealed for the follower's key by the
broker's gateway. `QumbedOutput` is what leaves a stream: answers in order, and as many messages
as the window has room for. Answers leave before what is delivered in the same turn, so that a
Subscribe's Ack comes before its first Message.
"""

import hashlib
from collections import deque
from typing import TYPE_CHECKING, Final, final

from braidmq.broker.dedup import HEADER as DEDUP_HEADER
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.marks import Marks, mark, marks_of
from braidmq.broker.topics import Message, Topic, body_of, encode_headers
from braidmq.server.engine.connection import Limits, Output, WaitingReply
from braidmq.server.strands.qumbed.gateway import GatewayKey
from braidmq.server.strands.qumbed.link import QumbedOptions, StreamWire
from braidmq.wire.qumbed import frames, messages, session
from braidmq.wire.qumbed.session import SEAL_BYTES

if TYPE_CHECKING:
    from braidmq.server.engine.engine import Engine

FRAME_PER_BODY: Final = 4
"""Bytes of a small message's frame for each byte that the broker counts of it."""

KEYLESS_ID_CHARACTERS_MIN: Final = 16
"""Ids of this length are assumed to be random, so that no two clients choose the same."""

DEDUP_DIGITS: Final = 48
"""Hex digits of the hash; with 192 bits no two ids ever collide."""

_US_PER_MS: Final = 1_000


def dedup_id_of(publish: messages.Publish, principal: str, connection: str) -> str:
    """Return the deduplication id of a Publish, in a namespace of its sender; "" if none.

    Senders without a key cannot be told apart: unless its id is long enough to be unique, it is
    valid on its *connection* only.
    """
    if not publish.id:
        return ""
    sender = publish.sender_public_key.hex()
    if not sender and len(publish.id) < KEYLESS_ID_CHARACTERS_MIN:
        sender = connection
    # Hashed: it is stored with the message, and consumers of other strands see it.
    # The length makes it unambiguous: a principal's name may contain a colon.
    whole = f"{len(principal)}:{principal}:{sender}:{publish.id}"
    return "qumbed:" + hashlib.sha256(whole.encode()).hexdigest()[:DEDUP_DIGITS]


def message_of(
    publish: messages.Publish,
    topic: Topic,
    options: QumbedOptions,
    now_us: int,
    *,
    sealed: bool,
    dedup_id: str,
) -> Message:
    """Return the message of a Publish."""
    message = Message(topic, 1 if options.is_durable else 0, body_of(topic, publish.payload))
    mark(
        message,
        schema_id=publish.schema_id,
        recipient_key_id=publish.recipient_key_id,
        sender_public_key=publish.sender_public_key,
    )
    # Judged already; `marks_of` would parse the payload once more to find that out.
    message.marks = Marks(publish.schema_id, publish.sender_public_key, sealed=sealed)
    if dedup_id:
        message.headers += encode_headers({DEDUP_HEADER: dedup_id})
    if options.ttl_us and topic.queue is None:
        message.set_ttl(options.ttl_us, now_us)
    return message


@final
class Delivering:
    """Makes the Message frames of one stream."""

    def __init__(self, gateway: GatewayKey) -> None:
        self._gateway: GatewayKey = gateway
        self._gateway_key: bytes = gateway.public_key
        self._quoted: dict[str, bytes] = {}  # topics as JSON
        self._schema_id: str = ""  # the last one, and as JSON
        self._quoted_schema_id: bytes = b'""'

    def frame(self, message: Message, public_key: bytes, now_us: int) -> bytes | None:
        """Return the frame for a subscriber's key, or None when it would be too long."""
        topic = message.topic.name
        quoted = self._quoted.get(topic)
        if quoted is None:
            quoted = messages.quote(topic)
            self._quoted[topic] = quoted
        marks = marks_of(message)
        if marks.schema_id != self._schema_id:
            self._schema_id = marks.schema_id
            self._quoted_schema_id = messages.quote(marks.schema_id)
        payload = message.payload
        # Measured before it is sealed: encrypting a payload only to drop it would be a waste.
        size = len(payload) if marks.sealed else len(payload) + SEAL_BYTES
        if messages.message_bytes(quoted, size, self._quoted_schema_id) > frames.FRAME_MAX:
            return None
        sender = marks.sender_public_key
        if not marks.sealed:
            payload = self._gateway.seal_for(public_key, payload)
            sender = self._gateway_key
        return messages.message(
            quoted,
            payload,
            sender,
            message_id=str(message.id) if message.id else "",
            schema_id=self._quoted_schema_id,
            timestamp_ms=(message.timestamp_us or now_us) // _US_PER_MS,
        )

    def forget(self, topic: str) -> None:
        """Drop what is cached of a topic that is no longer subscribed to."""
        self._quoted.pop(topic, None)


class QumbedReply(WaitingReply):
    """A reply that becomes an Error when the log refuses the record it waits for."""

    def __init__(self, after_id: int, data: bytes, frame_id: str) -> None:
        super().__init__(after_id, data)
        self.frame_id: str = frame_id


@final
class PublishReply(QumbedReply):
    """The Ack of a Publish; its count of receiving streams is known only when it leaves."""

    def __init__(self, message: Message, frame_id: str) -> None:
        super().__init__(message.id, b"", frame_id)
        self.message: Message = message


@final
class Sent:
    """A message on its way to a recorded follower, which ends at *end* in the stream."""

    def __init__(self, end: int, follower: Follower, message_id: int) -> None:
        self.end: int = end
        self.follower: Follower = follower
        self.message_id: int = message_id


@final
class QumbedOutput(Output):
    """What leaves one stream."""

    def __init__(
        self, engine: "Engine", wire: StreamWire, limits: Limits, options: QumbedOptions
    ) -> None:
        super().__init__(engine, wire, limits)
        self.delivering: Delivering = Delivering(options.gateway)
        self.tells_times: bool = False  # Acks say when their messages were accepted
        self.collected_bytes: int = 0  # made into frames and not written yet
        self._stream: StreamWire = wire
        self._window_bytes: int = options.window_bytes
        self._room_is_stale: bool = False  # a delivery was not sent, so its room is free again
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
            self.pieces.append(_data_of(reply, tells_times=self.tells_times))
        else:
            self.replies.append(reply)
            self.wait_for_commit()

    def send_committed(self) -> None:
        """Send the replies whose ids are committed."""
        replies = self.replies
        committed_id = self.broker.committed_id
        while replies and replies[0].after_id <= committed_id:
            self.pieces.append(_data_of(replies.popleft(), tells_times=self.tells_times))
        if replies:
            self.wait_for_commit()

    def refusal_of(self, reply: WaitingReply, reason: str) -> bytes:
        """Return the Error in place of an answer whose record the log refused."""
        if isinstance(reply, QumbedReply):
            return messages.error(session.SERVER_ERROR, reason, reply.frame_id)
        return b""

    # Messages.

    def frame_refusal(self, text: str) -> bytes:
        """Return the Error of an unfinished frame, whose id is not known."""
        return messages.error(session.SERVER_ERROR, text)

    def collect(self) -> None:
        """Turn deliveries into bytes and append them to the output, while the window lasts."""
        connection = self.connection
        deliveries = connection.deliveries
        if not deliveries or not connection.writable:
            return
        if self._stream.is_stopped:
            # The peer reads no more: its messages must not count as delivered.
            self.broker.detach(connection, self.engine.now_us())
            return
        room = self._window_room() - self.collected_bytes
        now_us = self.engine.now_us()
        taken = 0
        for delivery in deliveries:
            if room <= 0:
                break  # the rest stays in the list, in order
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
            # A message counts as received with the end of its write: after a lost connection a
            # few may be sent twice, none is missed.
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
        """Measure how much more may be pushed to the peer; resume if there is room again."""
        connection = self.connection
        self.collected_bytes = 0
        was_full = connection.room_bytes <= 0
        room = self._window_room()
        if connection.deliveries:
            room = 0  # earlier deliveries go first
            self._stream.tell_below(self._window_bytes // 2)
        connection.room_bytes = (room + FRAME_PER_BODY - 1) // FRAME_PER_BODY
        if was_full and room > 0:
            self.broker.resume(connection, self.engine.now_us())

    def note_received(self) -> None:
        """Bring the followers' `unreceived` up to date."""
        sent = self._sent
        if sent:
            received_bytes = self._stream.received_bytes()
            while sent and sent[0].end <= received_bytes:
                arrived = sent.popleft()
                waiting = arrived.follower.unreceived
                # Not if the follower has left meanwhile: its list is a new one then.
                if waiting and waiting[0] == arrived.message_id:
                    waiting.popleft()


def _data_of(reply: WaitingReply, *, tells_times: bool) -> bytes:
    if not isinstance(reply, PublishReply):
        return reply.data
    message = reply.message
    message_id = reply.frame_id or (str(message.id) if message.id else "")
    timestamp_ms = message.timestamp_us // _US_PER_MS if tells_times else 0
    return messages.ack(message_id, message.routed, timestamp_ms)
