"""BraidMQ: one durable message broker that speaks three wire protocols over one log.

What stands here is the client library; the broker itself is started with `braidmq serve`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what is used is loaded when it is: Spark's workers start by the dozen
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

    __version__: str

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


if not TYPE_CHECKING:  # to a type checker a name that is not above is a mistake

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - each has its type above
        """Return what is asked for, from where it is."""
        if name == "__version__":
            return import_module("importlib.metadata").version("braidmq")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "sync":
            return import_module("braidmq.sync")
        home = "braidmq.base.errors" if name == "BraidError" else "braidmq.client"
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """Return the names that there are."""
    return sorted({*globals(), *__all__, "__version__"})
