"""Whatever limit a peer meets, on any way in: the answer names it, and who may raise it."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import Final

import pytest

import braidmq
from braidmq.base.errors import BraidError
from braidmq.base.refusals import FOR_GOOD, OPERATOR, TOO_MANY_CONNECTIONS
from braidmq.columnar.endpoint import Endpoint
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import ack, auth, broker_at, hello, key_config
from tests.integration.blip.peer import stranger as blip_stranger
from tests.integration.qumbed.peer import connected as qumbed_connected
from tests.integration.qumbed.peer import publish
from tests.integration.vibe.peer import CONNECT, V1_1, stranger

pytestmark = pytest.mark.asyncio

QUOTA: Final = "whoever runs the broker may raise quotas."
NOTHING: Final = {"topics": 0, "queues": 0, "subscriptions": 0, "cursors": 0}


async def told(work: Awaitable[object]) -> str:
    """Return the text of the error in which *work* ends."""
    with pytest.raises(BraidError) as caught:
        await work
    return str(caught.value)


async def flood(client: braidmq.Client) -> None:
    for _ in range(20):
        await client.publish("t", b"1")


def http(broker: RunningBroker, path: str, body: bytes) -> str:
    """Return the text of the refusal of a request."""
    host, port = broker.address("http")
    headers = {"Authorization": "Bearer dev-key"}
    request = urllib.request.Request(f"http://{host}:{port}{path}", body, headers)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=20)  # noqa: S310 - our own broker
    return caught.value.read().decode()


async def test_quotas() -> None:
    """The same words on every strand, over HTTP and Flight."""
    async with broker_at(vibe={}, qumbed={}, http={}, flight={}, quotas=NOTHING) as broker:
        texts = {}
        for strand in ("blip", "vibe", "qumbed"):
            async with braidmq.connect(broker.url(strand)) as client:
                texts[strand] = await told(client.publish(f"{strand}.new", b"1"))
        texts["http"] = await asyncio.to_thread(
            http, broker, "/api/topics/new/messages", b'{"payload": 1}'
        )
        texts["http queue"] = await asyncio.to_thread(
            http, broker, "/api/queues", b'{"name": "q"}'
        )
        endpoint = Endpoint(broker.endpoint, "dev-key")
        texts["flight"] = await told(asyncio.to_thread(endpoint.open_cursor, "c"))

        assert [] == [way for way, text in texts.items() if QUOTA not in text], texts


async def test_places() -> None:
    """One principal leaves the last places to others, and is told so; they are let in."""
    other = {"keys": [key_config("other", "other-key")]}
    starting = broker_at(
        auth=other, vibe={}, qumbed={"auth": "key"}, limits={"connections": 32}
    )
    async with starting as broker, AsyncExitStack() as open_ones:
        for _ in range(30):
            peer = await open_ones.enter_async_context(blip_stranger(broker))
            await peer.log_in()
        texts = {}
        async with blip_stranger(broker) as one:
            one.send(hello(1), auth(2, "dev-key"))
            await one.expect(ack(1, 0))
            texts["blip"] = str(await one.next())
            await one.expect_close()
        async with stranger(broker, V1_1) as two:
            two.send(two.frame(CONNECT, "c", headers={"authToken": "dev-key"}))
            texts["vibe"] = str((await two.next()).error)
        async with qumbed_connected(broker) as carrier:
            stream = carrier.open()
            texts["qumbed"] = str(await stream.ask(publish("t", b"1", key="dev-key")))

        assert [] == [way for way, text in texts.items() if TOO_MANY_CONNECTIONS not in text]
        for _ in range(2):
            peer = await open_ones.enter_async_context(blip_stranger(broker))
            await peer.log_in("other-key")


async def test_rates() -> None:
    """Vibe and Qumbed answer above the rate; Blip waits, and refuses nothing."""
    async with broker_at(vibe={}, qumbed={}, limits={"messages_per_s": 3}) as broker:
        texts = {}
        for strand in ("vibe", "qumbed"):
            async with braidmq.connect(broker.url(strand)) as client:
                texts[strand] = await told(flood(client))

        limit = f"limits.messages_per_s is 3; {OPERATOR}"
        assert [] == [way for way, text in texts.items() if limit not in text], texts


async def test_sizes() -> None:
    """A frame, before and after authentication, and a body."""
    async with broker_at(vibe={}, qumbed={}, http={}) as broker:
        async with stranger(broker, V1_1) as peer:
            peer.send(bytes.fromhex("00001001"))
            early = (await peer.next()).error
        async with stranger(broker, V1_1) as peer:
            await peer.log_in({"authToken": "dev-key"})
            peer.send(bytes.fromhex("00100001"))
            late = (await peer.next()).error
        async with qumbed_connected(broker) as carrier:
            stream = carrier.open()
            stream.send(bytes.fromhex("00100001"))
            sealed = str(await stream.next())
        body = await asyncio.to_thread(http, broker, "/api/queues", bytes(100_000))

        assert OPERATOR in str(late)
        assert "vibe.max_message_bytes" in str(late)
        assert [] == [text for text in (str(early), sealed, body) if FOR_GOOD not in text]
