# ruff: noqa: F405 - type checkers take the client's names from the star import below
"""BraidMQ: one durable message broker that speaks three wire protocols over one log.

This package is the client library; `braidmq serve` starts the broker itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time names load on first use: Spark starts many short workers
    from braidmq import sync
    from braidmq.base.errors import BraidError
    from braidmq.client import *  # noqa: F403 - `__all__` names them

    __version__: str

__all__ = [
    "AuthenticationFailed",
    "BraidError",
    "Client",
    "ClientError",
    "Closed",
    "ConnectionFailed",
    "ConnectionLost",
    "DeliveryMode",
    "InvalidArgument",
    "KeyRefused",
    "Message",
    "MessageRefused",
    "NotOpened",
    "NotSent",
    "NotSupported",
    "OutcomeUnknown",
    "Outgoing",
    "Overflow",
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


if not TYPE_CHECKING:  # so that a type checker reports names that are not listed above

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - the types are above
        """Import a public name when it is first used."""
        if name == "__version__":
            return import_module("importlib.metadata").version("braidmq")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "sync":
            return import_module("braidmq.sync")
        home = "braidmq.base.errors" if name == "BraidError" else "braidmq.client"
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__, "__version__"})
