"""The gateway key: the broker seals messages of other strands with it for Qumbed subscribers.

It is generated once and kept in the data directory, readable by its owner only, so that
subscribers can pin its public key. `gateway.key` holds the private key as 64 hexadecimal digits
and a line end. It cannot open what clients have sealed for each other.
"""

import secrets
from typing import Final

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


class GatewayKey:
    """The broker's own key pair, and the boxes to its subscribers.

    Raises:
        ConfigError: The file is there and cannot be used, and is left as it is; or it cannot be
            written.
    """

    def __init__(self, files: Files) -> None:
        private_key = _load(files) if files.exists(GATEWAY_KEY_FILE) else _make(files)
        try:
            self._boxes = Boxes(private_key, boxes_max=BOXES_MAX)
        except UnusableKeyError as error:
            raise _not_a_key(error) from None

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

    def __repr__(self) -> str:
        return f"GatewayKey({self.public_key.hex()})"


def _make(files: Files) -> bytes:
    private_key = secrets.token_bytes(KEY_BYTES)
    try:
        replace_file(files, GATEWAY_KEY_FILE, private_key.hex().encode() + b"\n")
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise ConfigError(GATEWAY_KEY_FILE, problem) from None
    return private_key


def _load(files: Files) -> bytes:
    try:
        file = files.open(GATEWAY_KEY_FILE, write=False, create=False)
        data = read_all(file, FILE_BYTES_MAX, 0)
        file.close()
    except OSError as error:
        raise ConfigError(GATEWAY_KEY_FILE, f"cannot be read: {error.strerror}") from None
    try:
        return parse_key(data.decode("ascii", "replace").strip())
    except UnusableKeyError as error:
        raise _not_a_key(error) from None


def _not_a_key(error: UnusableKeyError) -> ConfigError:
    return ConfigError(GATEWAY_KEY_FILE, f"does not hold a private key: {error}")
