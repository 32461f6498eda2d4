"""Stateless resets: their tokens, sizes and rate limit."""

from itertools import pairwise

from braidmq.transport.quic_reset import (
    RESET_BYTES_MAX,
    RESET_BYTES_MIN,
    RESETS_PER_S_MAX,
    Resets,
    is_reset,
)

ID = b"8 bytes!"


def test_a_reset_is_recognised_by_its_token_alone() -> None:
    """A restarted server makes the same token from the same secret."""
    token = Resets(b"secret").token(ID)
    reset = Resets(b"secret").answer(1200, ID, 0.0)

    assert reset is not None
    assert is_reset(reset, [b"0" * 16, token])
    assert not is_reset(reset, [b"0" * 16])
    assert not is_reset(reset[:-1], [token])
    assert not is_reset(token, [token])  # too short for a reset


def test_another_secret_or_another_connection_has_another_token() -> None:
    """Otherwise a third party could end the connection."""
    tokens = {Resets(b"1").token(ID), Resets(b"2").token(ID), Resets(b"1").token(b"other id")}
    assert 3 == len(tokens)


def test_a_reset_looks_like_any_short_packet() -> None:
    """The first two bits are 01; everything before the token is random."""
    answers = [Resets(b"secret").answer(1200, ID, 0.0) or b"" for _ in range(100)]

    assert {0x40} == {answer[0] & 0xC0 for answer in answers}
    assert 1 == len({answer[-16:] for answer in answers})
    assert all(one[:-16] != other[:-16] for one, other in pairwise(answers))


def test_a_reset_is_shorter_than_the_datagram_it_answers() -> None:
    """Otherwise two peers without state would answer each other forever."""
    resets = Resets(b"secret")
    sizes = [len(resets.answer(size, ID, 0.0) or b"") for size in range(1, 60)]

    assert all(answer < size for size, answer in enumerate(sizes, start=1))
    assert {0, *range(RESET_BYTES_MIN, RESET_BYTES_MAX + 1)} == set(sizes)


def test_the_number_of_resets_per_second_is_limited() -> None:
    """A flood of invalid datagrams is not answered one by one."""
    resets = Resets(b"secret")
    answered = [resets.answer(1200, ID, 7.9) is not None for _ in range(2 * RESETS_PER_S_MAX)]

    assert RESETS_PER_S_MAX == sum(answered)
    assert resets.answer(1200, ID, 8.1) is not None
