"""Stateless reset: how a server tells a peer that it no longer knows the connection.

    0          1                         n - 16     n
    +----------+-------------------------+----------+
    | 01xxxxxx | unpredictable bytes ... | token    |
    +----------+-------------------------+----------+

Without it, a peer would wait for its idle timeout whenever a server is killed and restarted.
The token is derived from the connection id and a secret that outlives the process, so nothing
about the connection has to. Only the peer that got it in the handshake can recognise it.
"""

import hashlib
import hmac
import os
from typing import Final

TOKEN_BYTES: Final = 16
RESET_BYTES_MIN: Final = 21
"""A shorter one could be distinguished from an ordinary packet."""

RESET_BYTES_MAX: Final = 42
RESETS_PER_S_MAX: Final = 256
"""Bounds the work that a flood of unknown packets can cause."""

_PURPOSE: Final = b"braidmq stateless reset"


class Resets:
    """Makes tokens and resets; *secret* is anything that only this server knows."""

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.sha256(_PURPOSE + secret).digest()
        self._second = 0
        self._sent = 0

    def token(self, connection_id: bytes) -> bytes:
        """Return the token of a connection id."""
        return hmac.digest(self._key, connection_id, hashlib.sha256)[:TOKEN_BYTES]

    def answer(self, size: int, connection_id: bytes, now: float) -> bytes | None:
        """Return the reset for a datagram of *size* bytes, or None if it gets none.

        It is shorter than the datagram, so two endpoints that have both forgotten the
        connection cannot reset each other for ever.
        """
        length = min(size - 1, RESET_BYTES_MAX)
        if length < RESET_BYTES_MIN:
            return None
        if int(now) != self._second:
            self._second = int(now)
            self._sent = 0
        if self._sent >= RESETS_PER_S_MAX:
            return None
        self._sent += 1
        noise = bytearray(os.urandom(length - TOKEN_BYTES))
        noise[0] = 0x40 | noise[0] & 0x3F  # the first bits of an ordinary short header
        return bytes(noise) + self.token(connection_id)


def is_reset(data: bytes, tokens: list[bytes]) -> bool:
    """Tell whether a datagram ends with one of the *tokens* that a server has issued."""
    if len(data) < RESET_BYTES_MIN:
        return False
    end = data[-TOKEN_BYTES:]
    return any(hmac.compare_digest(end, token) for token in tokens)
