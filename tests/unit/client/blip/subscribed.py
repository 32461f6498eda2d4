"""A client and its subscription at a scripted peer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import braidmq
from braidmq.client.blip.subscription import BlipSubscription
from braidmq.wire.blip import frames, messages
from tests.unit.client.blip.peer import Line, Peer
from tests.unit.client.peer import quick


@asynccontextmanager
async def subscribed(
    peer: Peer, *, prefetch: int = 256, keep: bool | None = None, topic: str = "orders"
) -> AsyncIterator[BlipSubscription]:
    async with (
        braidmq.connect(peer.url, **quick()) as client,
        client.subscribe(topic, prefetch=prefetch, keep=keep) as subscription,
    ):
        assert isinstance(subscription, BlipSubscription)
        yield subscription


async def take(subscription: braidmq.Subscription, count: int) -> list[braidmq.Message]:
    """Return the next *count* messages, unacknowledged."""
    return [await anext(subscription) for _ in range(count)]


async def delivered(peer: Peer, subscription: BlipSubscription) -> braidmq.Message:
    """Deliver a message with the payload `1` and return it, unacknowledged."""
    peer.put(subscription.subscription_id, b"1")
    return await anext(subscription)


def credits_granted(line: Line) -> list[int]:
    return [messages.read_credit(p)[1] for kind, _, p in line.seen if kind == frames.CREDIT]
