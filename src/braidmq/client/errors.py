# ruff: noqa: N818 - the names say what happened, as users read them in an except clause
"""What the client library raises.

    ClientError(BraidError)
    |-- InvalidArgument          a URL, topic, payload or option is invalid (a ValueError)
    |   `-- KeyRefused               a key, or the file that holds it, cannot be used
    |-- NotSupported             the strand lacks a feature
    |-- Closed                   the client or the subscription was closed, or is draining
    |-- ConnectionFailed         no connection could be made
    |   `-- AuthenticationFailed     the broker does not accept the key; not retried
    |-- ConnectionLost           the connection broke before the answer
    |-- MessageRefused           a sealed message was not accepted; its content is not shown
    |   |-- NotOpened                it is damaged, or sealed by or for another key
    |   |-- SenderRefused            its sender is not trusted, or is the receiver itself
    |   |-- Retargeted               it was sealed for another topic or schema
    |   `-- Replayed                 it was accepted before, or is too old to tell
    |-- StaleDelivery            the delivery to acknowledge is no longer open
    |-- QueueRefused             the broker refused a request about a queue
    |-- SubscriptionRefused      the broker refused a subscription
    |   `-- SubscriptionGone         it does not exist, or no longer exists
    `-- PublishError             what `publish_many` returns in place of a receipt
        |-- NotSent              nothing was sent: it is safe to publish it again
        |-- PublishRefused       the broker refused it
        |   `-- PublishFailed        and does not know what it stored (an OutcomeUnknown too)
        `-- OutcomeUnknown       it may be stored or not: publishing again may store it twice

Errors carry addresses, codes, texts and public keys; never a private key, an API key, a token
or a payload.
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
    """The base of every error that the client library raises."""


class InvalidArgument(ClientError, ValueError):
    """A URL, topic, payload or option is invalid."""

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
    """The client or the subscription was closed, or is draining and accepts nothing new."""


class ConnectionFailed(ClientError):
    """No connection could be made."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


class AuthenticationFailed(ConnectionFailed):
    """The broker refused the key; the client does not retry."""


class ConnectionLost(ClientError):
    """The connection broke before the answer."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"lost the connection to {address}: {reason}")
        self.address = address
        self.reason = reason


class MessageRefused(ClientError):
    """A sealed message was not accepted; its content is not shown."""


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
    """The message was sealed for another topic or schema than it arrived with."""


class Replayed(MessageRefused):
    """The message was accepted before, or is too old to tell."""

    def __init__(self, key: bytes, sequence: int) -> None:
        super().__init__(
            f"message {sequence} of sender {key[:8].hex()} is a replay, or too old to tell"
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
    """The broker refused a subscription."""

    def __init__(self, topic: str, code: int | str, text: str) -> None:
        super().__init__(f"subscription to {topic!r} refused: {code} {text}")
        self.topic = topic
        self.code = code
        self.text = text


class SubscriptionGone(SubscriptionRefused):
    """The subscription to resume does not exist, or no longer exists."""


class QueueRefused(ClientError):
    """The broker refused a request about a queue."""

    def __init__(self, name: str, code: str, text: str) -> None:
        super().__init__(f"refused for queue {name!r}: {code} {text}")
        self.name = name
        self.code = code
        self.text = text


class PublishError(ClientError):
    """A message was not confirmed; the subclass says what that means."""


class NotSent(PublishError):
    """Nothing was sent, so the message is certainly not published."""


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
    """The broker failed (500, or SERVER_ERROR): the message may be stored or not; retry it."""


def reason_of(error: OSError) -> str:
    """Return why a connection failed, in the operating system's words.

    The event loop's own text repeats the failed call and the address, or every address of the
    host. The caller names the address already.
    """
    text = str(error)
    if isinstance(error, socket.gaierror):
        return "unknown host" if error.errno in _UNKNOWN_NAMES else error.strerror or text
    # asyncio joins the failures of a host's addresses into one text, which has no `errno`.
    if isinstance(error, ConnectionError) or text.startswith(_SEVERAL):
        reasons = [os.strerror(int(code)) for code in _ERRNO.findall(text)]
        return ", ".join(dict.fromkeys(reasons)) or text
    return text
