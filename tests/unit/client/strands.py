"""Parametrization over all strands, each with its scripted peer, for strand-neutral tests."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from braidmq.client.blip import connection as blip
from braidmq.client.connection import Connection, dial
from braidmq.client.options import Options
from braidmq.client.qumbed import connection as qumbed
from braidmq.client.subscription import Consumer, Subscription
from braidmq.client.surface import Client
from braidmq.client.url import parse
from braidmq.client.vibe import connection as vibe
from tests.unit.client.blip.peer import Peer as BlipPeer
from tests.unit.client.peer import ScriptedPeer
from tests.unit.client.qumbed.peer import Peer as QumbedPeer
from tests.unit.client.vibe.peer import Peer as VibePeer

AnyPeer = ScriptedPeer[Any, Any]
AnyConnection = Connection[Any]

SUBSCRIBED = 1
"""Index of the subscription's connection: the second that a client makes."""

over_tcp = pytest.mark.parametrize("strand", [BlipPeer, VibePeer], ids=["blip", "vibe"])
every_strand = pytest.mark.parametrize(
    "strand", [BlipPeer, VibePeer, QumbedPeer], ids=["blip", "vibe", "qumbed"]
)


async def dialled(
    peer: AnyPeer,
    options: Options | None = None,
    on_lost: Callable[[Any], None] = lambda connection: None,
) -> AnyConnection:
    """Return a connection to the peer, over the peer's strand."""
    endpoint, options = parse(peer.url), options or Options()
    if isinstance(peer, BlipPeer):
        return await dial(blip.BlipConnection, endpoint, options, blip.Receiver(), on_lost)
    if isinstance(peer, QumbedPeer):
        return await qumbed.open_connection(endpoint, options, qumbed.Receiver(), on_lost)
    return await dial(vibe.VibeConnection, endpoint, options, vibe.Receiver(), on_lost)


@asynccontextmanager
async def connected(
    peer: AnyPeer,
    options: Options | None = None,
    on_lost: Callable[[Any], None] = lambda connection: None,
) -> AsyncIterator[AnyConnection]:
    connection = await dialled(peer, options, on_lost)
    try:
        yield connection
    finally:
        await connection.close()


async def offline(one: Client | Subscription) -> None:
    """Wait until a client or subscription has noticed that its connection is lost."""
    assert isinstance(one, Client | Consumer)
    async with asyncio.timeout(10):
        while one.is_connected:  # noqa: ASYNC110 - each turn lets the loss arrive
            await asyncio.sleep(0)


async def online(one: Client | Subscription) -> None:
    """Wait until a client or subscription is connected again."""
    assert isinstance(one, Client | Consumer)
    async with asyncio.timeout(10):
        while not one.is_connected:  # noqa: ASYNC110 - each turn lets it reconnect
            await asyncio.sleep(0)


async def forgotten(one: weakref.ref[Any]) -> None:
    """Wait until no reference to the object is left."""
    async with asyncio.timeout(10):
        while one() is not None:
            await asyncio.sleep(0)
            gc.collect()
