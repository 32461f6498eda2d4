"""The library that users import: one surface over three strands. It holds no broker logic.

    async with braidmq.connect("blip://dev-key@127.0.0.1:5555") as client:
        await client.publish("orders", b"1")  # returns when it is durable
        async with client.subscribe("orders") as messages:
            async for message in messages:
                async with message.process():
                    ...

`braidmq.sync` is the same for programs without an event loop.
"""

from typing import Unpack

from braidmq.client.blip import strand as blip
from braidmq.client.deliveries import Message, Priority, QueueInfo, Receipt, Stats
from braidmq.client.errors import (
    AuthenticationFailed,
    ClientError,
    Closed,
    ConnectionFailed,
    ConnectionLost,
    InvalidArgument,
    KeyRefused,
    MessageRefused,
    NotOpened,
    NotSent,
    NotSupported,
    OutcomeUnknown,
    PublishError,
    PublishFailed,
    PublishRefused,
    QueueRefused,
    Replayed,
    Retargeted,
    SenderRefused,
    StaleDelivery,
    SubscriptionGone,
    SubscriptionRefused,
)
from braidmq.client.options import QUMBED_OPTIONS, Choices, Options
from braidmq.client.surface import Client, Connecting, Subscription
from braidmq.client.url import parse

__all__ = [
    "AuthenticationFailed",
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
]


def connect(url: str, *, key: str | None = None, **options: Unpack[Choices]) -> Connecting:
    """Connect to the broker at *url*, for example `blip://dev-key@127.0.0.1:5555`.

    Over Vibe: `vibe://token@host:port`, or `vibe://user:password@host:port`. Over Qumbed:
    `qumbed://key@host:port?fingerprint=HEX`, where the key may be missing and the fingerprint
    is that of the broker's certificate. Enter the result with `async with`, or await it and
    close the client yourself. *key* wins over the one in the URL (beside `vibe://user:@host` it
    is the password). All other options, with their defaults, are the fields of
    :class:`~braidmq.client.options.Options`: `tls`, `connect_timeout`, `answer_timeout`,
    `offline_timeout`, `keepalive`, `close_timeout`, `reconnect`, `reconnect_delay`,
    `reconnect_delay_max`, `compression`, `private_key`, `trust`, `ca_file`, `certificate`,
    `insecure`, `schemas`, `on_disconnect`, `on_reconnect`.

    Raises:
        InvalidArgument: The URL or an option cannot be used.
        NotSupported: The strand that the URL names lacks an option that was given.
        ConnectionFailed: When entered or awaited: there is no broker.
        AuthenticationFailed: When entered or awaited: the broker does not know the key.
    """
    endpoint = parse(url, key=key)
    chosen = Options(**options)
    if endpoint.strand == "qumbed":
        from braidmq.client.qumbed import strand as qumbed  # noqa: PLC0415 - see there

        return Connecting(lambda: qumbed.connect(endpoint, chosen))
    for name in QUMBED_OPTIONS:
        if getattr(chosen, name):
            raise NotSupported(endpoint.strand, name)
    if endpoint.strand == "blip":
        return Connecting(lambda: blip.connect(endpoint, chosen))
    from braidmq.client.vibe import strand as vibe  # noqa: PLC0415 - see there

    return Connecting(lambda: vibe.connect(endpoint, chosen))
