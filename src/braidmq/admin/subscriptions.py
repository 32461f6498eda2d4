"""Subscriptions over HTTP: topics, principals, and how far behind each one is.

    GET /api/subscriptions?after=&limit=&search=&sort=
        {"subscriptions": [...], "next", "total"}

Blip subscriptions, Qumbed followers and consumers of queues are rows of one list. A key sees
its own, an administrator sees all.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import msgspec
from starlette.requests import Request

from braidmq.admin.backlogs import lag_of, lag_of_follower
from braidmq.admin.connections import restricted_to
from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.paging import Place, name_bytes, page_by_id, place_of, ranked_page
from braidmq.admin.http.parameters import AFTER, LIMIT, choice, text
from braidmq.broker.authorize import Principal
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.delivery.queue import Queue, QueueConsumer
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.server.engine.connection import Connection
from braidmq.server.engine.requests import FindEngine, running

TOPIC_SEARCH: Final = text("search", "Show only topics that contain this text, in any case.")
BY_ID: Final = "id"
SORT: Final = choice("sort", "Sort by id, or by lag, largest first.", (BY_ID, "lag"))


class SubscriptionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription, follower or consumer of a queue.

    `lag` is the number of waiting messages; an upper bound where the broker knows only the
    subscription's position in the log. `connection` is one that uses it now, or null.
    """

    id: str
    topic: str
    strand: str
    principal: str
    qos: int
    lag: int
    in_flight: int
    connection: int | None


class SubscriptionsPage(msgspec.Struct, frozen=True):
    """Subscriptions in the requested order, the next `after`, and how many match the search."""

    subscriptions: list[SubscriptionRow]
    next: str | None
    total: int


class Subscriptions:
    """Everything in the broker that consumes from a topic or a queue."""

    def __init__(self, find_engine: FindEngine) -> None:
        self._find_engine = find_engine

    async def page(
        self, *, after: str, limit: int, search: str, of: Principal | None, sort: str = BY_ID
    ) -> SubscriptionsPage:
        """Return up to *limit* subscriptions after *after*, all or those of one principal.

        Raises:
            BadCursorError: *after* is not the `next` of a page with this sort.
            UnavailableError: The broker is still recovering.
        """
        place = place_of(after if sort == BY_ID else "")
        engine = running(self._find_engine())
        broker = engine.broker
        # The lists are copied on the event loop. The thread reads attributes of their items
        # while the broker keeps changing them, so rows may differ by a moment.
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

        if sort != BY_ID:
            return await asyncio.to_thread(_page_by_lag, rows(), after, limit)
        return SubscriptionsPage(
            *await asyncio.to_thread(page_by_id, rows(), place, limit, _name_bytes)
        )

    @keyed("GET /api/subscriptions", AFTER, LIMIT, TOPIC_SEARCH, SORT)
    async def get_subscriptions(
        self, request: Request, principal: Principal
    ) -> SubscriptionsPage:
        """List the subscriptions, their principals, and how far behind they are."""
        return await self.page(
            after=AFTER.of(request),
            limit=LIMIT.of(request),
            search=TOPIC_SEARCH.of(request),
            of=restricted_to(principal),
            sort=SORT.of(request),
        )


def _page_by_lag(
    rows: Iterator[tuple[Place, SubscriptionRow]], after: str, limit: int
) -> SubscriptionsPage:
    every = [(row.lag, row.id, row) for _, row in rows]
    page, following = ranked_page(every, after=after, limit=limit, size=_name_bytes)
    return SubscriptionsPage(page, following, len(every))


def _using(connections: list[Connection]) -> dict[int, int]:
    """Return one connection that uses each subscription, by the subscription's id."""
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
    # In a fan-out each consumer has a backlog of its own; otherwise they share the queue's.
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


def _name_bytes(row: SubscriptionRow) -> int:
    return name_bytes(row.topic) + name_bytes(row.principal)
