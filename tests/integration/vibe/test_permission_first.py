"""Permission comes before decompressing and checking what takes time.

A body whose rest is broken shows that the rest was not looked at: the answer is about the
permission, and the connection stays.
"""

import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import brotli
import pytest

from tests.integration.blip.peer import broker_at, key_config
from tests.integration.vibe.peer import (
    ACK,
    BROTLI,
    CONNECT,
    CREATE_QUEUE,
    DELETE_QUEUE,
    DISCONNECT,
    ERROR,
    GZIP,
    LIST_QUEUES,
    PING,
    PUBLISH,
    PUBLISH_ACK,
    QUEUE_INFO,
    RAW,
    SUBSCRIBE,
    UNSUBSCRIBE,
    V1_1,
    body,
    frame,
)
from tests.integration.vibe_peer import (
    CHANGE_PASSWORD,
    CREATE_USER,
    GET_USER_PERMISSIONS,
    LIST_USERS,
    Peer,
    connected,
)

pytestmark = pytest.mark.asyncio

COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    GZIP: partial(gzip.compress, compresslevel=1),
    BROTLI: partial(brotli.compress, quality=1),
}
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


USER_COMMANDS = range(CREATE_USER, GET_USER_PERMISSIONS + 1)
FORBIDDEN = dict.fromkeys((PUBLISH, CREATE_QUEUE), ("AUTH_FAILED", "not allowed"))
FORBIDDEN |= dict.fromkeys(USER_COMMANDS, ("NOT_AUTHORIZED", "not allowed"))
OTHERS = (CONNECT, DISCONNECT, PING, SUBSCRIBE, UNSUBSCRIBE, ACK, DELETE_QUEUE, QUEUE_INFO)
REFUSALS = FORBIDDEN | dict.fromkeys(
    (*OTHERS, LIST_QUEUES), ("INVALID_MESSAGE", "this command takes no payload")
)
REFUSALS[77] = ("INVALID_MESSAGE", "unknown command type 77")


@pytest.mark.parametrize("flags", [GZIP, BROTLI])
@pytest.mark.parametrize("request_id", ["7", "7" * 50_000], ids=["short id", "long id"])
async def test_what_the_peer_may_not_send_is_not_decompressed(
    flags: int, request_id: str
) -> None:
    """Its beginning is, which has the id and the queue for the answer."""
    async with reader() as peer:
        for kind, refusal in REFUSALS.items():
            packed = COMPRESS[flags](body(kind, request_id, "secret.q", NOISE))
            peer.send(frame(V1_1, packed[: len(packed) * 3 // 4], flags))
            answer = await peer.next()
            assert (ERROR, request_id, "secret.q") == (answer.kind, answer.id, answer.queue)
            assert (kind, *refusal) == (kind, *answer.error)
        await peer.publish_all("mine.q", ["next"])


async def test_a_long_payload_that_the_peer_may_not_send_is_not_checked() -> None:
    """It is no JSON, and the answer is about something else."""
    async with reader() as peer:
        for kind, refusal in REFUSALS.items():
            peer.send(frame(V1_1, body(kind, "7", "secret.q", NOISE), RAW))
            assert (kind, *refusal) == (kind, *(await peer.next()).error)
        for kind in (PING, UNSUBSCRIBE, LIST_QUEUES):  # a short one is passed over
            peer.send(frame(V1_1, body(kind, "8", "secret.q", b"[1]"), RAW))
            answer = await peer.next()
            assert ("8", "") == (answer.id, answer.error_code)
        await peer.publish_all("mine.q", ["next"])


@pytest.mark.parametrize("flags", [GZIP, BROTLI])
async def test_a_compressed_frame_for_a_permitted_queue_is_decompressed(flags: int) -> None:
    """However long its id is; one that is cut off shows that it was."""
    async with reader() as peer:
        whole = b""
        for request_id in ("7", "7" * 50_000):
            text = NOISE + b'"'
            whole = COMPRESS[flags](body(PUBLISH, request_id, "mine.q", text))
            peer.send(frame(V1_1, whole, flags))
            assert (PUBLISH_ACK, request_id) == (await peer.next())[:2]
        peer.send(frame(V1_1, whole[: len(whole) // 2], flags))
        assert "INVALID_MESSAGE" == (await peer.next()).error_code
        await peer.expect_close()


@pytest.mark.parametrize("flags", [GZIP, BROTLI])
@pytest.mark.parametrize("kind", [SUBSCRIBE, CREATE_QUEUE, PING, LIST_USERS])
async def test_what_follows_a_command_is_not_decompressed_without_end(
    flags: int, kind: int
) -> None:
    """Headers, or bytes after the last field, cost as much as a payload, also an admin's."""
    long = body(kind, "7", "q") + NOISE
    async with (
        broker_at() as broker,
        connected(broker) as peer,
    ):
        peer.send(frame(V1_1, COMPRESS[flags](long), flags))
        answer = await peer.next()
        assert ("7", "INVALID_MESSAGE") == (answer.id, answer.error_code)
        assert "at most 131072 bytes" in answer.error_message
        await peer.expect_close()


async def test_a_user_may_send_what_it_may_do_for_itself() -> None:
    """A long payload of such a command is read: only it says whom it is about."""
    spaces = b" " * 10_000
    asked = b'{"username":"bob","newPassword":"new"}' + spaces
    async with broker_at() as broker, connected(broker) as root:
        await root.ask(CREATE_USER, "", b'{"username":"bob","password":"p"}')
        async with connected(broker, authUsername="bob", authPassword="p") as peer:
            for kind in (CHANGE_PASSWORD, GET_USER_PERMISSIONS):
                assert kind == (await peer.ask(kind, "", asked)).kind
            answer = await peer.ask(CREATE_USER, "", asked)
            assert ("NOT_AUTHORIZED", "not allowed") == answer.error


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
