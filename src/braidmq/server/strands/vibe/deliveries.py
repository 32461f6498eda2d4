"""Messages on Vibe: a Publish becomes a message, a message of any strand becomes a Deliver.

    VibeOutput   what leaves a connection: deliveries as Deliver frames, refusals as Errors
    Outstanding  what the peer was handed and may still acknowledge, by message id

Payloads cross strands here: JSON is passed as it is, other bytes as base64.
"""

import struct
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

from braidmq.broker import dead_letters
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import LEFT, SETTLED, Delivery, Entry, Peer
from braidmq.broker.topics import (
    CONTENT_ENCODING_HEADER,
    MESSAGE_ID_HEADER,
    ORIGIN_VIBE,
    PRIORITY_NORMAL,
    Message,
    Topic,
    body_of,
    decode_headers,
    encode_headers,
    is_brokers_header,
)
from braidmq.server.engine.connection import Limits, Output, WaitingReply, Wire
from braidmq.wire.vibe import frames, messages, session
from braidmq.wire.vibe.messages import as_json

if TYPE_CHECKING:
    from braidmq.server.engine.engine import Engine

NOT_REJECTED: Final = "not rejected, the message is delivered again: "
"""How the Error of a rejection begins whose dead letter the log did not take."""

PAUSE_US: Final = 24 * 3600 * 1_000_000
"""How long a dead letter that no frame can carry is skipped; other strands may take it."""

SWEEP_MIN: Final = 2048
"""Deliveries that are remembered before those that have ended are removed."""

PRIORITIES: Final[dict[str, int]] = {"low": 0, "normal": 1, "high": 2, "critical": 3}

_U16: Final = struct.Struct("<H")
_ID_AT: Final = 4  # in a block that begins with the message id: two lengths, an empty key
_US_PER_S: Final = 1_000_000
_BODY_BYTES: Final = 10  # all but id, queue, payload and headers
_BODY_BYTES_1_0: Final = _BODY_BYTES + 4  # with the two error fields, absent


def message_of(request: session.Request, topic: Topic) -> Message:
    """Return the message of a Publish."""
    message = Message(topic, 1, body_of(topic, request.payload))
    message.origin = ORIGIN_VIBE
    given = request.headers
    if given:
        message.priority = PRIORITIES.get(given.get("priority", "").lower(), PRIORITY_NORMAL)
        kept = {key: value for key, value in given.items() if not is_brokers_header(key)}
        message.headers = encode_headers({MESSAGE_ID_HEADER: request.id, **kept})
    else:
        message.headers = encode_headers({MESSAGE_ID_HEADER: request.id})
    return message


def give_up(broker: Broker, entry: Entry | None, now_us: int) -> None:
    """End a delivery that no frame can carry; a dead letter stays in its queue."""
    if entry is None:
        broker.stats.drop(dead_letters.TOO_LARGE)
    elif entry.channel.rules.attempts_max == 0:
        broker.queues.requeue(entry, PAUSE_US, now_us)
    else:
        broker.queues.reject(entry, dead_letters.TOO_LARGE, now_us)


@final
class Delivering:
    """Makes the Deliver frames of one connection."""

    def __init__(self, its_session: session.Session, body_max: int) -> None:
        self._session: session.Session = its_session
        self._body_max: int = body_max
        self._plain_attempts: int = 0
        self._plain_us: int = -1
        self._plain: bytes = b""
        self.message_id: str = ""  # of the frame that was made last

    def frame(self, delivery: Delivery, now_us: int) -> bytes | None:
        """Return the frame of a delivery, or None when it would be too long."""
        message = delivery.message
        entry = delivery.entry
        attempts = 1 if entry is None else entry.attempts
        timestamp_us = message.timestamp_us or now_us
        payload = message.payload
        encoded = False
        if payload and message.origin != ORIGIN_VIBE:
            payload, encoded = as_json(payload)
        block = message.headers
        # The common case, without a dict: the block holds nothing but the message id.
        if not encoded and block.startswith(b"\0\0") and len(block) == _ID_AT + _u16(block, 2):
            self.message_id = block[_ID_AT:].decode()
            added = self._plain_headers(attempts, timestamp_us)
        else:
            kept = decode_headers(block)
            self.message_id = kept.pop(MESSAGE_ID_HEADER, "")
            if encoded:
                kept[CONTENT_ENCODING_HEADER] = "base64"
            kept["deliveryAttempts"] = str(attempts)
            kept.setdefault("timestamp", iso(timestamp_us))
            added = messages.encode_headers(kept)
        if not self.message_id:
            self.message_id = str(message.id) if message.id else f"m-{message.arrival}"
        name = message.topic.raw
        # Uncompressed: the peer applies the same limit to what it has decompressed.
        size = len(self.message_id.encode()) + len(name) + len(payload) + len(added)
        is_1_0 = self._session.dialect == frames.DIALECT_1_0
        if size + (_BODY_BYTES_1_0 if is_1_0 else _BODY_BYTES) > self._body_max:
            return None
        return self._session.deliver(self.message_id, name, payload, added)

    def _plain_headers(self, attempts: int, timestamp_us: int) -> bytes:
        # Cached: consecutive messages often have the same timestamp and attempts.
        if attempts != self._plain_attempts or timestamp_us != self._plain_us:
            self._plain_attempts = attempts
            self._plain_us = timestamp_us
            self._plain = messages.encode_headers(
                {"deliveryAttempts": str(attempts), "timestamp": iso(timestamp_us)}
            )
        return self._plain


@final
class Outstanding:
    """The deliveries that a peer was handed and may still acknowledge, by message id.

    It may until another consumer holds the message: also after the timer has put the message
    back, and after an Unsubscribe. Ids are the publishers' own and need not be unique.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer: Peer = peer
        self._by_id: dict[str, list[Entry]] = {}
        self._count: int = 0
        self._sweep_at: int = SWEEP_MIN

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Forget every delivery: the connection is lost."""
        self._by_id = {}
        self._count = 0
        self._sweep_at = SWEEP_MIN

    def note(self, message_id: str, entry: Entry) -> None:
        """Remember a delivery."""
        entries = self._by_id.get(message_id)
        if entries is None:
            self._by_id[message_id] = [entry]
        elif entry in entries:
            return
        else:
            entries.append(entry)
        self._count += 1
        if self._count >= self._sweep_at:
            self._sweep()

    def take(self, message_id: str, queue: str) -> Entry | None:
        """Remove and return the oldest delivery with this id, on *queue* if one is named.

        One that the peer holds comes before one from before its Unsubscribe: a subscriber that
        has come back and got the message again acknowledges what it has.
        """
        entries = self._by_id.get(message_id)
        if entries is None:
            return None
        found: Entry | None = None
        for entry in entries:
            if queue and entry.channel.topic.name != queue:
                continue
            if self._may_end(entry):
                if entry.state != LEFT:
                    found = entry
                    break
                found = found or entry
        if found is not None:
            entries.remove(found)
            self._count -= 1
            if not entries:
                del self._by_id[message_id]
        return found

    def _may_end(self, entry: Entry) -> bool:
        if entry.state == LEFT:
            channel = entry.channel
            return not (channel.journal or channel).ended
        if entry.state == SETTLED or entry.channel.ended:
            return False
        return entry.consumer is None or entry.consumer.peer is self._peer

    def _sweep(self) -> None:
        kept: dict[str, list[Entry]] = {}
        count = 0
        for message_id, entries in self._by_id.items():
            live = [entry for entry in entries if self._may_end(entry)]
            if live:
                kept[message_id] = live
                count += len(live)
        self._by_id = kept
        self._count = count
        self._sweep_at = max(SWEEP_MIN, 2 * count)


@final
class VibeReply(WaitingReply):
    """A reply that becomes an Error when the log refuses the record it waits for.

    One without data is for a command that has no other answer.
    """

    def __init__(self, after_id: int, data: bytes, request: session.Command) -> None:
        super().__init__(after_id, data)
        self.request_id: str = request.id
        self.queue: str = request.queue


@final
class VibeOutput(Output):
    """What leaves one Vibe connection."""

    outstanding: Outstanding  # the connection's, which sets it here when it is made

    def __init__(
        self,
        engine: "Engine",
        wire: Wire,
        limits: Limits,
        its_session: session.Session,
        body_max: int,
    ) -> None:
        super().__init__(engine, wire, limits)
        self._session: session.Session = its_session
        self._delivering = Delivering(its_session, body_max)

    def frame_refusal(self, text: str) -> bytes:
        """Return the Error of an unfinished frame, whose id is not known."""
        return self._session.error("err-1", session.SERVER_ERROR, text)

    def collect(self) -> None:
        """Turn the deliveries into bytes and append them to the output."""
        connection = self.connection
        deliveries = connection.deliveries
        if not deliveries:
            return
        connection.deliveries = []  # before the loop: `give_up` may bring new ones
        now_us = self.engine.now_us()
        for delivery in deliveries:
            frame = self._delivering.frame(delivery, now_us)
            entry = delivery.entry
            if frame is None:
                give_up(self.broker, entry, now_us)
                if connection.writable:
                    self.measure_room()  # its bytes are not sent
                continue
            self.pieces.append(frame)
            if entry is not None:
                self.outstanding.note(self._delivering.message_id, entry)

    def refusal_of(self, reply: WaitingReply, reason: str) -> bytes:
        """Return the Error in place of a reply whose record the log refused.

        A repeat of a message waits for the same id as the first, and is refused with it.
        """
        if isinstance(reply, VibeReply):
            if not reply.data:  # of a rejection, whose dead letter was refused
                reason = NOT_REJECTED + reason
            return self._session.error(
                reply.request_id, session.SERVER_ERROR, reason, reply.queue
            )
        return b""


def _u16(block: bytes, at: int) -> int:
    value: int = _U16.unpack_from(block, at)[0]
    return value


def iso(timestamp_us: int) -> str:
    """Return a record's time as the header `timestamp` has it."""
    moment = datetime.fromtimestamp(timestamp_us / _US_PER_S, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
