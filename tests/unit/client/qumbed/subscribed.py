"""Helpers for tests of Qumbed subscriptions, in which Bob subscribes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import braidmq
from braidmq.client.options import Choices
from braidmq.client.qumbed.subscription import QumbedSubscription
from tests.unit.client.peer import quick
from tests.unit.client.qumbed.peer import Peer
from tests.unit.client.qumbed.people import BOB
from tests.unit.client.strands import SUBSCRIBED


@asynccontextmanager
async def subscribed(
    peer: Peer,
    *,
    prefetch: int = 256,
    schema: str = "",
    envelope: bool = False,
    **options: object,
) -> AsyncIterator[QumbedSubscription]:
    """Subscribe as Bob."""
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
    """Return the counts of refused messages, after everything sent has been read."""
    peer.give(peer.lines[SUBSCRIBED], "orders", b"the last")
    assert b"the last" == (await anext(subscription)).payload
    return dict(subscription.refused)


def show(
    peer: Peer, sealed: bytes, sender: bytes, topic: str = "orders", schema: str = ""
) -> None:
    """Send the subscriber a message as it is."""
    peer.show(peer.lines[SUBSCRIBED], topic, sealed, sender, schema)
