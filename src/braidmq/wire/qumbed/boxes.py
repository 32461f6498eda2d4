"""Sealed payloads: NaCl boxes between one private key and its peers. No randomness, no disk.

    0       24    40
    +-------+-----+----------------+
    | nonce | tag | ciphertext ... |   as PyNaCl's `Box.encrypt` returns it
    +-------+-----+----------------+

Curve25519, XSalsa20 and Poly1305. A box is the same in both directions, and does not
authenticate topic, schema or time. The caller provides random nonces and judges who may send
what. Keys are 32 raw bytes, shown to people as 64 hexadecimal digits.
"""

import re
from functools import lru_cache, partial
from typing import Final

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

from braidmq.base.errors import BraidError
from braidmq.wire.qumbed.public_keys import KEY_ID_BYTES, PUBLIC_KEY_BYTES, fault

KEY_BYTES: Final = PUBLIC_KEY_BYTES
"""Private keys and public keys have the same length."""

NONCE_BYTES: Final = 24
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = NONCE_BYTES + TAG_BYTES

assert NONCE_BYTES == Box.NONCE_SIZE

_HEX_KEY: Final = re.compile(rf"[0-9A-Fa-f]{{{2 * KEY_BYTES}}}")


class BoxError(BraidError):
    """Sealing or opening failed; the text repeats no key and no payload."""


class UnusableKeyError(BoxError):
    """A key is not 32 bytes, is all zeros, or is of low order."""


class NotOpenedError(BoxError):
    """A box is damaged, or was sealed by or for another key; the two cannot be told apart."""


def key_id(public_key: bytes) -> bytes:
    """Return the id of a public key: its first 8 bytes."""
    assert len(public_key) == KEY_BYTES
    return public_key[:KEY_ID_BYTES]


def parse_key(text: str) -> bytes:
    """Return the key that *text* holds as hexadecimal digits.

    Raises:
        UnusableKeyError: It does not hold a key.
    """
    if not _HEX_KEY.fullmatch(text):
        raise UnusableKeyError(f"must be {2 * KEY_BYTES} hexadecimal digits")
    return bytes.fromhex(text)


class Boxes:
    """The boxes of one private key; the *boxes_max* most recently used are cached.

    Making a box, a scalar multiplication, takes ten times as long as using it.

    Raises:
        UnusableKeyError: The private key is not 32 bytes, or all zeros.
    """

    __slots__ = ("_between", "public_key")

    def __init__(self, private_key: bytes, *, boxes_max: int) -> None:
        assert boxes_max > 0
        if len(private_key) != KEY_BYTES:
            raise UnusableKeyError(f"the private key is not {KEY_BYTES} bytes")
        if not any(private_key):
            raise UnusableKeyError("the private key is nothing but zeros")
        key = PrivateKey(private_key)
        self.public_key = bytes(key.public_key)
        self._between = lru_cache(boxes_max)(partial(_box, key))

    @property
    def held_boxes(self) -> int:
        """How many boxes are cached."""
        return self._between.cache_info().currsize

    @property
    def made_boxes(self) -> int:
        """How many boxes were made so far; it keeps rising if the cache is too small."""
        return self._between.cache_info().misses

    def seal(self, payload: bytes, recipient: bytes, *, nonce: bytes) -> bytes:
        """Return *payload* sealed for a public key; never reuse a nonce for a pair of keys.

        Raises:
            UnusableKeyError: The key cannot be sealed for.
        """
        assert len(nonce) == NONCE_BYTES
        # PyNaCl's result also holds nonce and ciphertext as copies; plain bytes do not.
        return bytes(self._between(recipient).encrypt(payload, nonce))

    def open(self, sealed: bytes, sender: bytes) -> bytes:
        """Return the payload of a box between this key and the public key *sender*.

        Raises:
            UnusableKeyError: The key is not one that can seal.
            NotOpenedError: It is not a box between these two keys, or it is damaged.
        """
        box = self._between(sender)
        try:
            return box.decrypt(sealed)
        except CryptoError:
            raise NotOpenedError("the box does not open") from None


def _box(private_key: PrivateKey, public_key: bytes) -> Box:
    try:
        return Box(private_key, PublicKey(public_key))
    except CryptoError:
        # libsodium rejects an all-zero product, so this also covers points not on our list.
        raise UnusableKeyError(f"the public key {fault(public_key)}") from None
