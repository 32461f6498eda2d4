"""Public keys on the Qumbed strand: their length, and the ones that are not safe to use.

This module seals and opens nothing, and does not know whose a key is.
"""

from typing import Final

PUBLIC_KEY_BYTES: Final = 32

KEY_ID_BYTES: Final = 8
"""A key id is the first bytes of its public key."""

_FIELD_PRIME: Final = 2**255 - 19
_SIGN_BIT: Final = 2**255  # X25519 ignores it, so each bad point has two encodings


def _low_order_keys() -> frozenset[bytes]:
    # The u-coordinates on Curve25519 and its twist whose order divides 8, and the two of them
    # that have a second encoding in 255 bits. With these every secret key makes the same box.
    of_order_8 = (
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    )
    others = (0, 1, _FIELD_PRIME - 1, _FIELD_PRIME, _FIELD_PRIME + 1)
    return frozenset(
        (point | sign).to_bytes(PUBLIC_KEY_BYTES, "little")
        for point in (*of_order_8, *others)
        for sign in (0, _SIGN_BIT)
    )


LOW_ORDER_KEYS: Final = _low_order_keys()
"""Public keys that give a known shared secret: what is sealed for them, anyone can open."""


def fault(public_key: bytes) -> str:
    """Say why *public_key* is not a usable public key, or ""."""
    if len(public_key) != PUBLIC_KEY_BYTES:
        return f"is not {PUBLIC_KEY_BYTES} bytes"
    if public_key in LOW_ORDER_KEYS:
        return "is of low order"
    return ""
