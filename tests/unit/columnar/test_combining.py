"""Checksums of pieces, put together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from braidmq.columnar.combining import combined, shifted
from braidmq.wal.format import checksum


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_the_whole_has_the_checksum_of_its_pieces(pieces: list[bytes]) -> None:
    """Of any pieces, the empty ones too, and of none."""
    sums = np.array([checksum(piece) for piece in pieces], np.uint32)
    lengths = np.array([len(piece) for piece in pieces], np.int64)

    assert checksum(b"".join(pieces)) == combined(sums, lengths)


@given(st.binary(min_size=1, max_size=9), st.integers(0, 2**22))
def test_zeros_behind_a_piece_shift_its_checksum(piece: bytes, count: int) -> None:
    """By any number of them; the checksum of the zeros themselves is what is missing."""
    found = shifted(np.array([checksum(piece)], np.uint32), np.array([count]))

    assert checksum(piece + bytes(count)) == int(found[0]) ^ checksum(bytes(count))


def test_one_wrong_sum_among_many_is_found() -> None:
    """Whichever it is."""
    pieces = [b"piece %d" % i for i in range(300)]
    sums = np.array([checksum(piece) for piece in pieces], np.uint32)
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    whole = checksum(b"".join(pieces))

    for number in range(len(pieces)):
        wrong = sums.copy()
        wrong[number] ^= 1 << number % 32
        assert whole != combined(wrong, lengths)
