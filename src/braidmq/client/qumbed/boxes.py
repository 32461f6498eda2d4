"""Key pairs: seal a payload for a recipient, open what a sender has sealed.

A key file holds the private key as 64 hexadecimal digits and a newline, and only its owner may
read it: `braidmq keygen` writes one. A box says nothing about whether to trust its sender: see
trust.py. It can also be replayed, on another topic or back to its own sender: envelope.py
prevents that.
"""

import secrets
import stat
from pathlib import Path
from typing import Final

from braidmq.client.errors import KeyRefused, NotOpened, SenderRefused
from braidmq.client.options import PublicKey
from braidmq.wal.disk import Disk, read_all
from braidmq.wire.qumbed.boxes import (
    KEY_BYTES,
    NONCE_BYTES,
    Boxes,
    NotOpenedError,
    UnusableKeyError,
    key_id,
    parse_key,
)
from braidmq.wire.qumbed.public_keys import fault

BOXES_MAX: Final = 1_024
"""Peers whose boxes are cached: a few hundred kilobytes, however many senders there are."""

KEY_FILE_BYTES_MAX: Final = 1_024
"""More than a key and its newline; a longer file is something else."""

_FIELD_PRIME: Final = 2**255 - 19


class KeyPair:
    """A private key and its public key, and the boxes to and from others.

    It is made from the private key's 32 bytes, which only :meth:`reveal_private_key` returns.

    Raises:
        KeyRefused: They are not 32 bytes, or all zero.
    """

    __slots__ = ("_boxes", "_private_key")

    def __init__(self, private_key: bytes, *, boxes_max: int = BOXES_MAX) -> None:
        try:
            self._boxes = Boxes(private_key, boxes_max=boxes_max)
        except UnusableKeyError as error:
            raise KeyRefused(str(error)) from None
        self._private_key = private_key

    @classmethod
    def generate(cls) -> "KeyPair":
        """Return a new pair."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_hex(cls, text: str) -> "KeyPair":
        """Return the pair of a private key in hexadecimal digits.

        Raises:
            KeyRefused: *text* is something else; the error does not repeat it.
        """
        try:
            private_key = parse_key(text)
        except UnusableKeyError as error:
            raise KeyRefused(f"a private key {error}") from None
        return cls(private_key)

    @classmethod
    def from_file(cls, path: Path | str) -> "KeyPair":
        """Return the pair whose private key is in a file.

        Raises:
            KeyRefused: It cannot be read, is readable by other users, or holds no key.
        """
        try:
            data = read_private(Path(path), bytes_max=KEY_FILE_BYTES_MAX)
        except OSError as error:
            raise KeyRefused(f"{path}: cannot be read: {error.strerror}") from None
        try:
            return cls(parse_key(data.decode("ascii", "replace").strip()))
        except (KeyRefused, UnusableKeyError):
            raise KeyRefused(f"{path}: does not hold a private key") from None

    @property
    def public_key(self) -> bytes:
        """The key that others seal for: 32 bytes."""
        return self._boxes.public_key

    @property
    def key_id(self) -> bytes:
        """The first 8 bytes of the public key, which identify it."""
        return key_id(self._boxes.public_key)

    @property
    def held_boxes(self) -> int:
        """How many peers' boxes are cached."""
        return self._boxes.held_boxes

    def reveal_private_key(self) -> bytes:
        """Return the private key; keep it where no one else can read it."""
        return self._private_key

    def seal(self, payload: bytes, recipient: bytes) -> bytes:
        """Return *payload* sealed for the public key *recipient*, with a random nonce.

        Raises:
            KeyRefused: Nothing can be sealed for that key.
        """
        check_public_key(recipient)
        return self._boxes.seal(payload, recipient, nonce=secrets.token_bytes(NONCE_BYTES))

    def open(self, sealed: bytes, sender: bytes) -> bytes:
        """Return what the holder of the public key *sender* sealed for this pair.

        Raises:
            SenderRefused: The key is this pair's own, or is not a valid key.
            NotOpened: The box is damaged, or was sealed by or for another key.
        """
        self.refuse_own(sender)
        try:
            check_public_key(sender)
            return self._boxes.open(sealed, sender)
        except KeyRefused as error:
            raise SenderRefused(sender, str(error)) from None
        except NotOpenedError as error:
            raise NotOpened(str(error)) from None

    def refuse_own(self, sender: bytes) -> None:
        """Refuse this pair's own public key as a sender.

        A box opens in both directions, so a relay could return a client's own message to it as
        if it were new.

        Raises:
            SenderRefused: *sender* is this pair's own key.
        """
        if sender == self.public_key:
            raise SenderRefused(sender, "the key is the receiver's own", reflected=True)

    def __repr__(self) -> str:
        return f"KeyPair({self.key_id.hex()})"

    def __reduce__(self) -> str:
        # A pickle would end up in caches and on the wire.
        raise TypeError("a key pair cannot be pickled")


def check_public_key(key: bytes) -> None:
    """Accept only a usable public key in canonical form.

    The curve accepts several encodings of the same key. If they were allowed for a sender, it
    could evade every check that compares bytes: a trust list, a replay window, the receiver's
    check for its own key.

    Raises:
        KeyRefused: It is not 32 bytes, of low order, or not in canonical form.
    """
    if problem := fault(key):
        raise KeyRefused(f"the public key {problem}")
    if int.from_bytes(key, "little") >= _FIELD_PRIME:
        raise KeyRefused("the public key is not in canonical form")


def parse_public_key(key: PublicKey) -> bytes:
    """Return the bytes of a public key, which may be in hexadecimal digits.

    Raises:
        KeyRefused: It is not a usable public key.
    """
    if isinstance(key, str):
        try:
            key = parse_key(key)
        except UnusableKeyError as error:
            raise KeyRefused(f"a public key {error}") from None
    check_public_key(key)
    return key


def read_private(path: Path, *, bytes_max: int) -> bytes:
    """Return the content of a file that only its owner may access.

    Raises:
        KeyRefused: It is not such a file, or holds more than *bytes_max*.
        OSError: It does not exist, or cannot be read.
    """
    # Checked by name, before opening: to open a FIFO or a device could block.
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise KeyRefused(f"{path}: is not a file")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyRefused(f"{path}: is accessible to other users; run chmod 600 on it")
    file = Disk(path.parent).open(path.name, write=False, create=False)
    data = read_all(file, bytes_max + 1, 0)
    file.close()
    if len(data) > bytes_max:
        raise KeyRefused(f"{path}: holds more than {bytes_max} bytes")
    return data
