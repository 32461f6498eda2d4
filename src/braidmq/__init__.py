"""BraidMQ: one durable message broker that speaks three wire protocols over one log.

What stands here is the client library; the broker itself is started with `braidmq serve`.
"""

from importlib.metadata import version
from typing import Final

from braidmq import sync
from braidmq.base.errors import BraidError
from braidmq.client import (
    AuthenticationFailed,
    Client,
    ClientError,
    Closed,
    ConnectionFailed,
    ConnectionLost,
    InvalidArgument,
    KeyRefused,
    Message,
    MessageRefused,
    NotOpened,
    NotSent,
    NotSupported,
    OutcomeUnknown,
    Priority,
    PublishError,
    PublishFailed,
    PublishRefused,
    QueueInfo,
    QueueRefused,
    Receipt,
    Replayed,
    Retargeted,
    SenderRefused,
    StaleDelivery,
    Stats,
    Subscription,
    SubscriptionGone,
    SubscriptionRefused,
    connect,
)

__all__ = [
    "AuthenticationFailed",
    "BraidError",
    "Client",
    "ClientError",
    "Closed",
    "ConnectionFailed",
    "ConnectionLost",
    "InvalidArgument",
    "KeyRefused",
    "Message",
    "MessageRefused",
    "NotOpened",
    "NotSent",
    "NotSupported",
    "OutcomeUnknown",
    "Priority",
    "PublishError",
    "PublishFailed",
    "PublishRefused",
    "QueueInfo",
    "QueueRefused",
    "Receipt",
    "Replayed",
    "Retargeted",
    "SenderRefused",
    "StaleDelivery",
    "Stats",
    "Subscription",
    "SubscriptionGone",
    "SubscriptionRefused",
    "connect",
    "sync",
]

__version__: Final = version("braidmq")
