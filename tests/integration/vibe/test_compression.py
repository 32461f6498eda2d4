"""Compression: negotiated or not, in dialect 1.1 only, and never past the size limit."""

import gzip

import brotli
import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import broker_at
from tests.integration.vibe.peer import (
    BROTLI,
    CONNECT,
    CONNECT_ACK,
    ERROR,
    GZIP,
    PING,
    PONG,
    PUBLISH,
    PUBLISH_ACK,
    RAW,
    TOKEN,
    V1_0,
    V1_1,
    Headers,
    body,
    connected,
    frame,
    packed,
    stranger,
)

pytestmark = pytest.mark.asyncio

NEGOTIATED = "negotiated-compression"
LARGE = b'"' + b"a" * 5000 + b'"'


def offering(names: str) -> Headers:
    return [*TOKEN, ("supported-compression", names)]


OFFERS = {
    "brotli,gzip": "brotli",
    "gzip,brotli": "gzip",
    "gzip": "gzip",
    "brotli": "brotli",
    " GZip , brotli": "gzip",
    "zstd,gzip": "gzip",
    "zstd": None,
    "none": None,
    "": None,
    ",": None,
}


@pytest.mark.parametrize(("offered", "agreed"), OFFERS.items())
async def test_the_first_supported_compression_that_the_client_lists_is_used(
    broker: RunningBroker, offered: str, agreed: str | None
) -> None:
    """Listed in supported-compression, confirmed in negotiated-compression."""
    async with stranger(broker, V1_1) as peer:
        answer = await peer.log_in(offering(offered))

        assert agreed == answer.headers.get(NEGOTIATED)
        assert RAW == answer.flags


async def test_no_compression_without_an_offer_or_in_1_0(broker: RunningBroker) -> None:
    """Only dialect 1.1 has it, and only for clients that offer it."""
    async with stranger(broker, V1_1) as peer:
        assert NEGOTIATED not in (await peer.log_in(TOKEN)).headers
    async with stranger(broker, V1_0) as peer:
        assert NEGOTIATED not in (await peer.log_in(offering("brotli,gzip"))).headers


@pytest.mark.parametrize(("name", "flags"), [("gzip", GZIP), ("brotli", BROTLI), ("", RAW)])
async def test_large_bodies_are_compressed_once_negotiated(
    broker: RunningBroker, name: str, flags: int
) -> None:
    """Bodies of at least 1 KiB."""
    async with connected(broker, headers=offering(name)) as peer:
        await peer.subscribe("q")
        await peer.publish("q", LARGE)
        delivered = await peer.delivered()

        assert (LARGE, flags) == (delivered.payload, delivered.flags)


async def test_the_connect_ack_itself_is_never_compressed(broker: RunningBroker) -> None:
    """Not even on a second Connect with a long id, after compression was negotiated."""
    async with connected(broker, headers=offering("gzip")) as peer:
        long_id = "c" * 2000
        answer = await peer.ask(CONNECT, headers=offering("gzip"), message_id=long_id)

        assert (CONNECT_ACK, RAW) == (answer.kind, answer.flags)


@pytest.mark.parametrize("name", ["gzip", "brotli"])
async def test_a_body_below_1_kib_is_never_compressed(broker: RunningBroker, name: str) -> None:
    """1,023 bytes stay raw, 1,024 do not. A Pong is its id and 12 bytes."""
    async with connected(broker, headers=offering(name)) as peer:
        below = await peer.ask(PING, message_id="p" * (1023 - 12))
        at = await peer.ask(PING, message_id="p" * (1024 - 12))

        assert [PONG, PONG] == [below.kind, at.kind]
        assert RAW == below.flags
        assert RAW != at.flags


@pytest.mark.parametrize("flags", [GZIP, BROTLI])
@pytest.mark.parametrize("agreed", ["", "gzip", "brotli"])
async def test_a_client_may_compress_without_negotiating(
    broker: RunningBroker, flags: int, agreed: str
) -> None:
    """The broker reads both compressions, whatever was negotiated, for small bodies too."""
    async with connected(broker, headers=offering(agreed)) as peer:
        peer.send(packed(flags, body(PUBLISH, "m", "q", b'{"small": 1}')))
        assert PUBLISH_ACK == (await peer.next()).kind
        await peer.subscribe("q")

        assert b'{"small": 1}' == (await peer.delivered()).payload


def json_of(size: int) -> bytes:
    return b'"' + b" " * (size - 2) + b'"'


@pytest.mark.parametrize("flags", [GZIP, BROTLI])
async def test_the_size_limit_applies_after_decompression(flags: int) -> None:
    """At the limit the Publish is refused; one byte above it, the broker closes."""
    limit = 8192
    rest = len(body(PUBLISH, "m", "q"))
    async with (
        broker_at(vibe={"max_message_bytes": limit}) as broker,
        connected(broker) as peer,
    ):
        peer.send(packed(flags, body(PUBLISH, "m", "q", json_of(limit - rest - 256))))
        assert PUBLISH_ACK == (await peer.next()).kind
        peer.send(packed(flags, body(PUBLISH, "m", "q", json_of(limit - rest))))
        assert "INVALID_MESSAGE" == (await peer.next()).error_code
        await peer.expect_silence()
        peer.send(packed(flags, body(PUBLISH, "m", "q", json_of(limit - rest + 1))))
        assert "INVALID_MESSAGE" == (await peer.next()).error_code
        await peer.expect_close()


@pytest.mark.parametrize("flags", [GZIP, BROTLI])
@pytest.mark.parametrize("known", [True, False])
async def test_a_decompression_bomb_is_refused(
    broker: RunningBroker, flags: int, known: bool
) -> None:
    """An Error INVALID_MESSAGE, then the broker closes the connection."""
    compress = gzip.compress if flags == GZIP else brotli.compress
    bomb = compress(bytes(20_000_000) if known else bytes(5000))
    assert len(bomb) < (1024 * 1024 if known else 4096)
    async with stranger(broker, V1_1) as peer:
        if known:
            await peer.log_in(TOKEN)
        peer.send(frame(V1_1, bomb, flags))
        answer = await peer.next()

        assert (ERROR, "INVALID_MESSAGE") == (answer.kind, answer.error_code)
        await peer.expect_close()
