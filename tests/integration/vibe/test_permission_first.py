"""Permission comes before decompressing and checking what takes time.

A body whose rest is broken shows that the rest was not looked at: the answer is about the
permission, and the connection stays.
"""

import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import brotli
import pytest

from tests.integration.blip.peer import broker_at, key_config
from tests.integration.vibe.peer import (
    BROTLI,
    CREATE_QUEUE,
    ERROR,
    GZIP,
    PUBLISH,
    RAW,
    V1_1,
    body,
    frame,
)
from tests.integration.vibe_peer import Peer, connected

pytestmark = pytest.mark.asyncio

COMPRESS: dict[int, Callable[[bytes], bytes]] = {GZIP: gzip.compress, BROTLI: brotli.compress}
NOISE = b'"' + b"".join(number.to_bytes(4, "big").hex().encode() for number in range(50_000))


@asynccontextmanager
async def reader() -> AsyncIterator[Peer]:
    """Connect as a key that may publish to `mine.*` and create nothing."""
    keys = [key_config("k", "secret", publish=["mine.*"])]
    async with (
        broker_at(auth={"keys": keys}) as broker,
        connected(broker, authToken="secret") as peer,
    ):
        yield peer


@pytest.mark.parametrize("flags", [GZIP, BROTLI])
@pytest.mark.parametrize("kind", [PUBLISH, CREATE_QUEUE])
async def test_a_compressed_frame_for_a_forbidden_queue_is_not_decompressed(
    flags: int, kind: int
) -> None:
    """Its beginning is, which has the id and the queue for the answer."""
    packed = COMPRESS[flags](body(kind, "7", "secret.q", NOISE))
    cut = packed[: len(packed) // 2]
    async with reader() as peer:
        peer.send(frame(V1_1, cut, flags))
        answer = await peer.next()
        assert (ERROR, "7", "secret.q") == (answer.kind, answer.id, answer.queue)
        assert ("AUTH_FAILED", "not allowed") == answer.error
        await peer.publish_all("mine.q", ["next"])
        if kind == PUBLISH:
            whole = COMPRESS[flags](body(kind, "8", "mine.q", NOISE))
            peer.send(frame(V1_1, whole[: len(whole) // 2], flags))
            assert "INVALID_MESSAGE" == (await peer.next()).error_code
            await peer.expect_close()


async def test_a_long_payload_for_a_forbidden_queue_is_not_checked() -> None:
    """Whether it is JSON is not the peer's business; a short one costs nothing to check."""
    async with reader() as peer:
        for queue, code in (("secret.q", "AUTH_FAILED"), ("mine.q", "INVALID_MESSAGE")):
            for number in range(2):  # unknown and known to the session
                peer.send(frame(V1_1, body(PUBLISH, str(number), queue, NOISE), RAW))
                answer = await peer.next()
                assert (str(number), code) == (answer.id, answer.error_code)


async def test_a_frame_that_expands_too_much_is_refused() -> None:
    """Even for a queue that the peer may publish to: 45 bytes must not cost milliseconds."""
    packed = brotli.compress(body(PUBLISH, "7", "mine.q", b"[" + b" " * 1_000_000 + b"]"))
    assert len(packed) < 64
    async with reader() as peer:
        peer.send(frame(V1_1, packed, BROTLI))
        answer = await peer.next()

        assert "INVALID_MESSAGE" == answer.error_code
        assert "expands more than 1100 times; send it uncompressed" in answer.error[1]
        await peer.expect_close()
