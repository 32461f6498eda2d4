"""The library that users import: one surface over three strands. It contains no broker logic.

    async with braidmq.connect("blip://dev-key@127.0.0.1:5555") as client:
        await client.publish("orders", b"1")  # returns when it is durable
        async with client.subscribe("orders") as messages:
            async for message in messages:
                async with message.process():
                    ...

`braidmq.sync` is the same for programs without an event loop.
"""

from collections.abc import Callable
from typing import Unpack

from braidmq.base.extras import needing
from braidmq.client import capabilities
from braidmq.client.answers import QueueInfo, Receipt, Stats
from braidmq.client.deliveries import Message
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
from braidmq.client.options import Choices, Options, Priority
from braidmq.client.strand import AnyStrand
from braidmq.client.subscription import Subscription
from braidmq.client.surface import Client, Connecting
from braidmq.client.url import Endpoint, parse

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

    Over Vibe: `vibe://token@host:port` or `vibe://user:password@host:port`. Over Qumbed:
    `qumbed://key@host:port?fingerprint=HEX`, where the key is optional and the fingerprint is
    that of the broker's certificate. Enter the result with `async with`, or await it and close
    the client yourself. *key* overrides the one in the URL (with `vibe://user:@host` it is the
    password). All other options, with their defaults, are the fields of
    :class:`~braidmq.client.options.Options`: `tls`, `connect_timeout`, `answer_timeout`,
    `offline_timeout`, `keepalive`, `close_timeout`, `reconnect`, `reconnect_delay`,
    `reconnect_delay_max`, `compression`, `private_key`, `trust`, `ca_file`, `certificate`,
    `insecure`, `schemas`, `on_disconnect`, `on_reconnect`.

    Raises:
        InvalidArgument: The URL or an option is invalid.
        NotSupported: The strand that the URL names lacks an option that was given.
        MissingExtraError: It is Qumbed, and the extra `qumbed` is not installed.
        ConnectionFailed: When entered or awaited: the broker cannot be reached.
        AuthenticationFailed: When entered or awaited: the broker does not accept the key.
    """
    endpoint = parse(url, key=key)
    chosen = Options(**options)
    # An empty value, such as `schemas={}`, requests nothing, so every strand accepts it and a
    # program can pass the same options to any of them.
    capabilities.check(endpoint.strand, (name for name in options if getattr(chosen, name)))
    strand = _strand_class(endpoint.strand)

    async def open_client() -> Client:
        opened = strand(endpoint, chosen)
        await opened.open()
        return Client(opened)

    return Connecting(open_client)


def _strand_class(name: str) -> Callable[[Endpoint, Options], AnyStrand]:
    """Import a strand when it is first used.

    Vibe and Qumbed need libraries (JSON validation, brotli, QUIC, boxes) that programs on
    another strand should not have to load.
    """
    if name == "blip":
        from braidmq.client.blip.strand import BlipStrand  # noqa: PLC0415 - see above

        return BlipStrand
    if name == "vibe":
        from braidmq.client.vibe.strand import VibeStrand  # noqa: PLC0415 - see above

        return VibeStrand
    with needing("qumbed", "qumbed://"):
        from braidmq.client.qumbed.strand import QumbedStrand  # noqa: PLC0415 - see above

    return QumbedStrand
