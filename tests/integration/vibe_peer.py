"""A Vibe peer for tests outside the `vibe` folder: requests and whole conversations.

Frames and peer are those of `tests/integration/vibe/peer.py`, in dialect 1.1.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import until
from tests.integration.vibe import peer as vibe
from tests.integration.vibe.peer import (
    ACK,
    CONNECT,
    CONNECT_ACK,
    CREATE_QUEUE,
    PING,
    PONG,
    PUBLISH,
    PUBLISH_ACK,
    QUEUE_INFO,
    SUBSCRIBE,
    SUBSCRIBE_ACK,
    V1_1,
    Headers,
    Message,
    body,
)

CREATE_USER: Final = 50
DELETE_USER: Final = 51
CHANGE_PASSWORD: Final = 52
GRANT_PERMISSION: Final = 53
REVOKE_PERMISSION: Final = 54
LIST_USERS: Final = 55
GET_USER_PERMISSIONS: Final = 56

BODY_MAX: Final = 1024 * 1024


def request(
    kind: int, request_id: str, queue: str = "", payload: bytes = b"", headers: Headers = ()
) -> bytes:
    return vibe.frame(V1_1, body(kind, request_id, queue, payload, headers))


def connect(request_id: str = "c", **headers: str) -> bytes:
    return request(CONNECT, request_id, headers=headers or vibe.TOKEN)


def publish(request_id: str, queue: str, payload: bytes = b"1", **headers: str) -> bytes:
    return request(PUBLISH, request_id, queue, payload, headers)


def subscribe(request_id: str, queue: str, prefetch: int = 100) -> bytes:
    return request(SUBSCRIBE, request_id, queue, headers={"prefetch": str(prefetch)})


def ack(message_id: str, queue: str = "", **headers: str) -> bytes:
    return request(ACK, message_id, queue, headers=headers)


def ping(request_id: str) -> bytes:
    return request(PING, request_id)


def create(request_id: str, queue: str, **options: str) -> bytes:
    return request(CREATE_QUEUE, request_id, queue, headers=options)


def parse(data: bytes) -> list[Message]:
    """Parse complete frames."""
    found = []
    while data:
        end = 5 + int.from_bytes(data[:4], "big")
        found.append(vibe.parse(V1_1, data[5:end], data[4]))
        data = data[end:]
    return found


class Peer(vibe.Peer):
    """One end of a connection, with whole conversations."""

    def __init__(self, running: RunningBroker) -> None:
        super().__init__(running, V1_1)

    async def deliveries(self, count: int) -> list[Message]:
        return [await self.delivered() for _ in range(count)]

    async def fence(self) -> None:
        """Return once everything that this peer has sent is handled and durable."""
        assert PONG == (await self.ask(PING)).kind

    async def publish_all(
        self, queue: str, ids: Iterable[str], payload: bytes = b"1", **headers: str
    ) -> None:
        """Publish messages with these ids, and return once all are acknowledged."""
        every = list(ids)
        self.send(*(publish(each, queue, payload, **headers) for each in every))
        for each in every:
            answer = await self.reply(each)
            assert PUBLISH_ACK == answer.kind, answer

    async def subscribe(self, queue: str, prefetch: int = 100) -> None:
        answer = await self.ask(SUBSCRIBE, queue, headers={"prefetch": str(prefetch)})
        assert SUBSCRIBE_ACK == answer.kind, answer

    async def acknowledge(self, *ids: str) -> None:
        """Acknowledge, and return once that is durable."""
        self.send(*(ack(each) for each in ids))
        await self.fence()

    async def info(self, queue: str) -> dict[str, Any]:
        """Return the QueueInfo, which is empty if there is no such queue."""
        answer = await self.ask(QUEUE_INFO, queue)
        assert QUEUE_INFO == answer.kind, answer
        facts: dict[str, Any] = json.loads(answer.payload or b"{}")
        return facts

    async def administer(self, kind: int, **payload: object) -> Message:
        """Send a user administration command."""
        return await self.ask(kind, payload=json.dumps(payload).encode())


@asynccontextmanager
async def stranger(running: RunningBroker) -> AsyncIterator[Peer]:
    """Open a connection without a Connect."""
    loop = asyncio.get_running_loop()
    host, port = running.address("vibe")
    _, peer = await loop.create_connection(lambda: Peer(running), host, port)
    try:
        yield peer
    finally:
        await peer.leave()


@asynccontextmanager
async def connected(running: RunningBroker, **headers: str) -> AsyncIterator[Peer]:
    """Open a connection and Connect, as the development key unless *headers* say otherwise."""
    async with stranger(running) as peer:
        answer = await peer.ask(CONNECT, headers=headers or vibe.TOKEN)
        assert CONNECT_ACK == answer.kind, answer
        yield peer


async def until_connected(running: RunningBroker, count: int) -> None:
    """Wait until the broker has noticed that only *count* Vibe connections are left."""
    await until(lambda: running.daemon.status.metrics().connections["vibe"] == count)
