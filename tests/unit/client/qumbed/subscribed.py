"""What tests of Qumbed subscriptions share: Bob subscribes, and is shown messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import braidmq
from braidmq.client.options import Choices
from braidmq.client.qumbed.subscription import QumbedSubscription
from tests.unit.client.peer import quick
from tests.unit.client.qumbed.peer import Peer
from tests.unit.client.qumbed.people import BOB

SUBSCRIBED = 1
"""The second of a client's connections."""


@asynccontextmanager
async def subscribed(
    peer: Peer,
    *,
    prefetch: int = 256,
    schema: str = "",
    envelope: bool = False,
    **options: object,
) -> AsyncIterator[QumbedSubscription]:
    """Let Bob subscribe."""
    chosen: Choices = {**quick(), "private_key": BOB, **options}  # type: ignore[typeddict-item] # one at a time
    async with (
        braidmq.connect(peer.url, **chosen) as client,
        client.subscribe(
            "orders", prefetch=prefetch, schema=schema, envelope=envelope
        ) as subscription,
    ):
        assert isinstance(subscription, QumbedSubscription)
        yield subscription


async def refusals(peer: Peer, subscription: QumbedSubscription) -> dict[str, int]:
    """Return what was refused once everything sent has been read."""
    peer.give(peer.lines[SUBSCRIBED], "orders", b"the last")
    assert b"the last" == (await anext(subscription)).payload
    return dict(subscription.refused)


def show(
    peer: Peer, sealed: bytes, sender: bytes, topic: str = "orders", schema: str = ""
) -> None:
    """Show the subscriber a message."""
    peer.show(peer.lines[SUBSCRIBED], topic, sealed, sender, schema)
