# ruff: noqa: N818 - the names say what happened, as users read them in an except clause
"""What the client library raises.

    ClientError(BraidError)
    |-- InvalidArgument          a URL, topic, payload or option cannot be used (a ValueError)
    |   `-- KeyRefused               a key, or the file that holds it, cannot be used
    |-- NotSupported             the strand cannot do that
    |-- Closed                   the client or the subscription was closed, or is draining
    |-- ConnectionFailed         no connection could be made
    |   `-- AuthenticationFailed     the broker does not know the key; not tried again
    |-- ConnectionLost           the connection broke before the answer came
    |-- MessageRefused           a sealed message is not taken, and nothing of it is shown
    |   |-- NotOpened                it is damaged, or sealed by or for another key
    |   |-- SenderRefused            its sender is not trusted, or is the receiver itself
    |   |-- Retargeted               it was sealed for another topic or schema
    |   `-- Replayed                 it was taken before, or is too old to tell
    |-- StaleDelivery            an acknowledgement came for a delivery that is no longer open
    |-- QueueRefused             the broker said no to a request about a queue
    |-- SubscriptionRefused      the broker said no to a subscription
    |   `-- SubscriptionGone         it does not exist, or no longer
    `-- PublishError             what stands in `publish_many`'s results in place of a receipt
        |-- NotSent              nothing was handed over: publish it again at will
        |-- PublishRefused       the broker said no
        |   `-- PublishFailed        and cannot tell what is stored (an OutcomeUnknown too)
        `-- OutcomeUnknown       it may be stored or not: publishing again may store it twice

Errors carry addresses, codes, texts and public keys; never any other key, a token or a
payload.
"""

import os
import re
import socket
from typing import Final

from braidmq.base.errors import EXIT_USAGE, BraidError

_SEVERAL: Final = "Multiple exceptions: "
_ERRNO: Final = re.compile(r"\[Errno ([0-9]{1,3})\]")
_UNKNOWN_NAMES: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None)})


class ClientError(BraidError):
    """Everything that the client library raises on purpose."""


class InvalidArgument(ClientError, ValueError):
    """A URL, topic, payload or option cannot be used."""

    exit_code = EXIT_USAGE


class KeyRefused(InvalidArgument):
    """A key, or the file that holds it, cannot be used."""


class NotSupported(ClientError):
    """The strand in use lacks *feature*; *supported_by* is a strand that has it, or ""."""

    exit_code = EXIT_USAGE

    def __init__(
        self, strand: str, feature: str, *, reason: str = "", supported_by: str = ""
    ) -> None:
        why = f": {reason}" if reason else ""
        other = f"; {supported_by} does" if supported_by else ""
        super().__init__(f"{strand} does not support {feature}{why}{other}")
        self.strand = strand
        self.feature = feature
        self.supported_by = supported_by


class Closed(ClientError):
    """The client or the subscription was closed, or takes nothing new while it drains."""


class ConnectionFailed(ClientError):
    """No connection could be made."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


class AuthenticationFailed(ConnectionFailed):
    """The broker refused the key; it is not tried again."""


class ConnectionLost(ClientError):
    """The connection broke before the answer came."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"lost the connection to {address}: {reason}")
        self.address = address
        self.reason = reason


class MessageRefused(ClientError):
    """A sealed message is not taken, and nothing of it is shown."""


class NotOpened(MessageRefused):
    """The box is damaged, or was sealed by or for another key."""


class SenderRefused(MessageRefused):
    """The sender is not trusted, or is the receiver itself; *key* is its public key."""

    def __init__(self, key: bytes, reason: str, *, reflected: bool = False) -> None:
        super().__init__(f"sender {key[:8].hex()} refused: {reason}")
        self.key = key
        self.reason = reason
        self.reflected = reflected
        """The receiver's own message came back to it."""


class Retargeted(MessageRefused):
    """The message was sealed for another topic or schema than it came with."""


class Replayed(MessageRefused):
    """The message was taken before, or is too old to tell."""

    def __init__(self, key: bytes, sequence: int) -> None:
        super().__init__(
            f"message {sequence} of sender {key[:8].hex()} was taken, or is too old"
        )
        self.key = key
        self.sequence = sequence


class StaleDelivery(ClientError):
    """The delivery is no longer open: it was settled before, or its subscription is gone."""

    def __init__(self, delivery_id: int | str, text: str) -> None:
        super().__init__(f"delivery {delivery_id} cannot be acknowledged: {text}")
        self.delivery_id = delivery_id
        self.text = text


class SubscriptionRefused(ClientError):
    """The broker said no to a subscription."""

    def __init__(self, topic: str, code: int | str, text: str) -> None:
        super().__init__(f"subscription to {topic!r} refused: {code} {text}")
        self.topic = topic
        self.code = code
        self.text = text


class SubscriptionGone(SubscriptionRefused):
    """The subscription that was to be resumed does not exist, or no longer."""


class QueueRefused(ClientError):
    """The broker said no to a request about a queue."""

    def __init__(self, name: str, code: str, text: str) -> None:
        super().__init__(f"refused for queue {name!r}: {code} {text}")
        self.name = name
        self.code = code
        self.text = text


class PublishError(ClientError):
    """A message was not confirmed; the subclass says what that means."""


class NotSent(PublishError):
    """Nothing was handed over, so the message is certainly not published."""


class OutcomeUnknown(PublishError):
    """The message may be stored or not; publishing it again may store it twice."""


class PublishRefused(PublishError):
    """The broker refused the message."""

    def __init__(self, code: int | str, text: str, *, topic: str = "") -> None:
        place = f" to {topic!r}" if topic else ""
        super().__init__(f"publish{place} refused: {code} {text}")
        self.topic = topic
        self.code = code
        self.text = text


class PublishFailed(PublishRefused, OutcomeUnknown):
    """The broker failed (500, or SERVER_ERROR): it may be stored or not, repeat it."""


def reason_of(error: OSError) -> str:
    """Return why there is no connection, in the system's words.

    The event loop says which call failed on which address, or on each of a name's addresses;
    the address stands before the reason anyway.
    """
    text = str(error)
    if isinstance(error, socket.gaierror):
        return (
            "no host has that name" if error.errno in _UNKNOWN_NAMES else error.strerror or text
        )
    if isinstance(error, ConnectionError) or text.startswith(_SEVERAL):
        reasons = [os.strerror(int(code)) for code in _ERRNO.findall(text)]
        return ", ".join(dict.fromkeys(reasons)) or text
    return text
