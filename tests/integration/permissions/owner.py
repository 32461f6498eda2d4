"""The development key, which owns what the principals of the permission matrix try to reach."""

import asyncio
import http.client
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.requests import SinkKey
from braidmq.testing.broker import RunningBroker
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import PATIENCE_S
from tests.integration.flights import in_thread, rows
from tests.integration.permissions.oracle import BYSTANDER, LETTERED, NAMES
from tests.integration.vibe.peer import DELETE_QUEUE
from tests.integration.vibe_peer import CREATE_USER, Peer, ack, connected

OF_OWNER: Final = "owner"
"""The name of its cursor and of its query."""

PASSWORD: Final = "pw"


class Http:
    """Requests over one connection."""

    def __init__(self, broker: RunningBroker, secret: str) -> None:
        self._connection = http.client.HTTPConnection(
            *broker.address("http"), timeout=PATIENCE_S
        )
        self._key = {"Authorization": f"Bearer {secret}"}

    def close(self) -> None:
        self._connection.close()

    async def ask(self, method: str, path: str, **body: object) -> tuple[int, dict[str, Any]]:
        """Return the status and the object of an answer."""

        def send() -> tuple[int, dict[str, Any]]:
            data = json.dumps(body) if body else None
            self._connection.request(method, path, data, self._key)
            response = self._connection.getresponse()
            return response.status, json.loads(response.read())

        return await asyncio.to_thread(send)


class Owner:
    """Its connections; its methods make things, or put back what a principal has removed."""

    def __init__(self, vibe: Peer, over_blip: blip.Peer, http: Http, flight: Endpoint) -> None:
        self.vibe = vibe
        self.http = http
        self.flight = flight
        self.subscriptions: dict[str, int] = {}
        self._blip = over_blip
        self._batches = itertools.count(1)

    async def begin(self) -> None:
        for name in NAMES:
            await self.make_topic(name)
        for name in LETTERED:
            await self.make_letter(name)
        await self.make_user(BYSTANDER)
        await self.make_cursor()
        await self.commit([])

    async def make_topic(self, name: str) -> None:
        """Make a topic that is a queue, with a message and a subscription."""
        await self.vibe.create(name)
        await self.make_message(name)
        self.subscriptions[name] = await self._blip.subscribe(name)

    async def make_message(self, name: str) -> int:
        """Publish, and return the offset."""
        path = f"/api/topics/{quote(name)}/messages"
        status, answer = await self.http.ask("POST", path, payload=1)
        assert 201 == status, answer
        return int(answer["offset"])

    async def make_letter(self, name: str) -> int:
        """Leave one dead letter of a queue, and nothing in the queue; return its offset."""
        for queue in (name, f"dlq.{name}"):
            await self.vibe.ask(DELETE_QUEUE, queue)
        await self.vibe.create(name)
        await self.vibe.subscribe(name)
        await self.vibe.publish_all(name, ["letter"])
        await self.vibe.deliveries(1)
        self.vibe.send(ack("letter", name, result="reject"))
        await self.vibe.fence()
        await self.vibe.unsubscribe(name)
        _, page = await self.http.ask("GET", f"/api/dead-letters?queue=dlq.{quote(name)}")
        (letter,) = page["letters"]
        return int(letter["offset"])

    async def make_user(self, name: str) -> None:
        await self.vibe.administer(CREATE_USER, username=name, password=PASSWORD)

    async def make_cursor(self) -> None:
        await in_thread(self.flight.open_cursor, OF_OWNER, 0)

    def batch(self, query: str) -> SinkKey:
        """Return the key of a query's next batch."""
        return SinkKey(query, "sink", next(self._batches))

    async def commit(self, stages: list[str]) -> None:
        await in_thread(self.flight.commit, self.batch(OF_OWNER), stages)


async def stage_of(endpoint: Endpoint, name: str) -> str:
    """Return the id of a new stage, with one row of that topic.

    Raises:
        NotAllowedError: The endpoint's key may not publish there.
    """
    (batch,) = rows(name)
    stage = await in_thread(endpoint.stage, None, batch.schema, [batch])
    return stage.id


@asynccontextmanager
async def owning(broker: RunningBroker) -> AsyncIterator[Owner]:
    http = Http(broker, "dev-key")
    try:
        async with connected(broker) as vibe, blip.connected(broker) as over_blip:
            with Endpoint(broker.endpoint, "dev-key") as flight:
                owner = Owner(vibe, over_blip, http, flight)
                await owner.begin()
                yield owner
    finally:
        http.close()
