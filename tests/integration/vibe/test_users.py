"""Commands 50 to 56: user administration by superusers, and what users may do."""

import json
from pathlib import Path
from typing import Final

import pytest

from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import broker_at, key_config
from tests.integration.vibe.peer import (
    CREATE_QUEUE,
    DELETE_QUEUE,
    ERROR,
    PUBLISH,
    PUBLISH_ACK,
    SUBSCRIBE,
    Headers,
    Message,
    Peer,
    connected,
    stranger,
)

pytestmark = pytest.mark.asyncio

CREATE_USER: Final = 50
DELETE_USER: Final = 51
CHANGE_PASSWORD: Final = 52
GRANT: Final = 53
REVOKE: Final = 54
LIST_USERS: Final = 55
PERMISSIONS: Final = 56

BOB: Headers = {"authUsername": "bob", "authPassword": "secret"}


async def administer(peer: Peer, kind: int, **payload: object) -> Message:
    return await peer.ask(kind, payload=json.dumps(payload).encode())


async def done(peer: Peer, kind: int, **payload: object) -> object:
    """Send a command that must succeed; return the answer's payload."""
    answer = await administer(peer, kind, **payload)
    assert kind == answer.kind, answer
    return json.loads(answer.payload)


async def make_bob(admin: Peer, *operations: str, pattern: str = "orders*") -> None:
    await done(admin, CREATE_USER, username="bob", password="secret")
    if operations:
        await done(
            admin, GRANT, username="bob", queuePattern=pattern, operations=list(operations)
        )


async def test_users_are_created_listed_and_deleted(
    broker: RunningBroker, dialect: str
) -> None:
    """Commands 50, 55 and 51, with the payloads of the original."""
    async with connected(broker, dialect) as admin:
        assert [] == await done(admin, LIST_USERS)
        for name in ("bob", "Ada"):
            made = await done(admin, CREATE_USER, username=name, password="secret")
            assert {"username": name} == made
        users = await done(admin, LIST_USERS)
        created_s = 1_800_000_000
        wanted = [
            {"username": name, "isSuperuser": False, "createdAt": created_s}
            for name in ("Ada", "bob")
        ]
        assert wanted == users
        assert {"username": "bob"} == await done(admin, DELETE_USER, username="bob")

        assert wanted[:1] == await done(admin, LIST_USERS)


async def test_permissions_are_granted_and_revoked(broker: RunningBroker, dialect: str) -> None:
    """Commands 53, 56 and 54; the broker ignores unknown operations."""
    async with connected(broker, dialect) as admin:
        await make_bob(admin)
        assert [] == await done(admin, PERMISSIONS, username="bob")
        granted = await done(
            admin,
            GRANT,
            username="bob",
            queuePattern="orders.*",
            operations=["subscribe", "Publish", "Fly"],
        )
        holds = {"queuePattern": "orders.*", "operations": ["Publish", "Subscribe"]}
        assert {"username": "bob", **holds} == granted
        assert [holds] == await done(admin, PERMISSIONS, username="bob")
        for _ in range(2):  # the second time nothing matches
            revoked = await done(admin, REVOKE, username="bob", queuePattern="orders.*")
            assert {"username": "bob", "queuePattern": "orders.*"} == revoked

        assert [] == await done(admin, PERMISSIONS, username="bob")


REFUSED: dict[str, tuple[int, dict[str, object], str]] = {
    "a user twice": (CREATE_USER, {"username": "bob", "password": "x"}, "USER_EXISTS"),
    "a bad name": (CREATE_USER, {"username": "bad user", "password": "x"}, "INVALID_PAYLOAD"),
    "no password": (CREATE_USER, {"username": "eve"}, "INVALID_PAYLOAD"),
    "no name": (DELETE_USER, {}, "INVALID_PAYLOAD"),
    "an unknown user to delete": (DELETE_USER, {"username": "eve"}, "USER_NOT_FOUND"),
    "a superuser to delete": (DELETE_USER, {"username": "ada"}, "FORBIDDEN"),
    "an unknown user's password": (
        CHANGE_PASSWORD,
        {"username": "eve", "newPassword": "x"},
        "USER_NOT_FOUND",
    ),
    "no new password": (CHANGE_PASSWORD, {"username": "bob"}, "INVALID_PAYLOAD"),
    "a grant to an unknown user": (
        GRANT,
        {"username": "eve", "queuePattern": "*", "operations": ["Publish"]},
        "USER_NOT_FOUND",
    ),
    "a grant of nothing": (
        GRANT,
        {"username": "bob", "queuePattern": "*", "operations": ["Fly"]},
        "INVALID_PAYLOAD",
    ),
    "a revocation without a pattern": (REVOKE, {"username": "bob"}, "INVALID_PAYLOAD"),
    "permissions without a name": (PERMISSIONS, {"username": 1}, "INVALID_PAYLOAD"),
}


@pytest.mark.parametrize("how", REFUSED)
async def test_refusals_have_the_originals_codes(dialect: str, how: str) -> None:
    """The connection stays open."""
    kind, payload, code = REFUSED[how]
    keys = {"keys": [key_config("ada", "ada-key", admin=True)]}
    async with broker_at(auth=keys) as broker, connected(broker, dialect) as admin:
        await make_bob(admin)
        answer = await administer(admin, kind, **payload)

        assert (ERROR, code) == (answer.kind, answer.error_code)
        await admin.expect_silence()


async def test_an_unknown_user_has_no_permissions(broker: RunningBroker, dialect: str) -> None:
    """Command 56 answers with an empty list."""
    async with connected(broker, dialect) as admin:
        assert [] == await done(admin, PERMISSIONS, username="eve")


async def test_administration_is_for_superusers(broker: RunningBroker, dialect: str) -> None:
    """NOT_AUTHORIZED for other users, except for their own password and permissions."""
    async with connected(broker, dialect) as admin:
        await make_bob(admin, "Publish")
        await done(admin, CREATE_USER, username="eve", password="x")
    of_eve: list[tuple[int, dict[str, object]]] = [
        (CREATE_USER, {"username": "new", "password": "x"}),
        (DELETE_USER, {"username": "eve"}),
        (CHANGE_PASSWORD, {"username": "eve", "newPassword": "y"}),
        (GRANT, {"username": "bob", "queuePattern": "*", "operations": ["Publish"]}),
        (REVOKE, {"username": "eve", "queuePattern": "*"}),
        (LIST_USERS, {}),
        (PERMISSIONS, {"username": "eve"}),
    ]
    async with connected(broker, dialect, headers=BOB) as bob:
        for kind, payload in of_eve:
            assert "NOT_AUTHORIZED" == (await administer(bob, kind, **payload)).error_code, kind
        assert [{"queuePattern": "orders*", "operations": ["Publish"]}] == await done(
            bob, PERMISSIONS, username="bob"
        )
        await done(bob, CHANGE_PASSWORD, username="bob", newPassword="other")
    async with stranger(broker, dialect) as peer:
        assert "AUTH_FAILED" == (await peer.ask(0, headers=BOB)).error_code
        await peer.log_in({"authUsername": "bob", "authPassword": "other"})


async def test_a_user_may_do_what_was_granted(broker: RunningBroker, dialect: str) -> None:
    """Each operation is granted separately, for the pattern only."""
    async with connected(broker, dialect) as admin:
        await make_bob(admin, "Publish", "CreateQueue")
    async with connected(broker, dialect, headers=BOB) as bob:
        assert CREATE_QUEUE == (await bob.ask(CREATE_QUEUE, "orders")).kind
        assert PUBLISH_ACK == (await bob.ask(PUBLISH, "orders", b"1")).kind
        for kind, queue in (
            (SUBSCRIBE, "orders"),
            (DELETE_QUEUE, "orders"),
            (PUBLISH, "others"),
            (CREATE_QUEUE, "others"),
        ):
            assert ("AUTH_FAILED", "not allowed") == (await bob.ask(kind, queue)).error
        assert ["orders"] == await bob.names()


async def test_a_change_applies_at_once_to_connected_users(
    broker: RunningBroker, dialect: str
) -> None:
    """Permissions are revoked and granted, and the user is deleted, while connected."""
    async with connected(broker, dialect) as admin:
        await make_bob(admin, "Publish", "Subscribe")
        async with connected(broker, dialect, headers=BOB) as bob:
            await bob.publish("orders", b"1")
            await bob.subscribe("orders")
            await bob.delivered()
            await done(admin, REVOKE, username="bob", queuePattern="orders*")
            assert "AUTH_FAILED" == (await bob.ask(PUBLISH, "orders", b"2")).error_code
            await admin.publish("orders", b"3")
            await bob.expect_silence()
            await done(admin, GRANT, username="bob", queuePattern="*", operations=["Publish"])
            await bob.publish("orders", b"4")
            await done(admin, GRANT, username="bob", queuePattern="*", operations=["Subscribe"])
            assert [b"3", b"4"] == [(await bob.delivered()).payload for _ in range(2)]
            await done(admin, DELETE_USER, username="bob")
            await bob.expect_close()


async def test_users_survive_a_restart(tmp_path: Path, dialect: str) -> None:
    """With their permissions."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as admin:
        await make_bob(admin, "Publish")
    async with (
        broker_at(tmp_path, clock) as broker,
        connected(broker, dialect, headers=BOB) as bob,
    ):
        await bob.publish("orders", b"1")
