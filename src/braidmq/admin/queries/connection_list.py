"""Connections and subscriptions as an administrator over HTTP has them.

What there is, is taken down on the event loop, as lists; it is filtered and sorted on a thread.
"""

import asyncio
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from braidmq.admin.connections import (
    ConnectionRow,
    ConnectionsPage,
    SubscriptionRow,
    SubscriptionsPage,
)
from braidmq.admin.http.parameters import iso
from braidmq.admin.http.refusals import BadCursorError, UnknownThingError
from braidmq.admin.queries.backlogs import lag_of, lag_of_follower
from braidmq.admin.queries.page_bounds import name_bytes, rows_on_page
from braidmq.broker.authorize import Principal
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.delivery.queues import Queue, QueueConsumer
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.server.engine.connection import Connection
from braidmq.server.engine.requests import FindEngine, running
from braidmq.server.strands.listeners import Line, Listener

_PLACE: Final = re.compile(r"(-?[0-9]{1,20})(?:\.([0-9]{1,20}))?")
_FIRST: Final = (-(2**64), 0)

Place = tuple[int, int]
"""What pages go by: the id of a subscription or queue, and the connection of a consumer."""

Row = TypeVar("Row", ConnectionRow, SubscriptionRow)


class ConnectionList:
    """What `admin` asks about connections and subscriptions."""

    def __init__(
        self, find_engine: FindEngine, find_listeners: Callable[[], Sequence[Listener]]
    ) -> None:
        self._find_engine = find_engine
        self._find_listeners = find_listeners

    async def connections(
        self, *, after: str, limit: int, of: Principal | None
    ) -> ConnectionsPage:
        """Return up to *limit* connections behind *after*, all or those of one principal.

        Raises:
            BadCursorError: *after* is not the end of a page.
        """
        place = _place(after)
        lines = [line for listener in self._find_listeners() for line in listener.lines()]
        rows = (
            ((line.number, 0), _connection_row(line))
            for line in lines
            if of is None or line.principal == of.name
        )
        return ConnectionsPage(*await asyncio.to_thread(_page, rows, place, limit))

    async def subscriptions(
        self, *, after: str, limit: int, search: str, of: Principal | None
    ) -> SubscriptionsPage:
        """Return up to *limit* subscriptions behind *after*, all or those of one principal.

        Raises:
            BadCursorError: *after* is not the end of a page.
            UnavailableError: The broker is not up.
        """
        place = _place(after)
        engine = running(self._find_engine())
        broker = engine.broker
        subscriptions = list(broker.subscriptions.by_id.values())
        followers = list(broker.followers.by_id.values())
        queues = list(broker.queues.by_name.values())
        connections = list(engine.connections)
        wanted = search.casefold()

        def is_wanted(topic: str, principal: str) -> bool:
            return (of is None or principal == of.name) and wanted in topic.casefold()

        def rows() -> Iterator[tuple[Place, SubscriptionRow]]:
            using = _using(connections)
            for one in subscriptions:
                if is_wanted(one.topic.name, one.principal):
                    yield (one.id, 0), _subscription_row(one, using.get(one.id))
            for follower in followers:
                if is_wanted(follower.topic.name, follower.principal):
                    yield (follower.id, 0), _follower_row(follower)
            for queue in queues:
                for consumer in list(queue.consumers):
                    row = _consumer_row(queue, consumer)
                    if is_wanted(row.topic, row.principal):
                        yield (queue.id, row.connection or 0), row

        return SubscriptionsPage(*await asyncio.to_thread(_page, rows(), place, limit))

    def close(self, connection_id: str) -> int:
        """Close a connection; return its id.

        Raises:
            UnknownThingError: There is none of that id.
        """
        for listener in self._find_listeners():
            for line in listener.lines():
                if str(line.number) == connection_id:
                    line.close()
                    return line.number
        raise UnknownThingError("no such connection")


def _page(
    rows: Iterable[tuple[Place, Row]], after: Place, limit: int
) -> tuple[list[Row], str | None, int]:
    """Return the rows behind *after*, where to go on, and how many there are in all."""
    total = 0

    def behind() -> Iterator[tuple[Place, Row]]:
        nonlocal total
        for pair in rows:
            total += 1
            if pair[0] > after:
                yield pair

    first = heapq.nsmallest(limit + 1, behind(), key=lambda pair: pair[0])
    on_page = rows_on_page((_name_bytes(row) for _, row in first), limit)
    following = None
    if len(first) > on_page:
        number, connection = first[on_page - 1][0]
        following = f"{number}.{connection}" if connection else str(number)
    return [row for _, row in first[:on_page]], following, total


def _name_bytes(row: ConnectionRow | SubscriptionRow) -> int:
    topic = row.topic if isinstance(row, SubscriptionRow) else ""
    return name_bytes(topic) + name_bytes(row.principal or "")


def _place(after: str) -> Place:
    if not after:
        return _FIRST
    found = _PLACE.fullmatch(after)
    if found is None:
        raise BadCursorError
    return int(found[1]), int(found[2] or 0)


def _connection_row(line: Line) -> ConnectionRow:
    return ConnectionRow(
        id=line.number,
        strand=line.strand,
        peer=line.peer,
        principal=line.principal,
        since=iso(line.since_us),
        subscriptions=line.subscriptions,
        in_bytes=line.in_bytes,
        out_bytes=line.out_bytes,
    )


def _using(connections: list[Connection]) -> dict[int, int]:
    """Return a connection that uses each subscription, by its id."""
    return {
        subscription_id: connection.number
        for connection in connections
        for subscription_id in list(connection.consumers)
    }


def _subscription_row(subscription: Subscription, connection: int | None) -> SubscriptionRow:
    return SubscriptionRow(
        id=str(subscription.id),
        topic=subscription.topic.name,
        strand="blip",
        principal=subscription.principal,
        qos=subscription.qos,
        lag=lag_of(subscription),
        in_flight=subscription.in_flight.count,
        connection=connection,
    )


def _follower_row(follower: Follower) -> SubscriptionRow:
    peer = follower.peer
    return SubscriptionRow(
        id=str(follower.id),
        topic=follower.topic.name,
        strand="qumbed",
        principal=follower.principal,
        qos=1,
        lag=lag_of_follower(follower),
        in_flight=0,
        connection=peer.number if isinstance(peer, Connection) else None,
    )


def _consumer_row(queue: Queue, consumer: QueueConsumer) -> SubscriptionRow:
    peer = consumer.peer
    number = peer.number if isinstance(peer, Connection) else 0
    return SubscriptionRow(
        id=f"{queue.id}.{number}",
        topic=queue.topic.name,
        strand=peer.strand if isinstance(peer, Connection) else "vibe",
        principal="" if peer.principal is None else peer.principal.name,
        qos=1 if queue.policy.durable else 0,
        lag=queue.waiting() if consumer.view is None else lag_of(consumer.view),
        in_flight=consumer.held,
        connection=number or None,
    )
