"""Opening sealed payloads: NaCl boxes of Qumbed publishers, with or without an envelope.

A payload is sealed when its message names its sender's public key and the payload is no JSON
text. Inside the box there may be an envelope, version 2:

    0      1        33         41             49              51
    +------+--------+----------+--------------+---------------+-------+
    | 0xc1 | sender | sequence | timestamp ms | topic length  | topic |
    +------+--------+----------+--------------+---------------+-------+
    | schema length | schema id | payload ...                         |
    +---------------+-----------+-------------------------------------+

    sender          32 bytes, the public key of who sealed it
    lengths         u16, of the text behind them in UTF-8; all numbers are big-endian

Refused are boxes of untrusted senders and of the reader's own key, and envelopes that name
another sender, topic or schema than the message came with. Replays are not refused: a log that
is read twice must give the same rows twice.
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
from braidmq.wal.disk import Disk
from braidmq.wal.files import read_all
from braidmq.wire.qumbed.boxes import BoxError, Boxes, UnusableKeyError, parse_key
from braidmq.wire.qumbed.public_keys import PUBLIC_KEY_BYTES, fault

SENDER_HEADER: Final = b"senderPublicKey"
SCHEMA_HEADER: Final = b"schemaId"

ENVELOPE_MARK: Final = 0xC1
BOXES_MAX: Final = 1_024
"""Senders whose boxes are kept at hand."""

KEY_FILE_BYTES_MAX: Final = 1_024
_ENVELOPE_HEAD_BYTES: Final = 49
_SENDER_AT: Final = 1
_FIELD_PRIME: Final = 2**255 - 19


class NotUnsealedError(BraidError):
    """A sealed payload is not opened; the text says why, and repeats nothing of it."""


class Unsealing:
    """Opens what was sealed for a private key, by anybody or by *trusted* public keys only.

    Raises:
        ConfigError: A key cannot be one.
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
        """Return one with the private key in a file, as `braidmq keygen` writes it.

        Raises:
            ConfigError: It cannot be read, is open to others, or holds no key.
        """
        return cls(_read_key(Path(path)), trusted=trusted)

    def open(
        self, payload: bytes, sender_text: bytes, *, topic: str, schema_id: bytes
    ) -> bytes:
        """Return what is in a payload whose message has a sender; itself if it is not sealed.

        Raises:
            NotUnsealedError: It is sealed, and is not opened.
        """
        if is_json(payload) or len(payload) < SEALED_BYTES_MIN:
            return payload
        sender = _sender_of(sender_text)
        if sender == self._boxes.public_key:
            raise NotUnsealedError("the sender's key is the reader's own")
        if self._trusted is not None and sender not in self._trusted:
            raise NotUnsealedError("the sender is not trusted")
        try:
            plaintext = self._boxes.open(payload, sender)
        except BoxError as error:
            raise NotUnsealedError(str(error)) from None
        if not plaintext or plaintext[0] != ENVELOPE_MARK:
            return plaintext
        return _payload_of(plaintext, sender, topic.encode(), schema_id)


def public_key_problem(key: bytes) -> str:
    """Say why *key* cannot be a sender's public key, or nothing."""
    problem = fault(key)
    if not problem and int.from_bytes(key, "little") >= _FIELD_PRIME:
        return "is not in canonical form"  # a second spelling would pass by a list
    return problem


def _sender_of(text: bytes) -> bytes:
    try:
        sender = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise NotUnsealedError("the sender's key is not base64") from None
    if problem := public_key_problem(sender):
        raise NotUnsealedError(f"the sender's key {problem}")
    return sender


def _payload_of(envelope: bytes, sender: bytes, topic: bytes, schema_id: bytes) -> bytes:
    sealed_by = envelope[_SENDER_AT : _SENDER_AT + PUBLIC_KEY_BYTES]
    sealed_topic, behind = _text(envelope, _ENVELOPE_HEAD_BYTES)
    sealed_schema, behind = _text(envelope, behind)
    if sealed_by != sender:
        raise NotUnsealedError("the message was sealed by another")
    if sealed_topic != topic:
        raise NotUnsealedError("the message was sealed for another topic")
    if sealed_schema != schema_id:
        raise NotUnsealedError("the message was sealed with another schema")
    return envelope[behind:]


def _text(envelope: bytes, at: int) -> tuple[bytes, int]:
    start = at + 2
    end = start + int.from_bytes(envelope[at:start], "big")
    if len(envelope) < max(start, end):
        raise NotUnsealedError("the envelope ends too early")
    return envelope[start:end], end


def _read_key(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise ConfigError("private_key_file", f"{path} is not a file")
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            problem = f"{path} is open to others than its owner; chmod 600 it"
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
