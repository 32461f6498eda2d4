"""Subscriptions that their client has abandoned cost next to nothing when messages come."""

import gc
import tracemalloc

import pytest

from tests.integration.blip import peer as blip
from tests.integration.blip.peer import broker_at, connected, until_committed

pytestmark = pytest.mark.asyncio

SUBSCRIPTIONS = 5_000
PUBLISHES = 1_500
PAYLOAD = b"ten bytes!"
FIRST_BYTES_MAX = 48 * 1024 * 1024
"""What the windows take: a few messages for each. With as many as a subscription that is alone
may hold, it would be hundreds of MiB."""
LATER_BYTES_MAX = 2 * 1024 * 1024
"""Then the log holds what comes, and memory nothing; but the first subscriptions have more."""


async def test_abandoned_subscriptions_hold_a_few_messages_each() -> None:
    """The first of very many publishes fill their windows, and the others leave no trace."""
    async with broker_at() as broker:
        engine = broker.daemon.status.engine
        assert engine is not None
        async with connected(broker) as client:
            for number in range(SUBSCRIPTIONS):
                client.send(blip.subscribe(number + 10, "t"))
            replies = [await client.next() for _ in range(SUBSCRIPTIONS)]
            assert {blip.ACK} == {reply.kind for reply in replies}
        traced: list[int] = []
        held: list[int] = []
        async with connected(broker) as publisher:
            tracemalloc.start()
            try:
                for count in (PUBLISHES // 5, PUBLISHES - PUBLISHES // 5):
                    await publisher.publish("t", *[PAYLOAD] * count)
                    await until_committed(broker)
                    gc.collect()
                    traced.append(tracemalloc.get_traced_memory()[0])
                    held.append(engine.broker.memory_bytes())
            finally:
                tracemalloc.stop()

        assert SUBSCRIPTIONS == len(engine.broker.subscriptions.by_id)
        assert FIRST_BYTES_MAX > max(held[0], traced[0])
        assert LATER_BYTES_MAX > max(held[1] - held[0], traced[1] - traced[0])
