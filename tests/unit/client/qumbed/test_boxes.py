"""Key pairs: sealing, opening, and private key files."""

import copy
import os
import pickle
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from braidmq.client.errors import KeyRefused, MessageRefused, NotOpened, SenderRefused
from braidmq.client.qumbed.boxes import (
    KEY_FILE_BYTES_MAX,
    KeyPair,
    check_public_key,
    parse_public_key,
    read_private,
)
from braidmq.wire.qumbed.public_keys import LOW_ORDER_KEYS
from tests.unit.client.qumbed.people import (
    ALICE,
    BOB,
    EVE,
    GOLDEN,
    MUTATIONS,
    PLAINTEXT,
    PRIME,
    VECTORS,
    mutated,
    secrets_of,
    with_sign_bit,
)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "my.key"
    path.touch(mode=0o600)
    path.write_text(f"{VECTORS['sender_secret']}\n", "ascii")
    return path


def test_the_golden_box_opens() -> None:
    """Another implementation sealed it."""
    assert PLAINTEXT == BOB.open(GOLDEN, ALICE.public_key)


def test_only_the_recipient_opens_a_box() -> None:
    """It takes the recipient's private key and the sender's public key."""
    sealed = ALICE.seal(b"secret", BOB.public_key)

    assert b"secret" == BOB.open(sealed, ALICE.public_key)
    with pytest.raises(NotOpened):
        EVE.open(sealed, ALICE.public_key)
    with pytest.raises(NotOpened):
        BOB.open(sealed, EVE.public_key)


def test_each_box_has_its_own_nonce() -> None:
    """The same payload for the same recipient is sealed differently each time."""
    sealed = {ALICE.seal(b"same", BOB.public_key) for _ in range(100)}

    assert 100 == len({box[:24] for box in sealed})


def test_no_mutation_of_a_box_opens() -> None:
    """Bits flipped, bytes changed, removed or added, ends cut off: all are refused."""
    rng = Random(4)
    opened = []
    for _ in range(MUTATIONS):
        box = mutated(GOLDEN, rng)
        with suppress(NotOpened):
            opened.append((box, BOB.open(box, ALICE.public_key)))

    assert [] == opened


def test_every_shortened_box_is_refused() -> None:
    """At every length, down to zero."""
    for size in range(len(GOLDEN)):
        with pytest.raises(NotOpened):
            BOB.open(GOLDEN[:size], ALICE.public_key)


def test_a_pair_refuses_its_own_key_as_the_sender() -> None:
    """A pair does not open a box that it sealed for itself, in either encoding of the key."""
    sealed = ALICE.seal(b"note to self", ALICE.public_key)

    with pytest.raises(SenderRefused, match="the key is the receiver's own") as caught:
        ALICE.open(sealed, ALICE.public_key)
    assert ALICE.public_key == caught.value.key
    with pytest.raises(SenderRefused, match="canonical"):
        ALICE.open(sealed, with_sign_bit(ALICE.public_key))


def test_another_encoding_of_a_sender_key_is_refused() -> None:
    """The box would open, and the sender would seem to be a new one."""
    with pytest.raises(SenderRefused, match="not in canonical form"):
        BOB.open(GOLDEN, with_sign_bit(ALICE.public_key))


BAD_KEYS = {
    b"": "is not 32 bytes",
    31 * b"k": "is not 32 bytes",
    33 * b"k": "is not 32 bytes",
    **dict.fromkeys(sorted(LOW_ORDER_KEYS), "is of low order"),
    with_sign_bit(ALICE.public_key): "is not in canonical form",
    (PRIME + 9).to_bytes(32, "little"): "is not in canonical form",
}


@pytest.mark.parametrize(("key", "problem"), BAD_KEYS.items())
def test_an_invalid_public_key_is_refused(key: bytes, problem: str) -> None:
    """As a recipient it is the caller's mistake, as a sender a fault of the message."""
    keys = KeyPair.generate()

    with pytest.raises(KeyRefused, match=f"the public key {problem}"):
        keys.seal(b"x", key)
    with pytest.raises(SenderRefused, match=f"the public key {problem}"):
        keys.open(GOLDEN, key)
    assert 0 == keys.held_boxes


def test_the_canonical_form_ends_at_the_prime() -> None:
    """Keys just below the prime are valid, keys above it are not."""
    check_public_key((PRIME - 2).to_bytes(32, "little"))
    with pytest.raises(KeyRefused, match="canonical"):
        check_public_key((PRIME + 2).to_bytes(32, "little"))


def test_the_cache_of_boxes_is_bounded() -> None:
    """Messages from many different senders do not use up memory."""
    keys = KeyPair(bytes(range(32)), boxes_max=8)
    for n in range(1, 20):
        with suppress(MessageRefused):
            keys.open(GOLDEN, KeyPair(bytes([n]) * 32).public_key)

    assert 8 == keys.held_boxes


def test_a_pair_is_made_from_bytes_or_hex() -> None:
    """Both give the same pair; its id is the start of its public key."""
    pair = KeyPair(bytes.fromhex(VECTORS["sender_secret"]))

    assert VECTORS["sender_public"] == pair.public_key.hex()
    assert pair.public_key[:8] == pair.key_id
    assert pair.public_key == ALICE.public_key
    assert VECTORS["sender_secret"] == ALICE.reveal_private_key().hex()


def test_generated_pairs_differ() -> None:
    """Each has 256 random bits."""
    assert 100 == len({KeyPair.generate().public_key for _ in range(100)})


@pytest.mark.parametrize("private_key", [b"", 31 * b"k", 33 * b"k", bytes(32)])
def test_a_private_key_of_the_wrong_size_or_all_zeros_is_refused(private_key: bytes) -> None:
    """It is a mistake in the program or in a file."""
    with pytest.raises(KeyRefused, match="the private key is"):
        KeyPair(private_key)


def test_an_invalid_private_key_is_not_quoted() -> None:
    """The text may be most of a private key."""
    with pytest.raises(KeyRefused) as caught:
        KeyPair.from_hex(VECTORS["sender_secret"][:-1])

    assert "a private key must be 64 hexadecimal digits" == str(caught.value)


def test_a_public_key_is_read_from_hex() -> None:
    """And checked like any other."""
    assert BOB.public_key == parse_public_key(BOB.public_key.hex())
    with pytest.raises(KeyRefused, match="a public key must be 64 hexadecimal digits"):
        parse_public_key("07a3")
    with pytest.raises(KeyRefused, match="of low order"):
        parse_public_key(64 * "0")


def test_a_pair_is_read_from_its_file(key_file: Path) -> None:
    """Given as a path or a string, with or without a line end."""
    assert ALICE.public_key == KeyPair.from_file(key_file).public_key
    key_file.write_text(VECTORS["recipient_secret"], "ascii")
    assert BOB.public_key == KeyPair.from_file(str(key_file)).public_key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o601, 0o610, 0o666])
def test_a_key_file_accessible_to_others_is_refused(key_file: Path, mode: int) -> None:
    """The error says how to fix the permissions."""
    key_file.chmod(mode)

    with pytest.raises(
        KeyRefused, match=r"my\.key: is accessible to other users; run chmod 600"
    ):
        KeyPair.from_file(key_file)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_file_accessible_only_to_its_owner_is_read(key_file: Path, mode: int) -> None:
    """It may be writable or read-only."""
    key_file.chmod(mode)

    assert ALICE.public_key == KeyPair.from_file(key_file).public_key


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\xff" * 64, 64 * b"0", b"ab" * 31, b"ab" * 33, b"ab" * 32 + b" x"]
)
def test_a_file_without_a_key_is_refused(key_file: Path, content: bytes) -> None:
    """The error names the file and quotes nothing of its content."""
    key_file.write_bytes(content)
    with pytest.raises(KeyRefused) as caught:
        KeyPair.from_file(key_file)

    assert f"{key_file}: does not hold a private key" == str(caught.value)


def test_a_path_that_is_not_a_key_file_is_refused(tmp_path: Path, key_file: Path) -> None:
    """Missing, a directory, a pipe without a writer, or far too long."""
    with pytest.raises(KeyRefused, match=r"none: cannot be read: No such file"):
        KeyPair.from_file(tmp_path / "none")
    with pytest.raises(KeyRefused, match="is not a file"):
        KeyPair.from_file(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(KeyRefused, match="is not a file"):
        KeyPair.from_file(tmp_path / "pipe")
    key_file.write_bytes((KEY_FILE_BYTES_MAX + 1) * b" ")
    with pytest.raises(KeyRefused, match=f"holds more than {KEY_FILE_BYTES_MAX} bytes"):
        KeyPair.from_file(key_file)


def test_a_private_file_is_read_up_to_its_limit(key_file: Path) -> None:
    """A file of exactly the limit is read in full."""
    key_file.write_bytes(b"12345678")

    assert b"12345678" == read_private(key_file, bytes_max=8)
    with pytest.raises(KeyRefused, match="more than 7 bytes"):
        read_private(key_file, bytes_max=7)


def test_a_pair_shows_its_key_id_and_no_secret() -> None:
    """In its repr, in formatted text, and in every error from opening."""
    keys = KeyPair.from_hex(VECTORS["recipient_secret"])
    texts = [repr(keys), str(keys), f"{keys}", repr([keys])]
    for sealed, sender in (
        (GOLDEN[:-1], ALICE.public_key),
        (GOLDEN, keys.public_key),
        (GOLDEN, bytes(32)),
    ):
        with pytest.raises(MessageRefused) as caught:
            keys.open(sealed, sender)
        texts += [str(caught.value), repr(caught.value)]

    assert "KeyPair(5869aff450549732)" == repr(keys)
    for secret in [*secrets_of(ALICE, BOB), PLAINTEXT.decode()]:
        assert not [text for text in texts if secret in text]


def test_a_pair_is_neither_pickled_nor_copied() -> None:
    """Pickles end up in caches and on networks."""
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            duplicate(ALICE)
    assert not hasattr(ALICE, "__dict__")
