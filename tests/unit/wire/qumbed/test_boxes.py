"""Boxes between one private key and its peers."""

import pytest

from braidmq.base.errors import BraidError
from braidmq.wire.qumbed.boxes import (
    KEY_BYTES,
    NONCE_BYTES,
    OVERHEAD_BYTES,
    BoxError,
    Boxes,
    NotOpenedError,
    UnusableKeyError,
    key_id,
    parse_key,
)
from braidmq.wire.qumbed.public_keys import LOW_ORDER_KEYS
from tests.unit.wire.vectors import vectors

VECTORS = vectors("qumbed")
SENDER = bytes.fromhex(VECTORS["sender_secret"])
RECIPIENT = bytes.fromhex(VECTORS["recipient_secret"])
SEALED = bytes.fromhex(VECTORS["sealed"])
PLAINTEXT = VECTORS["plaintext"].encode()
NONCE = bytes.fromhex(VECTORS["nonce"])


def boxes(private_key: bytes, boxes_max: int = 4) -> Boxes:
    return Boxes(private_key, boxes_max=boxes_max)


def test_the_golden_box_is_sealed_and_opened() -> None:
    """Fixed keys and nonce give the golden bytes, which open to the payload."""
    sender, recipient = boxes(SENDER), boxes(RECIPIENT)

    assert VECTORS["sender_public"] == sender.public_key.hex()
    assert VECTORS["recipient_public"] == recipient.public_key.hex()
    assert SEALED == sender.seal(PLAINTEXT, recipient.public_key, nonce=NONCE)
    assert PLAINTEXT == recipient.open(SEALED, sender.public_key)


def test_sealing_adds_a_fixed_number_of_bytes() -> None:
    """Those of nonce and tag."""
    sealed = boxes(SENDER).seal(b"", boxes(RECIPIENT).public_key, nonce=NONCE)

    assert bytes is type(sealed)
    assert OVERHEAD_BYTES == len(sealed)
    assert b"" == boxes(RECIPIENT).open(sealed, boxes(SENDER).public_key)


@pytest.mark.parametrize("size", [0, 1, NONCE_BYTES, OVERHEAD_BYTES - 1, OVERHEAD_BYTES])
def test_a_truncated_box_does_not_open(size: int) -> None:
    """The error is the same for every length."""
    with pytest.raises(NotOpenedError, match="the box does not open"):
        boxes(RECIPIENT).open(SEALED[:size], boxes(SENDER).public_key)


def test_the_most_recently_used_boxes_are_kept() -> None:
    """Their number is bounded; the least recently used one is evicted first."""
    peers = [boxes(bytes([n]) * KEY_BYTES).public_key for n in range(1, 4)]
    mine = boxes(SENDER, boxes_max=2)
    made = []
    for peer in (peers[0], peers[1], peers[0], peers[2], peers[0], peers[1]):
        mine.seal(b"x", peer, nonce=NONCE)
        made.append(mine.made_boxes)

    assert [1, 2, 2, 3, 3, 4] == made
    assert 2 == mine.held_boxes


@pytest.mark.parametrize("key", sorted(LOW_ORDER_KEYS), ids=bytes.hex)
def test_a_key_of_low_order_is_refused_for_sealing_and_opening(key: bytes) -> None:
    """Its shared secret is publicly known; no box is kept for it."""
    mine = boxes(SENDER)

    with pytest.raises(UnusableKeyError, match="the public key is of low order"):
        mine.seal(b"x", key, nonce=NONCE)
    with pytest.raises(UnusableKeyError, match="the public key is of low order"):
        mine.open(SEALED, key)
    assert 0 == mine.held_boxes


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_the_wrong_size_is_refused(size: int) -> None:
    """Public and private keys have 32 bytes."""
    with pytest.raises(UnusableKeyError, match="the public key is not 32 bytes"):
        boxes(SENDER).seal(b"x", size * b"k", nonce=NONCE)
    with pytest.raises(UnusableKeyError, match="the private key is not 32 bytes"):
        boxes(size * b"k")


def test_a_private_key_of_zeros_is_refused() -> None:
    """It may come from a damaged file, and is the first that an attacker tries."""
    with pytest.raises(UnusableKeyError, match="nothing but zeros"):
        boxes(bytes(KEY_BYTES))


def test_a_key_id_is_the_start_of_the_key() -> None:
    """Eight bytes, as in the frames."""
    assert bytes.fromhex("07a37cbc142093c8") == key_id(boxes(SENDER).public_key)


def test_a_key_is_read_from_hex() -> None:
    """In upper or lower case."""
    assert SENDER == parse_key(SENDER.hex())
    assert RECIPIENT == parse_key(RECIPIENT.hex().upper())


@pytest.mark.parametrize(
    "text", ["", 63 * "a", 65 * "a", 63 * "a" + "g", " " + 63 * "a", 64 * "a" + "\n", 64 * "٣"]
)
def test_text_that_is_not_64_hex_digits_is_refused(text: str) -> None:
    """The error does not quote the text, which may be most of a key."""
    with pytest.raises(UnusableKeyError) as caught:
        parse_key(text)

    assert "must be 64 hexadecimal digits" == str(caught.value)


@pytest.mark.parametrize("error", [NotOpenedError, UnusableKeyError])
def test_every_error_of_boxes_derives_from_box_error(error: type[BoxError]) -> None:
    """Callers need only one except clause."""
    assert (error, BoxError, BraidError) == error.__mro__[:3]


def test_boxes_show_no_key() -> None:
    """PyNaCl's own objects print their keys; ours hide them."""
    mine = boxes(SENDER)
    mine.open(SEALED, boxes(RECIPIENT).public_key)
    parts = [getattr(mine, name) for name in mine.__slots__]
    shown = f"{mine} {mine!r} {parts}"

    for secret in (SENDER, bytes.fromhex(VECTORS["shared_key"])):
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
