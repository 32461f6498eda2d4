"""Key pairs: seal a payload for somebody, open what somebody has sealed. No trust is in it.

A key file holds the private key as 64 hexadecimal digits and a line end, and is its owner's
only: `braidmq keygen` writes one. Whom to believe is in trust.py. A box alone can be shown
again, on another topic, and to the one who sealed it: envelope.py is against that.
"""

import secrets
import stat
from pathlib import Path
from typing import Final

from braidmq.client.errors import KeyRefused, NotOpened, SenderRefused
from braidmq.wal.disk import Disk
from braidmq.wal.files import read_all
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
"""Peers whose boxes are kept: some hundred kilobytes, and strangers cannot make it more."""

KEY_FILE_BYTES_MAX: Final = 1_024
"""More than a key and its line end; what is longer is some other file."""

_FIELD_PRIME: Final = 2**255 - 19


class KeyPair:
    """A private key with its public one, and the boxes to and from others.

    It is made of the private key's 32 raw bytes, which it shows only when asked by name.

    Raises:
        KeyRefused: They are not 32, or nothing but zeros.
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
            KeyRefused: *text* is something else; it is not repeated.
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
            KeyRefused: It cannot be read, can be by others than its owner, or holds no key.
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
        """What others seal for: 32 bytes."""
        return self._boxes.public_key

    @property
    def key_id(self) -> bytes:
        """What the public key is recognised by: its first 8 bytes."""
        return key_id(self._boxes.public_key)

    @property
    def held_boxes(self) -> int:
        """How many peers' boxes are kept."""
        return self._boxes.held_boxes

    def reveal_private_key(self) -> bytes:
        """Return the private key, to be kept where nobody else can read it."""
        return self._private_key

    def seal(self, payload: bytes, recipient: bytes) -> bytes:
        """Return *payload* sealed for the public key *recipient*, with a random nonce.

        Raises:
            KeyRefused: Nothing can be sealed for that key.
        """
        check_public_key(recipient)
        return self._boxes.seal(payload, recipient, nonce=secrets.token_bytes(NONCE_BYTES))

    def open(self, sealed: bytes, sender: bytes) -> bytes:
        """Return what the holder of the public key *sender* has sealed for this pair.

        Raises:
            SenderRefused: The key is this pair's own, or no key.
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
        """Let everybody's key pass but this pair's own.

        What one has sealed for oneself would come back as news.

        Raises:
            SenderRefused: It is.
        """
        if sender == self.public_key:
            raise SenderRefused(sender, "the key is the receiver's own", reflected=True)

    def __repr__(self) -> str:
        return f"KeyPair({self.key_id.hex()})"

    def __reduce__(self) -> str:
        # What is pickled lies about in caches and on wires.
        raise TypeError("a key pair is not to be pickled")


def check_public_key(key: bytes) -> None:
    """Let a public key pass that can be somebody's, and is written in the one way there is.

    The curve takes other spellings of a number for the same key. As a sender's, they would
    pass by whatever knows that key: a list, a window, the receiver's check for its own.

    Raises:
        KeyRefused: It is not 32 bytes, of low order, or spelt otherwise.
    """
    if problem := fault(key):
        raise KeyRefused(f"the public key {problem}")
    if int.from_bytes(key, "little") >= _FIELD_PRIME:
        raise KeyRefused("the public key is not in canonical form")


def parse_public_key(text: str) -> bytes:
    """Return the public key that *text* holds as hexadecimal digits.

    Raises:
        KeyRefused: It holds something else.
    """
    try:
        key = parse_key(text)
    except UnusableKeyError as error:
        raise KeyRefused(f"a public key {error}") from None
    check_public_key(key)
    return key


def read_private(path: Path, *, bytes_max: int) -> bytes:
    """Return the content of a file that is its owner's only.

    Raises:
        KeyRefused: It is not such a file, or holds more than *bytes_max*.
        OSError: It is not there, or cannot be read.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise KeyRefused(f"{path}: is not a file")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyRefused(f"{path}: is open to others than its owner; chmod 600 it")
    file = Disk(path.parent).open(path.name, write=False, create=False)
    data = read_all(file, bytes_max + 1, 0)
    file.close()
    if len(data) > bytes_max:
        raise KeyRefused(f"{path}: holds more than {bytes_max} bytes")
    return data
