"""Opening sealed payloads: NaCl boxes of Qumbed publishers, with or without an envelope.

A payload is sealed if its message names the sender's public key and the payload is not JSON.
The box may hold an envelope, whose bytes `braidmq.wire.qumbed.envelopes` draws.

Boxes of untrusted senders and of the reader's own key are refused, and so are envelopes that
name another sender, topic or schema than their message. Where senders have to be trusted, so is
every payload that is not sealed: anyone who may publish could have sent it. Replays are not
refused: reading a log twice must give the same rows twice.
"""

import base64
import binascii
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from braidmq.base.errors import BraidError, ConfigError
from braidmq.base.strict_json import is_json
from braidmq.broker.schemas import SEALED_BYTES_MIN
from braidmq.wal.disk import Disk, read_all
from braidmq.wire.qumbed.boxes import BoxError, Boxes, UnusableKeyError, parse_key
from braidmq.wire.qumbed.envelopes import Envelope, TruncatedEnvelopeError, read_envelope
from braidmq.wire.qumbed.public_keys import fault

SENDER_HEADER: Final = b"senderPublicKey"
SCHEMA_HEADER: Final = b"schemaId"

BOXES_MAX: Final = 1_024
"""Senders whose boxes are cached."""

NOT_SEALED: Final = "the payload is not sealed, so its sender is not known to be trusted"
KEY_FILE_BYTES_MAX: Final = 1_024
_FIELD_PRIME: Final = 2**255 - 19


class NotUnsealedError(BraidError):
    """A payload was refused; the text says why, without any of its content."""


class Unsealing:
    """Opens payloads that were sealed for a private key.

    With *trusted*, only those of these senders' public keys are opened, and payloads that are
    not sealed are refused.

    Raises:
        ConfigError: A key is not valid.
    """

    def __init__(self, private_key: bytes, *, trusted: Iterable[bytes] | None = None) -> None:
        try:
            self._boxes = Boxes(private_key, boxes_max=BOXES_MAX)
        except UnusableKeyError as error:
            raise ConfigError("private_key", str(error)) from None
        self._trusted = None if trusted is None else frozenset(trusted)
        for key in self._trusted or ():
            if problem := public_key_problem(key):
                raise ConfigError("trusted_keys", f"a public key {problem}")

    @classmethod
    def from_file(
        cls, path: Path | str, *, trusted: Iterable[bytes] | None = None
    ) -> "Unsealing":
        """Return one for the private key in a file, as `braidmq keygen` writes it.

        Raises:
            ConfigError: The file cannot be read, is accessible to others, or holds no key.
        """
        return cls(_read_key(Path(path)), trusted=trusted)

    @property
    def trusts_all(self) -> bool:
        """Whether every sender is accepted, even one that seals nothing."""
        return self._trusted is None

    def open(
        self, payload: bytes, sender_text: bytes | None, *, topic: str, schema_id: bytes
    ) -> bytes:
        """Return the content of a payload; *sender_text* is the key that its message names.

        A payload that is not sealed is returned as it is, if every sender is trusted.

        Raises:
            NotUnsealedError: It is sealed and could not be opened, or must not be; or it is not
                sealed and must be.
        """
        if sender_text is None or is_json(payload) or len(payload) < SEALED_BYTES_MIN:
            if self._trusted is not None:
                raise NotUnsealedError(NOT_SEALED)
            return payload
        sender = _sender_of(sender_text)
        # A box opens in both directions: the reader's own message could come back as another's.
        if sender == self._boxes.public_key:
            raise NotUnsealedError("the sender's key is the reader's own")
        if self._trusted is not None and sender not in self._trusted:
            raise NotUnsealedError("the sender is not trusted")
        try:
            plaintext = self._boxes.open(payload, sender)
            envelope = read_envelope(plaintext)
        except (BoxError, TruncatedEnvelopeError) as error:
            raise NotUnsealedError(str(error)) from None
        if envelope is None:
            return plaintext
        return _payload_of(envelope, sender, topic.encode(), schema_id)


def public_key_problem(key: bytes) -> str:
    """Return why *key* is not a valid public key of a sender; "" if it is one."""
    problem = fault(key)
    if not problem and int.from_bytes(key, "little") >= _FIELD_PRIME:
        return "is not in canonical form"  # a second encoding would evade a trust list
    return problem


def _sender_of(text: bytes) -> bytes:
    try:
        sender = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise NotUnsealedError("the sender's key is not base64") from None
    if problem := public_key_problem(sender):
        raise NotUnsealedError(f"the sender's key {problem}")
    return sender


def _payload_of(envelope: Envelope, sender: bytes, topic: bytes, schema_id: bytes) -> bytes:
    # A box is the same in both directions, and a relay could pass one message off as another:
    # the envelope is what ties a payload to its sender, topic and schema.
    if envelope.sender != sender:
        raise NotUnsealedError("the message was sealed by another key")
    if envelope.topic != topic:
        raise NotUnsealedError("the message was sealed for another topic")
    if envelope.schema_id != schema_id:
        raise NotUnsealedError("the message was sealed with another schema")
    return envelope.payload


def _read_key(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise ConfigError("private_key_file", f"{path} is not a file")
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            problem = f"{path} is accessible to other users; run chmod 600 on it"
            raise ConfigError("private_key_file", problem)
        file = Disk(path.parent).open(path.name, write=False, create=False)
        data = read_all(file, KEY_FILE_BYTES_MAX, 0)
        file.close()
        return parse_key(data.decode("ascii", "replace").strip())
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise ConfigError("private_key_file", problem) from None
    except UnusableKeyError:
        problem = f"{path} does not hold a private key"
        raise ConfigError("private_key_file", problem) from None
