"""The gateway key: the broker seals messages of other strands with it for Qumbed subscribers.

It is generated once and kept in the data directory, readable by its owner only, so that
subscribers can pin its public key. It cannot open what clients have sealed for each other.

`gateway.key` is two lines of 64 hexadecimal digits, the private key and its public key. A
changed bit in either shows because they no longer belong together: without the second, the
broker would start with another identity. Earlier versions wrote the first line only; the second
is added.
"""

import secrets
from typing import Final

import structlog

from braidmq.base.errors import ConfigError
from braidmq.wal.disk import Files, read_all, replace_file
from braidmq.wire.qumbed.boxes import (
    KEY_BYTES,
    NONCE_BYTES,
    Boxes,
    UnusableKeyError,
    parse_key,
)

GATEWAY_KEY_FILE: Final = "gateway.key"

BOXES_MAX: Final = 16_384
"""Subscribers' boxes that are cached: more than the default limit of connections, since a
fan-out to more subscribers than that would compute every box anew. Megabytes when full."""

FILE_BYTES_MAX: Final = 1_024
"""More than a key and its line end; a longer file is not a key."""


_log = structlog.get_logger(__name__)


class GatewayKey:
    """The broker's own key pair, and the boxes to its subscribers.

    Raises:
        ConfigError: The file is there and cannot be used, and is left as it is; or it cannot be
            written.
    """

    def __init__(self, files: Files) -> None:
        is_there = files.exists(GATEWAY_KEY_FILE)
        private_key, public_key = _load(files) if is_there else (_make(files), b"")
        try:
            self._boxes = Boxes(private_key, boxes_max=BOXES_MAX)
        except UnusableKeyError as error:
            raise _not_a_key(error) from None
        if public_key and public_key != self.public_key:
            problem = (
                "is damaged: its two keys do not belong together; restore it from a backup"
            )
            raise ConfigError(GATEWAY_KEY_FILE, problem)
        if is_there and not public_key:
            self._add_public_key(files, private_key)

    @property
    def public_key(self) -> bytes:
        """The key that subscribers open messages with, and may pin: 32 bytes."""
        return self._boxes.public_key

    @property
    def held_boxes(self) -> int:
        """The number of cached boxes."""
        return self._boxes.held_boxes

    def seal_for(self, public_key: bytes, payload: bytes) -> bytes:
        """Return *payload* sealed for a subscriber's key, with a random nonce.

        Raises:
            UnusableKeyError: Nothing can be sealed for that key.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        return self._boxes.seal(payload, public_key, nonce=nonce)

    def _add_public_key(self, files: Files, private_key: bytes) -> None:
        """Write the second line of an earlier version's file; if not now, at the next start."""
        try:
            replace_file(files, GATEWAY_KEY_FILE, _content(private_key))
        except OSError as error:
            _log.warning("gateway.key could not be completed", reason=error.strerror)

    def __repr__(self) -> str:
        return f"GatewayKey({self.public_key.hex()})"


def _make(files: Files) -> bytes:
    private_key = secrets.token_bytes(KEY_BYTES)
    try:
        replace_file(files, GATEWAY_KEY_FILE, _content(private_key))
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise ConfigError(GATEWAY_KEY_FILE, problem) from None
    return private_key


def _content(private_key: bytes) -> bytes:
    public_key = Boxes(private_key, boxes_max=1).public_key
    return f"{private_key.hex()}\n{public_key.hex()}\n".encode()


def _load(files: Files) -> tuple[bytes, bytes]:
    """Return the private key, and the public key or b"" if the file has none."""
    try:
        file = files.open(GATEWAY_KEY_FILE, write=False, create=False)
        data = read_all(file, FILE_BYTES_MAX, 0)
        file.close()
    except OSError as error:
        raise ConfigError(GATEWAY_KEY_FILE, f"cannot be read: {error.strerror}") from None
    first, _, second = data.decode("ascii", "replace").strip().partition("\n")
    try:
        return parse_key(first), parse_key(second) if second else b""
    except UnusableKeyError as error:
        raise _not_a_key(error) from None


def _not_a_key(error: UnusableKeyError) -> ConfigError:
    return ConfigError(GATEWAY_KEY_FILE, f"does not hold a private key: {error}")
