"""Fixtures of the Qumbed strand's tests."""

from collections.abc import AsyncIterator

import pytest_asyncio

from braidmq.testing.broker import RunningBroker
from tests.integration.qumbed.peer import Peer, connected


@pytest_asyncio.fixture
async def peer(broker: RunningBroker) -> AsyncIterator[Peer]:
    async with connected(broker) as found:
        yield found
