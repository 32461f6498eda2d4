"""Public keys on the Qumbed strand."""

import pytest
from nacl.bindings import crypto_scalarmult
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey

from braidmq.wire.qumbed.public_keys import LOW_ORDER_KEYS, fault


@pytest.mark.parametrize("key", sorted(LOW_ORDER_KEYS), ids=bytes.hex)
def test_keys_of_low_order_are_refused_as_libsodium_refuses_them(key: bytes) -> None:
    """With such a key every private key gives the same shared secret."""
    assert "is of low order" == fault(key)
    with pytest.raises(CryptoError):
        crypto_scalarmult(bytes(range(32)), key)


def test_seven_points_are_of_low_order_with_both_sign_bits() -> None:
    """Multiplication ignores the top bit, so a key with that bit set is the same key."""
    flipped = {key[:31] + bytes([key[31] ^ 0x80]) for key in LOW_ORDER_KEYS}

    assert 14 == len(LOW_ORDER_KEYS)
    assert flipped == LOW_ORDER_KEYS


@pytest.mark.parametrize("size", [0, 1, 31, 33, 64])
def test_a_key_of_the_wrong_size_is_refused(size: int) -> None:
    """A public key has 32 bytes."""
    assert "is not 32 bytes" == fault(b"\x09" * size)


def test_generated_keys_are_accepted() -> None:
    """So are the neighbours of the points of low order."""
    for secret in range(1, 50):
        assert "" == fault(bytes(PrivateKey(bytes([secret]) * 32).public_key))
    assert "" == fault(bytes([2]) + bytes(31))
    assert "" == fault(b"\xeb" + b"\xff" * 30 + b"\x7f")
    assert "" == fault(b"\xef" + b"\xff" * 30 + b"\x7f")
