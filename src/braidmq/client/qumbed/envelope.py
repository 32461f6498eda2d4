"""Envelope v2: what a box does not say by itself, sealed in with the payload.

Inside the box:

    0      1        33         41             49              51
    +------+--------+----------+--------------+---------------+-------+
    | 0xc1 | sender | sequence | timestamp ms | topic length  | topic |
    +------+--------+----------+--------------+---------------+-------+
    | schema length | schema id | payload ...                         |
    +---------------+-----------+-------------------------------------+

    sender          32 bytes, the public key of who sealed it
    sequence        u64, higher with each message of that sender
    timestamp       u64, milliseconds of Unix time by the sender's clock
    lengths         u16, of the text behind them in UTF-8; all numbers are big-endian

The first byte marks it: no JSON and no UTF-8 text begins with 0xc1. Whatever begins otherwise
was sealed without an envelope, and is passed on as it is unless envelopes are required.

Refused are: another topic or schema than the message came with, so that a relay cannot pass one
thing for another; another sender than the one it came from, so that one's own messages do not
come back as the recipient's (a box is the same in both directions); and replays.

Replays are found by a window for each sender and topic: of the last 1,024 numbers each is taken
once, older ones never. Windows are in memory: after a restart of the receiver, what was taken
before it can be shown once more; the timestamp tells. One program at a time sends with a key.
"""

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.client.errors import (
    InvalidArgument,
    MessageRefused,
    Replayed,
    Retargeted,
    SenderRefused,
)
from braidmq.client.options import Trusting
from braidmq.client.qumbed.boxes import KeyPair
from braidmq.wire.qumbed.boxes import KEY_BYTES

MARK: Final = 0xC1

WINDOW: Final = 1_024
"""How far behind a sender's highest number one may come and still be judged."""

WINDOWS_MAX: Final = 16_384
"""Pairs of sender and topic that are followed: some megabytes. To forget one would let its
replays pass, so further pairs are refused."""

SEQUENCES_PER_MS: Final = 1_000
"""A sender begins at its clock's time by this, faster than it can count: so that numbers go on
rising when it starts again, without a file."""

U16_MAX: Final = 2**16 - 1
U64_MAX: Final = 2**64 - 1

assert TOPIC_BYTES_MAX <= U16_MAX

_HEAD: Final = struct.Struct(
    ">B"  # mark
    f"{KEY_BYTES}s"  # sender
    "Q"  # sequence
    "Q"  # timestamp ms
)
_LENGTH: Final = struct.Struct(">H")
_SEEN_MASK: Final = (1 << WINDOW) - 1
_TOO_SHORT: Final = "the envelope ends too early"


@dataclass(frozen=True, slots=True)
class Opened:
    """A message that was opened and taken."""

    payload: bytes = field(repr=False)
    sender: bytes
    sequence: int | None = None
    """None without an envelope, and then nothing but the payload was sealed."""
    timestamp_ms: int | None = None


class Envelope(NamedTuple):
    """What lies in a box; its text is not yet compared with anything."""

    sender: bytes
    sequence: int
    timestamp_ms: int
    topic: bytes
    schema_id: bytes
    payload: bytes

    def __repr__(self) -> str:
        return f"Envelope({self.sequence})"  # without the payload: it may be printed


def write_envelope(envelope: Envelope) -> bytes:
    """Return the bytes to be sealed."""
    return b"".join(
        (
            _HEAD.pack(MARK, envelope.sender, envelope.sequence, envelope.timestamp_ms),
            _LENGTH.pack(len(envelope.topic)),
            envelope.topic,
            _LENGTH.pack(len(envelope.schema_id)),
            envelope.schema_id,
            envelope.payload,
        )
    )


def read_envelope(plaintext: bytes) -> Envelope | None:
    """Return the envelope that came out of a box, or None when there is none in it.

    Raises:
        MessageRefused: It has the mark and is no envelope.
    """
    if not plaintext or plaintext[0] != MARK:
        return None
    if len(plaintext) < _HEAD.size:
        raise MessageRefused(_TOO_SHORT)
    _, sender, sequence, timestamp_ms = _HEAD.unpack_from(plaintext)
    topic, behind = _read_text(plaintext, _HEAD.size)
    schema_id, behind = _read_text(plaintext, behind)
    return Envelope(sender, sequence, timestamp_ms, topic, schema_id, plaintext[behind:])


def _read_text(data: bytes, offset: int) -> tuple[bytes, int]:
    start = offset + _LENGTH.size
    end = start + int.from_bytes(data[offset:start], "big")
    if end > len(data):
        raise MessageRefused(_TOO_SHORT)
    return data[start:end], end


class ReplayWindow:
    """Which numbers of one sender were taken."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = -1
        self._seen = 0  # bit n: the highest less n was taken

    def take(self, sequence: int) -> bool:
        """Take a number and say so; False for one that was taken, or is too old to tell."""
        behind = self._highest - sequence
        if behind < 0:
            # A sender may leap as far as it likes; the shift must not follow it.
            self._seen = ((self._seen << min(-behind, WINDOW)) | 1) & _SEEN_MASK
            self._highest = sequence
            return True
        if behind >= WINDOW or self._seen >> behind & 1:
            return False
        self._seen |= 1 << behind
        return True


class Sealer:
    """Seals payloads in envelopes, numbered in the order in which they are sealed."""

    def __init__(self, keys: KeyPair, *, now_ms: int) -> None:
        self._keys = keys
        self._sequence = now_ms * SEQUENCES_PER_MS
        assert 0 <= self._sequence < U64_MAX

    def seal(
        self, payload: bytes, recipient: bytes, *, topic: str, schema_id: str = "", now_ms: int
    ) -> bytes:
        """Return *payload* in an envelope in a box for the public key *recipient*.

        Raises:
            KeyRefused: Nothing can be sealed for that key.
            InvalidArgument: Topic or schema id is too long, or no text.
        """
        assert 0 <= now_ms <= U64_MAX
        envelope = Envelope(
            sender=self._keys.public_key,
            sequence=self._sequence,
            timestamp_ms=now_ms,
            topic=_as_bytes("topic", topic),
            schema_id=_as_bytes("schema_id", schema_id),
            payload=payload,
        )
        sealed = self._keys.seal(write_envelope(envelope), recipient)
        self._sequence += 1
        return sealed


class Opener:
    """Opens what comes, and takes it or not.

    *trust* says whose messages are taken; None takes anybody's, and leaves it to the program
    to look at the sender. With *required*, boxes without an envelope are refused.
    """

    def __init__(
        self, keys: KeyPair, *, trust: Trusting | None, required: bool = False
    ) -> None:
        self._keys = keys
        self._trust = trust
        self._required = required
        self._windows: dict[tuple[bytes, str], ReplayWindow] = {}

    def open(self, sealed: bytes, sender: bytes, *, topic: str, schema_id: str = "") -> Opened:
        """Return the message that came from *sender* with this topic and schema id.

        Raises:
            MessageRefused: It is not taken; the subclass says why.
        """
        self._keys.refuse_own(sender)
        if self._trust is not None:
            self._trust.check(sender, topic)
        plaintext = self._keys.open(sealed, sender)
        envelope = read_envelope(plaintext)
        if envelope is not None:
            _check_target(envelope, sender, topic, schema_id)
        elif self._required:
            raise MessageRefused("the message has no envelope")
        if self._trust is not None:
            self._trust.admit(sender, topic)
        if envelope is None:
            return Opened(plaintext, sender)
        if not self._window(sender, topic).take(envelope.sequence):
            raise Replayed(sender, envelope.sequence)
        return Opened(envelope.payload, sender, envelope.sequence, envelope.timestamp_ms)

    def _window(self, sender: bytes, topic: str) -> ReplayWindow:
        window = self._windows.get((sender, topic))
        if window is None:
            if len(self._windows) >= WINDOWS_MAX:
                raise SenderRefused(sender, f"{WINDOWS_MAX} senders are followed, no more are")
            window = self._windows[sender, topic] = ReplayWindow()
        return window


def _check_target(envelope: Envelope, sender: bytes, topic: str, schema_id: str) -> None:
    if envelope.sender != sender:
        raise SenderRefused(sender, "the message was sealed by another", reflected=True)
    # Bytes are compared: what is no text equals nothing, and needs no decoding.
    if envelope.topic != topic.encode("utf-8", "surrogatepass"):
        raise Retargeted("the message was sealed for another topic")
    if envelope.schema_id != schema_id.encode("utf-8", "surrogatepass"):
        raise Retargeted("the message was sealed with another schema")


def _as_bytes(name: str, text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} holds lone surrogates") from None
    if len(data) > U16_MAX:
        raise InvalidArgument(f"{name} has {len(data)} bytes, at most {U16_MAX}")
    return data
