"""Who may do what, over every listener: each principal, verb and name against an oracle.

The oracle shares no code with the broker: it knows the configuration as it was written, matches
patterns with regular expressions, and states each verb's rule by itself. Names that a request
only leads to are verbs as well: another queue for dead letters, the origin of a replay, the
topic of a sink's row.
"""

import asyncio
import http.client
import itertools
import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pytest

from braidmq.base.errors import NotAllowedError
from braidmq.columnar.endpoint import Endpoint
from braidmq.testing.broker import RunningBroker
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import PATIENCE_S, broker_at, key_config
from tests.integration.flights import in_thread, rows
from tests.integration.qumbed import peer as qumbed
from tests.integration.vibe.peer import (
    CREATE_QUEUE,
    DELETE_QUEUE,
    ERROR,
    LIST_QUEUES,
    PUBLISH,
    QUEUE_INFO,
    SUBSCRIBE,
)
from tests.integration.vibe_peer import CREATE_USER, GRANT_PERMISSION, Peer, ack, connected

pytestmark = pytest.mark.asyncio

NAMES: Final = ("a", "a.b", "ab", "secret.q", "dlq.a")
PATTERNS: Final = ("a", "a*", "*b", "secret.*", "*.q", "*", "dlq.*", "A", "s*t.q", "dlq.a*")
GRANTED: Final = ("Publish", "Subscribe", "CreateQueue", "DeleteQueue", "GetQueueInfo")
SECRET: Final = "secret {}"
FORBIDDEN: Final = 403


class Who(NamedTuple):
    """A principal as it was configured: a key's patterns, or a user's grants."""

    name: str
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    admin: bool = False
    grants: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def is_user(self) -> bool:
        return self.name.startswith("user")


# The oracle.


def fits(patterns: tuple[str, ...], name: str) -> bool:
    return any(
        re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name)
        for pattern in patterns
    )


def granted(who: Who, operation: str, name: str) -> bool:
    return any(operation in words and fits((pattern,), name) for pattern, words in who.grants)


def may_publish(who: Who, name: str) -> bool:
    return fits(who.publish, name) or granted(who, "Publish", name)


def may_subscribe(who: Who, name: str) -> bool:
    return fits(who.subscribe, name) or granted(who, "Subscribe", name)


def may_manage(who: Who, name: str, operation: str = "") -> bool:
    return who.admin or granted(who, operation, name)


def may_see(who: Who, name: str) -> bool:
    patterns = who.publish + who.subscribe
    return who.admin or fits(patterns, name) or granted(who, "GetQueueInfo", name)


def may_lead(who: Who, name: str, letters: str) -> bool:
    """Say whether a declaration of *name* may have its dead letters sent to *letters*."""
    if not may_manage(who, name, "CreateQueue"):
        return False
    if name.startswith("dlq.") or letters == f"dlq.{name}":
        return True  # letters of letters there are none; the default is the queue's own
    return may_manage(who, letters, "CreateQueue") and may_publish(who, letters)


def expected(who: Who) -> set[str]:
    """Return everything that a principal may do, as `listener verb name`."""
    found: set[str] = set()
    listeners = ("vibe",) if who.is_user else ("blip", "vibe", "qumbed", "http", "flight")
    for name in NAMES:
        for listener in listeners:
            if may_publish(who, name):
                found.add(f"{listener} publish {name}")
            if may_subscribe(who, name):
                found.add(f"{listener} subscribe {name}")
        for listener in {"vibe", "http"} & set(listeners):
            if may_manage(who, name, "CreateQueue"):
                found.add(f"{listener} create {name}")
            if may_manage(who, name, "DeleteQueue"):
                found.add(f"{listener} delete {name}")
            if may_see(who, name):
                found.add(f"{listener} info {name}")
            for letters in NAMES:
                if letters != name and may_lead(who, name, letters):
                    found.add(f"{listener} lead {name} to {letters}")
        if "http" in listeners and who.admin:
            found.add(f"http purge {name}")
            if not name.startswith("dlq.") and may_publish(who, name):
                found.add(f"http replay {name}")
    return found


# The broker, over its listeners. Each verb returns whether it was allowed.

Verb = Callable[[str], Awaitable[bool]]


@asynccontextmanager
async def on_blip(broker: RunningBroker, secret: str) -> AsyncIterator[dict[str, Verb]]:
    async with blip.connected(broker, key=secret) as peer:

        async def publish(name: str) -> bool:
            peer.send(blip.publish(1, name, b"1"), blip.ping(2))
            answer = await peer.next()
            if answer.kind != blip.NACK:
                return True
            assert blip.parse(blip.nack(1, FORBIDDEN, "forbidden")) == [answer]
            await peer.next()
            return False

        async def subscribe(name: str) -> bool:
            peer.send(blip.subscribe(3, name))
            answer = await peer.next()
            if answer.kind != blip.NACK:
                return True
            assert blip.parse(blip.nack(3, FORBIDDEN, "forbidden")) == [answer]
            return False

        yield {"publish": publish, "subscribe": subscribe}


@asynccontextmanager
async def on_vibe(
    broker: RunningBroker, root: Peer, **signs_in: str
) -> AsyncIterator[dict[str, Verb]]:
    async with connected(broker, **signs_in) as peer:

        async def ask(kind: int, name: str, **headers: str) -> bool:
            answer = await peer.ask(kind, name, headers=headers)
            if answer.kind == ERROR:
                assert ("AUTH_FAILED", "not allowed") == answer.error, answer
            elif kind == SUBSCRIBE:
                await peer.unsubscribe(name)
            elif kind == DELETE_QUEUE:
                await root.create(name)
            return answer.kind != ERROR

        async def lead(names: str) -> bool:
            name, letters = names.split(" to ")
            return await ask(CREATE_QUEUE, name, deadLetterQueueName=letters)

        yield {
            "publish": lambda name: ask(PUBLISH, name),
            "subscribe": lambda name: ask(SUBSCRIBE, name),
            "create": lambda name: ask(CREATE_QUEUE, name),
            "delete": lambda name: ask(DELETE_QUEUE, name),
            "info": lambda name: ask(QUEUE_INFO, name),
            "lead": lead,
        }


@asynccontextmanager
async def on_qumbed(broker: RunningBroker, secret: str) -> AsyncIterator[dict[str, Verb]]:
    async with qumbed.connected(broker) as peer:
        stream = peer.open()
        alice = qumbed.public(qumbed.ALICE)

        def is_allowed(answer: qumbed.Json) -> bool:
            if answer["t"] == qumbed.ERROR:
                assert "UNAUTHORIZED" == answer["e"]["code"], answer
            return bool(answer["t"] != qumbed.ERROR)

        async def publish(name: str) -> bool:
            return is_allowed(await stream.ask(qumbed.publish(name, b"1", key=secret)))

        async def subscribe(name: str) -> bool:
            one = peer.open()
            answer = is_allowed(await one.ask(qumbed.subscribe(name, alice, key=secret)))
            one.finish()
            return answer

        yield {"publish": publish, "subscribe": subscribe}


class Http:
    """Requests over one connection."""

    def __init__(self, broker: RunningBroker, secret: str, root: Peer) -> None:
        self._connection = http.client.HTTPConnection(
            *broker.address("http"), timeout=PATIENCE_S
        )
        self._key = {"Authorization": f"Bearer {secret}"}
        self._root = root

    def close(self) -> None:
        self._connection.close()

    async def ask(self, method: str, path: str, **body: object) -> int:
        def send() -> int:
            data = json.dumps(body) if body else None
            self._connection.request(method, path, data, self._key)
            response = self._connection.getresponse()
            response.read()
            return response.status

        return await asyncio.to_thread(send)

    async def _is_allowed(self, method: str, path: str, **body: object) -> bool:
        status = await self.ask(method, path, **body)
        assert status in {200, 201, 403, 409}, (method, path, status)  # 409: other options
        return status != FORBIDDEN

    async def publish(self, name: str) -> bool:
        return await self._is_allowed("POST", f"/api/topics/{quote(name)}/messages", payload=1)

    async def subscribe(self, name: str) -> bool:
        return await self._is_allowed("GET", f"/api/topics/{quote(name)}/messages?limit=1")

    async def create(self, name: str) -> bool:
        return await self._is_allowed("POST", "/api/queues", name=name)

    async def lead(self, names: str) -> bool:
        name, letters = names.split(" to ")
        options = {"name": name, "deadLetterQueueName": letters}
        return await self._is_allowed("POST", "/api/queues", **options)

    async def delete(self, name: str) -> bool:
        is_allowed = await self._is_allowed("DELETE", f"/api/queues/{quote(name)}")
        if is_allowed:
            await self._root.create(name)
        return is_allowed

    async def info(self, name: str) -> bool:
        return await self._is_allowed("GET", f"/api/queues/{quote(name)}")

    async def purge(self, name: str) -> bool:
        return await self._is_allowed("POST", f"/api/queues/{quote(name)}/purge")

    async def replay(self, name: str) -> bool:
        await make_letter(self._root, name)
        path = "/api/dead-letters/replay"
        return await self._is_allowed("POST", path, queue=f"dlq.{name}", count=1)

    def verbs(self) -> dict[str, Verb]:
        names = ("publish", "subscribe", "create", "delete", "info", "lead", "purge", "replay")
        return {name: getattr(self, name) for name in names}


async def make_letter(root: Peer, name: str) -> None:
    """Leave one dead letter of a queue, and nothing in the queue itself."""
    for queue in (name, f"dlq.{name}"):
        await root.ask(DELETE_QUEUE, queue)
    await root.create(name)
    await root.subscribe(name)
    await root.publish_all(name, ["letter"])
    await root.deliveries(1)
    root.send(ack("letter", name, result="reject"))
    await root.fence()
    await root.unsubscribe(name)


@asynccontextmanager
async def on_flight(broker: RunningBroker, secret: str) -> AsyncIterator[dict[str, Verb]]:
    with Endpoint(broker.endpoint, secret) as endpoint:

        async def publish(name: str) -> bool:
            try:
                (batch,) = rows(name)
                stage = await in_thread(endpoint.stage, None, batch.schema, [batch])
            except NotAllowedError:
                return False
            await in_thread(endpoint.abort, [stage.id])
            return True

        async def subscribe(name: str) -> bool:
            with suppress(NotAllowedError):
                await in_thread(endpoint.read, topics=[name], columns=["offset"])
                return True
            return False

        yield {"publish": publish, "subscribe": subscribe}


# The matrix.


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


async def tried(verbs: dict[str, Verb], listener: str) -> set[str]:
    """Try every verb of a listener with every name; return those that were allowed."""
    found: set[str] = set()
    leads = [" to ".join(pair) for pair in itertools.permutations(NAMES, 2)]
    for verb, do in verbs.items():
        for name in leads if verb == "lead" else NAMES:
            if verb == "replay" and name.startswith("dlq."):
                continue  # letters do not die again
            if await do(name):
                found.add(f"{listener} {verb} {name}")
    return found


async def actual(broker: RunningBroker, root: Peer, who: Who) -> set[str]:
    if who.is_user:
        signs_in = {"authUsername": who.name, "authPassword": "pw"}
        async with on_vibe(broker, root, **signs_in) as verbs:
            return await tried(verbs, "vibe")
    secret = SECRET.format(who.name)
    found: set[str] = set()
    async with AsyncExitStack() as stack:
        for listener, entered in (
            ("blip", on_blip(broker, secret)),
            ("vibe", on_vibe(broker, root, authToken=secret)),
            ("qumbed", on_qumbed(broker, secret)),
            ("flight", on_flight(broker, secret)),
        ):
            found |= await tried(await stack.enter_async_context(entered), listener)
    requests = Http(broker, secret, root)
    try:
        return found | await tried(requests.verbs(), "http")
    finally:
        requests.close()


@pytest.mark.slow
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
    async with broker_at(**settings) as broker, connected(broker) as root:
        for name in NAMES:
            await root.create(name)
        for who in people:
            if who.is_user:
                await root.administer(CREATE_USER, username=who.name, password="pw")
                for pattern, operations in who.grants:
                    await root.administer(
                        GRANT_PERMISSION,
                        username=who.name,
                        queuePattern=pattern,
                        operations=list(operations),
                    )
        allowed = 0
        for who in people:
            wanted, found = expected(who), await actual(broker, root, who)
            assert wanted == found, (who, sorted(wanted ^ found))
            allowed += len(found)

        assert LIST_QUEUES == (await root.ask(LIST_QUEUES)).kind
        assert allowed > 300  # the draw is worth something
