"""Passwords: their lengths, and hashes that match or do not."""

import structlog.testing

from braidmq.server.access.passwords import PASSWORD_CHARS_MAX, Passwords, is_password
from tests.unit.server.access.users_by_hand import Counting, OutOfMemory


def test_the_length_of_a_password_is_limited() -> None:
    """It has at least one character."""
    lengths = (0, 1, PASSWORD_CHARS_MAX, PASSWORD_CHARS_MAX + 1)

    assert [False, True, True, False] == [is_password("x" * length) for length in lengths]


def test_a_hash_is_of_one_password_and_the_decoy_of_none() -> None:
    """Also of one with lone surrogates, which a peer may send."""
    passwords = Passwords(Counting())
    words = ("countess", "\ud800", "")
    hashes = [passwords.hash(word) for word in words]

    assert [[a == b for a in words] for b in words] == [
        [passwords.verify(str(encoded), word) for word in words] for encoded in hashes
    ]
    assert not any(passwords.verify(passwords.decoy, word) for word in words)


def test_without_memory_nothing_is_hashed_and_nothing_is_right() -> None:
    """The log says so, without the password."""
    passwords = Passwords(OutOfMemory())
    with structlog.testing.capture_logs() as lines:
        found = passwords.hash("countess"), passwords.verify(passwords.decoy, "countess")

    assert (None, False) == found
    assert 2 == len(lines)
    assert "countess" not in str(lines)
