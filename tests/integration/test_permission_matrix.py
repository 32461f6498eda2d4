"""Who may do what, over every listener: each principal, verb and name against an oracle.

Names that a request only leads to are verbs as well: another queue for dead letters, the origin
of a replay, the topic of a sink's row. So is what a list shows, and what belongs to others.
"""

import random
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from braidmq.columnar.flight.requests import ACTIONS
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import broker_at, key_config
from tests.integration.permissions.doors import on_blip, on_qumbed, on_vibe, tried
from tests.integration.permissions.oracle import Who, expected
from tests.integration.permissions.over_flight import on_flight
from tests.integration.permissions.over_http import OverHttp, untried
from tests.integration.permissions.owner import PASSWORD, Http, Owner, owning
from tests.integration.vibe_peer import GRANT_PERMISSION

PATTERNS: Final = ("a", "a*", "*b", "secret.*", "*.q", "*", "dlq.*", "A", "s*t.q", "dlq.a*")
GRANTED: Final = (
    "Publish",
    "Subscribe",
    "CreateQueue",
    "DeleteQueue",
    "PurgeQueue",
    "GetQueueInfo",
    "ListQueues",
)
SECRET: Final = "secret {}"


def drawn(rng: random.Random) -> list[Who]:
    """Draw keys and users; a key with everything and one with nothing are always there."""

    def some(things: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(rng.sample(things, rng.randint(0, 2)))

    keys = [
        Who(f"key{number}", some(PATTERNS), some(PATTERNS), admin=number % 2 == 0)
        for number in range(4)
    ]
    users = [
        Who(
            f"user{number}",
            grants=tuple(
                (pattern, tuple(rng.sample(GRANTED, rng.randint(1, 4))))
                for pattern in rng.sample(PATTERNS, rng.randint(1, 4))
            ),
        )
        for number in range(5)
    ]
    return [Who("all", ("*",), ("*",), admin=True), Who("none"), *keys, *users]


async def enrol(owner: Owner, who: Who) -> None:
    """Make a user with its grants."""
    await owner.make_user(who.name)
    for pattern, operations in who.grants:
        await owner.vibe.administer(
            GRANT_PERMISSION,
            username=who.name,
            queuePattern=pattern,
            operations=list(operations),
        )


async def actual(broker: RunningBroker, owner: Owner, who: Who, asked: set[str]) -> set[str]:
    """Return everything that the broker allows a principal."""
    if who.is_user:
        signs_in = {"authUsername": who.name, "authPassword": PASSWORD}
        async with on_vibe(broker, owner, **signs_in) as door:
            return await tried("vibe", who.name, door)
    secret = SECRET.format(who.name)
    http = Http(broker, secret)
    found = await tried("http", who.name, OverHttp(http, owner, who.name, asked).door())
    http.close()
    async with AsyncExitStack() as stack:
        for listener, entered in (
            ("blip", on_blip(broker, owner, secret)),
            ("vibe", on_vibe(broker, owner, authToken=secret)),
            ("qumbed", on_qumbed(broker, secret)),
            ("flight", on_flight(broker, owner, who.name, secret)),
        ):
            door = await stack.enter_async_context(entered)
            found |= await tried(listener, who.name, door)
    return found


@pytest.mark.slow
@pytest.mark.asyncio
async def test_every_principal_may_do_what_the_oracle_says() -> None:
    """On one broker, so that it takes seconds."""
    people = drawn(random.Random(20))
    keys = [
        key_config(
            who.name,
            SECRET.format(who.name),
            publish=list(who.publish),
            subscribe=list(who.subscribe),
            admin=who.admin,
        )
        for who in people
        if not who.is_user
    ]
    settings: dict[str, Any] = {"auth": {"keys": keys}, "qumbed": {"auth": "key"}, "flight": {}}
    asked: set[str] = set()
    allowed = 0
    async with broker_at(**settings) as broker, owning(broker) as owner:
        for who in people:
            if who.is_user:
                await enrol(owner, who)
        for who in people:
            wanted, found = expected(who), await actual(broker, owner, who, asked)
            assert wanted == found, (who, sorted(wanted ^ found))
            allowed += len(found)
        _, description = await owner.http.ask("GET", "/api/openapi.json")

    assert allowed > 700  # the draw is worth something
    assert set() == untried(description, asked)


def test_the_matrix_has_every_action_of_flight() -> None:
    """A new one needs a verb; the offsets of the log are no secret from those with a key."""
    for_all = {"offsets", "offset_at", "offset_behind"}
    lists = {"topics", "topic_counts", "cursors"}
    verbs = {"cut", "advance", "open_cursor", "move_cursor", "remove_cursor", "commit", "abort"}

    assert for_all | lists | verbs == ACTIONS.keys()
