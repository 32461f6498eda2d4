"""The checksum of a whole out of the checksums of its pieces, for many pieces at once.

A CRC-32C is a remainder, and so it is linear: n bytes behind a piece multiply the piece's
checksum by x^8n, and the checksum of the whole is all of these, xor each other. To multiply by
x^8n is done digit by digit of n, and byte by byte of the checksum, by tables.
"""

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from braidmq.columnar.layout import Numbers

Sums = NDArray[np.uint32]

_POLYNOMIAL: Final = 0x82F63B78  # CRC-32C, bits reversed
_DIGIT_BITS: Final = 4
_SUM_BYTES: Final = 4


def _behind_a_byte(sums: Sums) -> Sums:
    for _ in range(8):
        sums = np.where(sums & 1, (sums >> 1) ^ np.uint32(_POLYNOMIAL), sums >> 1)
    return sums


@cache
def _tables(digit: int) -> Sums:
    """Return what 0..15 zero bytes, times 16**digit, make of each byte of a checksum."""
    places = np.arange(0, 8 * _SUM_BYTES, 8, dtype=np.uint32)
    found = [np.arange(256, dtype=np.uint32) << places[:, None]]
    once = _moved(_tables(digit - 1)[-1], _tables(digit - 1)[1]) if digit else None
    while len(found) < 1 << _DIGIT_BITS:
        last = found[-1]
        found.append(_behind_a_byte(last) if once is None else _moved(once, last))
    return np.stack(found)


def _moved(tables: Sums, sums: Sums) -> Sums:
    """Return checksums of any shape, multiplied by what *tables*, four of them, stand for."""
    moved = np.zeros_like(sums)
    for number in range(_SUM_BYTES):
        moved ^= tables[number][sums >> (8 * number) & 0xFF]
    return moved


def shifted(sums: Sums, counts: Numbers) -> Sums:
    """Return each of *sums* as if so many zero bytes followed what it is of."""
    for digit in range(-(-int(counts.max(initial=0)).bit_length() // _DIGIT_BITS)):
        tables = _tables(digit).reshape(-1)
        table = (counts >> (digit * _DIGIT_BITS) & 0xF) * (_SUM_BYTES * 256)
        parts = np.ascontiguousarray(sums).view(np.uint8).reshape(-1, _SUM_BYTES)
        sums = tables.take(table + parts[:, 0])
        for number in range(1, _SUM_BYTES):
            table += 256
            sums ^= tables.take(table + parts[:, number])
    return sums


def combined(sums: Sums, lengths: Numbers) -> int:
    """Return the checksum of pieces, joined in order, that have these sums and lengths."""
    behind = int(lengths.sum()) - np.cumsum(lengths)
    return int(np.bitwise_xor.reduce(shifted(sums, behind), initial=0))
