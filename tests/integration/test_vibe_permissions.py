"""Permissions over the wire, checked against an oracle.

The oracle shares no code with the broker: it matches patterns letter by letter and states the
rules as the protocol's page does.
"""

import json
import random
from typing import Final, NamedTuple

import pytest

from tests.integration.blip import peer as blip
from tests.integration.blip.peer import NACK, broker_at, key_config
from tests.integration.vibe.peer import (
    CREATE_QUEUE,
    DELETE_QUEUE,
    ERROR,
    LIST_QUEUES,
    PUBLISH,
    QUEUE_INFO,
    SUBSCRIBE,
)
from tests.integration.vibe_peer import (
    CREATE_USER,
    GRANT_PERMISSION,
    REVOKE_PERMISSION,
    Peer,
    connected,
)

pytestmark = pytest.mark.asyncio

NAMES: Final = ("a", "A", "a.b", "ab", "b.a", "dlq.a")
PATTERNS: Final = ("a", "A", "a*", "*a", "a.*", "*.a", "*", "a*b", "dlq.*", "x", "**", "a*a")
COMMANDS: Final = {
    "Publish": PUBLISH,
    "Subscribe": SUBSCRIBE,
    "CreateQueue": CREATE_QUEUE,
    "DeleteQueue": DELETE_QUEUE,
    "GetQueueInfo": QUEUE_INFO,
}
OPERATIONS: Final = (*COMMANDS, "ListQueues", "PurgeQueue")


class Key(NamedTuple):
    """An API key."""

    publish: list[str]
    subscribe: list[str]
    admin: bool


Grants = dict[str, set[str]]


def fits(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(fits(pattern[1:], name[at:]) for at in range(len(name) + 1))
    return bool(name) and pattern[0] == name[0] and fits(pattern[1:], name[1:])


def key_may(key: Key, operation: str, name: str) -> bool:
    publishes = any(fits(pattern, name) for pattern in key.publish)
    subscribes = any(fits(pattern, name) for pattern in key.subscribe)
    if operation == "Publish":
        return publishes
    if operation == "Subscribe":
        return subscribes
    if operation in {"CreateQueue", "DeleteQueue"}:
        return key.admin
    return key.admin or publishes or subscribes  # to see a queue


def user_may(grants: Grants, operation: str, name: str) -> bool:
    for pattern, operations in grants.items():
        if fits(pattern, name) and (operation in operations or operation == "ListQueues"):
            return True
    return False


async def allowed(peer: Peer, root: Peer) -> set[tuple[str, str]]:
    """Try every operation; return those that the broker allowed. The queues stay."""
    found = set()
    for operation, command in COMMANDS.items():
        for name in NAMES:
            answer = await peer.ask(command, name)
            if answer.kind == ERROR:
                assert ("AUTH_FAILED", "not allowed") == answer.error, answer
                assert name == answer.queue
                continue
            found.add((operation, name))
            if command == DELETE_QUEUE:
                await root.create(name)
            elif command == SUBSCRIBE:
                await peer.unsubscribe(name)
    answer = await peer.ask(LIST_QUEUES)
    assert LIST_QUEUES == answer.kind
    return found | {("ListQueues", name) for name in json.loads(answer.payload)}


def some(rng: random.Random, things: tuple[str, ...], most: int) -> list[str]:
    return rng.sample(things, rng.randint(0, most))


@pytest.mark.parametrize("seed", range(3))
async def test_api_keys_may_do_what_their_patterns_allow(seed: int) -> None:
    """On Vibe and, for publishing and subscribing, on Blip."""
    rng = random.Random(seed)
    keys = [
        Key(some(rng, PATTERNS, 3), some(rng, PATTERNS, 3), rng.random() < 0.3)
        for _ in range(6)
    ]
    written = [
        key_config(
            f"key {number}",
            f"secret {number}",
            publish=key.publish,
            subscribe=key.subscribe,
            admin=key.admin,
        )
        for number, key in enumerate(keys)
    ]
    async with broker_at(auth={"keys": written}) as broker, connected(broker) as root:
        for name in NAMES:
            await root.create(name)
        for number, key in enumerate(keys):
            wanted = {
                (operation, name)
                for operation in (*COMMANDS, "ListQueues")
                for name in NAMES
                if key_may(key, operation, name)
            }
            async with connected(broker, authToken=f"secret {number}") as peer:
                assert wanted == await allowed(peer, root), key
                listed = await peer.ask(55)
                assert key.admin is (listed.error_code != "NOT_AUTHORIZED")
            async with blip.connected(broker, key=f"secret {number}") as other:
                assert _on_blip(wanted) == await _allowed_on_blip(other), key


def _on_blip(wanted: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {pair for pair in wanted if pair[0] in {"Publish", "Subscribe"}}


async def _allowed_on_blip(peer: blip.Peer) -> set[tuple[str, str]]:
    found = set()
    for name in NAMES:
        peer.send(blip.publish(1, name, b"1"), blip.ping(2))
        if (await peer.next()).kind != NACK:
            found.add(("Publish", name))
        else:
            await peer.next()
        peer.send(blip.subscribe(3, name))
        if (await peer.next()).kind != NACK:
            found.add(("Subscribe", name))
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_users_may_do_what_their_grants_allow(seed: int) -> None:
    """Grants add up; a new grant replaces its pattern's; live sessions notice at once."""
    rng = random.Random(seed)
    async with broker_at() as broker, connected(broker) as root:
        for name in NAMES:
            await root.create(name)
        answer = await root.administer(CREATE_USER, username="u", password="pw")
        assert CREATE_USER == answer.kind, answer
        grants: Grants = {}
        async with connected(broker, authUsername="u", authPassword="pw") as user:
            for _ in range(12):
                pattern = rng.choice(PATTERNS)
                if grants and rng.random() < 0.3:
                    pattern = rng.choice(sorted(grants))
                    grants.pop(pattern)
                    answer = await root.administer(
                        REVOKE_PERMISSION, username="u", queuePattern=pattern
                    )
                else:
                    grants[pattern] = {rng.choice(OPERATIONS), rng.choice(OPERATIONS)}
                    answer = await root.administer(
                        GRANT_PERMISSION,
                        username="u",
                        queuePattern=pattern,
                        operations=sorted(grants[pattern]),
                    )
                assert ERROR != answer.kind, answer
                wanted = {
                    (operation, name)
                    for operation in (*COMMANDS, "ListQueues")
                    for name in NAMES
                    if user_may(grants, operation, name)
                }
                assert wanted == await allowed(user, root), grants
                assert "NOT_AUTHORIZED" == (await user.ask(55)).error_code
