"""The door of Flight."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import pyarrow.flight as fl

from braidmq.base.errors import NotAllowedError, UnknownStageError
from braidmq.columnar.endpoint import Endpoint
from braidmq.testing.broker import RunningBroker
from tests.integration.flights import in_thread
from tests.integration.permissions.doors import Door, door_of
from tests.integration.permissions.owner import OF_OWNER, Owner, stage_of


class OverFlight:
    """The verbs of Flight; *endpoint* has the principal's key."""

    def __init__(self, endpoint: Endpoint, owner: Owner, principal: str) -> None:
        self._endpoint = endpoint
        self._owner = owner
        self._principal = principal

    async def _is_allowed(self, call: Callable[..., object], *given: object) -> bool:
        try:
            await in_thread(call, *given)
        except NotAllowedError:
            return False
        return True

    # With a name.

    async def publish(self, name: str) -> bool:
        try:
            stage = await stage_of(self._endpoint, name)
        except NotAllowedError:
            return False
        batch = self._owner.batch(self._principal)
        await in_thread(self._endpoint.commit, batch, [stage])
        return True

    async def subscribe(self, name: str) -> bool:
        return await self._is_allowed(lambda: self._endpoint.read(topics=[name]))

    async def cut(self, name: str) -> bool:
        return await self._is_allowed(lambda: self._endpoint.cut(topics=[name]))

    async def advance(self, name: str) -> bool:
        return await self._is_allowed(lambda: self._endpoint.advance(0, topics=[name]))

    async def commit(self, name: str) -> bool:
        stage = await stage_of(self._owner.flight, name)
        batch = self._owner.batch(self._principal)
        return await self._is_allowed(self._endpoint.commit, batch, [stage])

    async def abort(self, name: str) -> bool:
        stage = await stage_of(self._owner.flight, name)
        await in_thread(self._endpoint.abort, [stage])
        try:
            await self._owner.commit([stage])
        except UnknownStageError:
            return True
        return False

    # Without one.

    async def go_on(self) -> bool:
        batch = self._owner.batch(OF_OWNER)
        return await self._is_allowed(self._endpoint.commit, batch, [])

    async def open_cursor(self) -> bool:
        return await self._is_allowed(self._endpoint.open_cursor, self._principal)

    async def move_cursor(self) -> bool:
        return await self._is_allowed(self._endpoint.move_cursor, OF_OWNER, 1)

    async def remove_cursor(self) -> bool:
        is_allowed = await self._is_allowed(self._endpoint.remove_cursor, OF_OWNER)
        await self._owner.make_cursor()
        return is_allowed

    async def others_cursors(self) -> bool:
        shown = await in_thread(self._endpoint.cursors)
        return any(row["principal"] != self._principal for row in shown)

    # Lists.

    async def sees(self) -> Collection[str]:
        return await in_thread(self._endpoint.topic_counts)

    async def matches(self) -> Collection[str]:
        return await in_thread(self._read_topics, ".*")

    async def reads(self) -> Collection[str]:
        return await in_thread(self._read_topics, None)

    def _read_topics(self, pattern: str | None) -> set[str]:
        found = self._endpoint.read(columns=["topic"], pattern=pattern)
        return set(found["topic"].to_pylist())

    def door(self) -> Door:
        return door_of(
            self,
            "publish subscribe cut advance commit abort",
            "go_on open_cursor move_cursor remove_cursor others_cursors",
            "sees matches reads",
        )


@asynccontextmanager
async def on_flight(
    broker: RunningBroker, owner: Owner, principal: str, secret: str
) -> AsyncIterator[Door]:
    async def sees_flight() -> list[str]:
        return await in_thread(flights, broker.endpoint, secret)

    with Endpoint(broker.endpoint, secret) as endpoint:
        door = OverFlight(endpoint, owner, principal).door()
        yield door._replace(lists={**door.lists, "sees_flight": sees_flight})


def flights(address: str, secret: str) -> list[str]:
    """Return the topics that any client of Flight is shown."""
    bearer = (b"authorization", f"Bearer {secret}".encode())
    with fl.connect(address) as client:
        options = fl.FlightCallOptions(headers=[bearer])
        return [one.descriptor.path[0].decode() for one in client.list_flights(b"", options)]
