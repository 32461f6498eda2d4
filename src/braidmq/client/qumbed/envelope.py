"""Envelope v2: what a box does not protect by itself, sealed in with the payload.

`braidmq.wire.qumbed.envelopes` draws the bytes, reads and writes them.

The first byte marks it: neither JSON nor UTF-8 text begins with 0xc1. A payload that begins
otherwise was sealed without an envelope, and is passed on as it is unless envelopes are
required.

The receiver refuses a message that arrives with another topic or schema, so that a relay cannot
pass one message off as another; one whose sender differs from the one it arrived with, so that
a client's own messages do not return as the recipient's (a box is the same in both directions);
and replays.

A window for each sender and topic detects replays: of the last 1,024 sequence numbers each is
accepted once, and older ones never. Windows are kept in memory only: after the receiver
restarts, a message from before can be replayed once; its timestamp shows that. Only one program
at a time may send with a key.
"""

from dataclasses import dataclass, field
from typing import Final

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.client.errors import (
    MessageRefused,
    Replayed,
    Retargeted,
    SenderRefused,
)
from braidmq.client.options import Trusting
from braidmq.client.publishing import utf8
from braidmq.client.qumbed.boxes import KeyPair
from braidmq.wire.qumbed.envelopes import (
    Envelope,
    TruncatedEnvelopeError,
    read_envelope,
    write_envelope,
)

WINDOW: Final = 1_024
"""How far a number may be behind its sender's highest and still be accepted."""

WINDOWS_MAX: Final = 16_384
"""Windows that are kept, one for each pair of sender and topic: some megabytes. Dropping one
would let its replays through, so further pairs are refused instead."""

SEQUENCES_PER_MS: Final = 1_000
"""A sender starts at its clock's milliseconds times this, which is faster than it can count.
Its numbers therefore keep increasing after a restart, without a file."""

U16_MAX: Final = 2**16 - 1
U64_MAX: Final = 2**64 - 1

assert TOPIC_BYTES_MAX <= U16_MAX

_SEEN_MASK: Final = (1 << WINDOW) - 1


@dataclass(frozen=True, slots=True)
class Opened:
    """A message that was opened and accepted."""

    payload: bytes = field(repr=False)
    sender: bytes
    sequence: int | None = None
    """None without an envelope: then only the payload was sealed."""
    timestamp_ms: int | None = None


class ReplayWindow:
    """Which sequence numbers of one sender were accepted."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = -1
        self._seen = 0  # bit n: the highest minus n was accepted

    def take(self, sequence: int) -> bool:
        """Accept a number; return False if it was accepted before or is too old to tell."""
        behind = self._highest - sequence
        if behind < 0:
            # A sender may skip any number of them; the shift must stay bounded.
            self._seen = ((self._seen << min(-behind, WINDOW)) | 1) & _SEEN_MASK
            self._highest = sequence
            return True
        if behind >= WINDOW or self._seen >> behind & 1:
            return False
        self._seen |= 1 << behind
        return True


class Sealer:
    """Seals payloads in envelopes, with increasing sequence numbers."""

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
            InvalidArgument: The topic or schema id is too long, or not valid text.
        """
        assert 0 <= now_ms <= U64_MAX
        envelope = Envelope(
            sender=self._keys.public_key,
            sequence=self._sequence,
            timestamp_ms=now_ms,
            topic=utf8("topic", topic, U16_MAX),
            schema_id=utf8("schema_id", schema_id, U16_MAX),
            payload=payload,
        )
        sealed = self._keys.seal(write_envelope(envelope), recipient)
        self._sequence += 1
        return sealed


class Opener:
    """Opens messages, and accepts or refuses them.

    *trust* says which senders to accept; None accepts all, and leaves it to the program to look
    at the sender. With *required*, boxes without an envelope are refused.
    """

    def __init__(
        self, keys: KeyPair, *, trust: Trusting | None, required: bool = False
    ) -> None:
        self._keys = keys
        self._trust = trust
        self._required = required
        self._windows: dict[tuple[bytes, str], ReplayWindow] = {}

    def open(self, sealed: bytes, sender: bytes, *, topic: str, schema_id: str = "") -> Opened:
        """Return the message that arrived from *sender* with this topic and schema id.

        The order matters: a sender is remembered as trusted, and a number as seen, only after
        the box was opened, since what a message claims about itself can be forged.

        Raises:
            MessageRefused: It is not accepted; the subclass says why.
        """
        self._keys.refuse_own(sender)
        if self._trust is not None:
            self._trust.check(sender, topic)
        plaintext = self._keys.open(sealed, sender)
        try:
            envelope = read_envelope(plaintext)
        except TruncatedEnvelopeError as error:
            raise MessageRefused(str(error)) from None
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
                raise SenderRefused(sender, f"the limit of {WINDOWS_MAX} senders is reached")
            window = self._windows[sender, topic] = ReplayWindow()
        return window


def _check_target(envelope: Envelope, sender: bytes, topic: str, schema_id: str) -> None:
    if envelope.sender != sender:
        raise SenderRefused(sender, "the message was sealed by another key", reflected=True)
    # Compare bytes: invalid UTF-8 then equals no topic, and need not be decoded.
    if envelope.topic != topic.encode("utf-8", "surrogatepass"):
        raise Retargeted("the message was sealed for another topic")
    if envelope.schema_id != schema_id.encode("utf-8", "surrogatepass"):
        raise Retargeted("the message was sealed with another schema")
