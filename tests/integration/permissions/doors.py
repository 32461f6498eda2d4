"""The doors of the broker, as a principal tries them: each verb says whether it was allowed."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from braidmq.testing.broker import RunningBroker
from tests.integration.blip import peer as blip
from tests.integration.permissions.oracle import BYSTANDER, NAMES, NAMES_OF
from tests.integration.permissions.owner import PASSWORD, Owner
from tests.integration.qumbed import peer as qumbed
from tests.integration.vibe.peer import (
    CREATE_QUEUE,
    DELETE_QUEUE,
    ERROR,
    PUBLISH,
    QUEUE_INFO,
    SUBSCRIBE,
)
from tests.integration.vibe_peer import (
    CHANGE_PASSWORD,
    CREATE_USER,
    DELETE_USER,
    GRANT_PERMISSION,
    REVOKE_PERMISSION,
    Peer,
    connected,
)

LIST_USERS: Final = 55
GET_USER_PERMISSIONS: Final = 56
FORBIDDEN: Final = 403


class Door(NamedTuple):
    """What can be tried over one listener: with a name, without, and lists of names."""

    verbs: dict[str, Callable[[str], Awaitable[bool]]]
    once: dict[str, Callable[[], Awaitable[bool]]]
    lists: dict[str, Callable[[], Awaitable[Collection[str]]]]


def door_of(one: object, verbs: str, once: str, lists: str) -> Door:
    """Return the door whose verbs are the methods of *one*."""
    found = (
        {name: getattr(one, name) for name in names.split()} for names in (verbs, once, lists)
    )
    return Door(*found)


@asynccontextmanager
async def on_blip(broker: RunningBroker, owner: Owner, secret: str) -> AsyncIterator[Door]:
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

        async def of_others(request: Callable[[int, int], bytes], name: str) -> bool:
            peer.send(request(4, owner.subscriptions[name]), blip.ping(5))
            is_refused = blip.parse(blip.not_found(4)) == [await peer.next()]
            await peer.next()
            return not is_refused

        def credit(tag: int, subscription_id: int) -> bytes:
            return blip.credit(tag, subscription_id, 1)

        yield Door(
            {
                "publish": publish,
                "subscribe": subscribe,
                "poll_others": lambda name: of_others(blip.poll, name),
                "credit_others": lambda name: of_others(credit, name),
                "ack_others": lambda name: of_others(blip.ack, name),
                "unsubscribe_others": lambda name: of_others(blip.unsubscribe, name),
            },
            {},
            {},
        )


class OverVibe:
    """The verbs of Vibe."""

    def __init__(self, peer: Peer, owner: Owner) -> None:
        self._peer = peer
        self._owner = owner

    async def _ask(self, kind: int, queue: str, **headers: str) -> bool:
        answer = await self._peer.ask(kind, queue, headers=headers)
        if answer.kind == ERROR:
            assert ("AUTH_FAILED", "not allowed") == answer.error, answer
        return answer.kind != ERROR

    async def publish(self, queue: str) -> bool:
        return await self._ask(PUBLISH, queue)

    async def subscribe(self, queue: str) -> bool:
        is_allowed = await self._ask(SUBSCRIBE, queue)
        await self._peer.unsubscribe(queue)
        return is_allowed

    async def create(self, queue: str) -> bool:
        return await self._ask(CREATE_QUEUE, queue)

    async def lead(self, names: str) -> bool:
        queue, letters = names.split(" to ")
        return await self._ask(CREATE_QUEUE, queue, deadLetterQueueName=letters)

    async def delete(self, queue: str) -> bool:
        is_allowed = await self._ask(DELETE_QUEUE, queue)
        await self._owner.vibe.create(queue)
        return is_allowed

    async def info(self, queue: str) -> bool:
        return await self._ask(QUEUE_INFO, queue)

    # Users.

    async def _administer(self, kind: int, user: str, **more: object) -> bool:
        answer = await self._peer.administer(kind, username=user, **more)
        return answer.error_code != "NOT_AUTHORIZED"

    async def create_user(self, user: str) -> bool:
        return await self._administer(CREATE_USER, user, password=PASSWORD)

    async def grant_user(self, user: str) -> bool:
        more: dict[str, object] = {"queuePattern": "*", "operations": ["Publish"]}
        return await self._administer(GRANT_PERMISSION, user, **more)

    async def revoke_user(self, user: str) -> bool:
        return await self._administer(REVOKE_PERMISSION, user, queuePattern="none")

    async def permissions_user(self, user: str) -> bool:
        return await self._administer(GET_USER_PERMISSIONS, user)

    async def password_user(self, user: str) -> bool:
        return await self._administer(CHANGE_PASSWORD, user, newPassword=PASSWORD)

    async def delete_user(self, user: str) -> bool:
        is_allowed = await self._administer(DELETE_USER, user)
        if is_allowed:
            await self._owner.make_user(BYSTANDER)
        return is_allowed

    async def users(self) -> bool:
        return await self._administer(LIST_USERS, "")

    async def sees(self) -> list[str]:
        return await self._peer.names()

    def door(self) -> Door:
        return door_of(
            self,
            "publish subscribe create lead delete info create_user grant_user revoke_user "
            "permissions_user password_user delete_user",
            "users",
            "sees",
        )


@asynccontextmanager
async def on_vibe(broker: RunningBroker, owner: Owner, **signs_in: str) -> AsyncIterator[Door]:
    async with connected(broker, **signs_in) as peer:
        yield OverVibe(peer, owner).door()


@asynccontextmanager
async def on_qumbed(broker: RunningBroker, secret: str) -> AsyncIterator[Door]:
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

        async def sees() -> list[str]:
            answer = await stream.ask(qumbed.discovery(key=secret))
            return list(answer["d"]["topics"] or ())

        yield Door({"publish": publish, "subscribe": subscribe}, {}, {"sees": sees})


async def tried(listener: str, principal: str, door: Door) -> set[str]:
    """Try everything; return what was allowed, as the oracle writes it."""
    found: set[str] = set()
    for verb, do in door.verbs.items():
        users = (principal, BYSTANDER)
        for name in users if verb.endswith("_user") else NAMES_OF.get(verb, NAMES):
            if await do(name):
                found.add(f"{listener} {verb} {name}")
    for verb, do_once in door.once.items():
        if await do_once():
            found.add(f"{listener} {verb}")
    for verb, names in door.lists.items():
        found.update(f"{listener} {verb} {name}" for name in await names())
    return found
