"""Connect: authentication, frames before it, permissions, and how a connection ends."""

from pathlib import Path
from typing import Final

import pytest

from braidmq import __version__
from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import broker_at, key_config, until
from tests.integration.vibe.peer import (
    ACK,
    CONNECT,
    CONNECT_ACK,
    CREATE_QUEUE,
    DELETE_QUEUE,
    DISCONNECT,
    ERROR,
    LIST_QUEUES,
    PING,
    PONG,
    PUBLISH,
    PUBLISH_ACK,
    QUEUE_INFO,
    SUBSCRIBE,
    SUBSCRIBE_ACK,
    TOKEN,
    UNSUBSCRIBE,
    UNSUBSCRIBE_ACK,
    Headers,
    body,
    connected,
    core,
    frame,
    stranger,
)

pytestmark = pytest.mark.asyncio

CREATE_USER: Final = 50

NOT_ALLOWED = ("AUTH_FAILED", "not allowed")

KEYS = {
    "keys": [
        key_config("writer", "writer-key", publish=["orders*"], subscribe=[]),
        key_config("reader", "reader-key", publish=[], subscribe=["orders*"]),
        key_config("outsider", "outsider-key", publish=[], subscribe=[]),
        key_config("boss", "boss-key", publish=[], subscribe=[], admin=True),
    ]
}


def token(key: str) -> Headers:
    return {"authToken": key}


async def test_a_token_authenticates(broker: RunningBroker, dialect: str) -> None:
    """The ConnectAck has the same id, and only serverVersion and connectionId as headers."""
    async with stranger(broker, dialect) as peer, stranger(broker, dialect) as other:
        answer = await peer.ask(CONNECT, headers=TOKEN, message_id="conn_123")
        second = await other.ask(CONNECT, headers=TOKEN)

        assert (CONNECT_ACK, "conn_123", "") == (answer.kind, answer.id, answer.queue)
        assert {"serverVersion", "connectionId"} == set(answer.headers)
        assert __version__ == answer.headers["serverVersion"]
        assert answer.headers["connectionId"]
        assert answer.headers["connectionId"] != second.headers["connectionId"]


async def make_user(peer_broker: RunningBroker, dialect: str, name: str) -> None:
    async with connected(peer_broker, dialect) as admin:
        payload = b'{"username":"%s","password":"secret"}' % name.encode()
        assert CREATE_USER == (await admin.ask(CREATE_USER, payload=payload)).kind


CREDENTIALS: dict[str, tuple[Headers, bool]] = {
    "a user": ({"authUsername": "bob", "authPassword": "secret"}, True),
    "a wrong password": ({"authUsername": "bob", "authPassword": "Secret"}, False),
    "an empty password": ({"authUsername": "bob", "authPassword": ""}, False),
    "no password": ({"authUsername": "bob"}, False),
    "no name": ({"authPassword": "secret"}, False),
    "an unknown user": ({"authUsername": "eve", "authPassword": "secret"}, False),
    "a name in other case": ({"authUsername": "Bob", "authPassword": "secret"}, False),
    "a bad token": ({"authToken": "bad"}, False),
    "an empty token": ({"authToken": ""}, False),
    "nothing": ({}, False),
    "a good token before a bad password": (
        {"authUsername": "bob", "authPassword": "bad", "authToken": "dev-key"},
        True,
    ),
    "a bad token before a good password": (
        {"authUsername": "bob", "authPassword": "secret", "authToken": "bad"},
        False,
    ),
}


@pytest.mark.parametrize("how", CREDENTIALS)
async def test_only_valid_credentials_are_accepted(
    broker: RunningBroker, dialect: str, how: str
) -> None:
    """authToken, or authUsername and authPassword; the token takes precedence."""
    headers, good = CREDENTIALS[how]
    await make_user(broker, dialect, "bob")
    async with stranger(broker, dialect) as peer:
        answer = await peer.ask(CONNECT, headers=headers)

        assert (CONNECT_ACK if good else ERROR) == answer.kind
        assert ("" if good else "AUTH_FAILED") == answer.error_code
        assert PONG == (await peer.ask(PING)).kind


async def test_the_fifth_failed_connect_closes_the_connection(
    broker: RunningBroker, dialect: str
) -> None:
    """The fifth one still gets its AUTH_FAILED."""
    async with stranger(broker, dialect) as peer:
        for _ in range(4):
            assert "AUTH_FAILED" == (await peer.ask(CONNECT)).error_code
        assert PONG == (await peer.ask(PING)).kind
        peer.send(peer.frame(CONNECT, "fifth"), peer.frame(CONNECT, "sixth", headers=TOKEN))
        answer = await peer.next()

        assert ("fifth", "AUTH_FAILED") == (answer.id, answer.error_code)
        await peer.expect_close()


async def test_the_right_key_is_accepted_after_four_failed_connects(
    broker: RunningBroker, dialect: str
) -> None:
    """The failures have no further effect."""
    async with stranger(broker, dialect) as peer:
        for _ in range(4):
            assert "AUTH_FAILED" == (await peer.ask(CONNECT)).error_code
        await peer.log_in(TOKEN)
        await peer.publish("q", b"1")


@pytest.mark.parametrize(
    "kind",
    [
        PUBLISH,
        SUBSCRIBE,
        UNSUBSCRIBE,
        ACK,
        CREATE_QUEUE,
        DELETE_QUEUE,
        QUEUE_INFO,
        LIST_QUEUES,
        50,
        56,
        77,
        PONG,
    ],
)
async def test_anything_else_before_connect_is_refused(
    broker: RunningBroker, dialect: str, kind: int
) -> None:
    """AUTH_FAILED "Connect first" for anything but Connect, Ping and Disconnect."""
    async with stranger(broker, dialect) as peer:
        answer = await peer.ask(kind, "q", b"1")

        assert (ERROR, "q") == (answer.kind, answer.queue)
        assert ("AUTH_FAILED", "Connect first") == answer.error
        assert PONG == (await peer.ask(PING)).kind
        await peer.log_in(TOKEN)
        assert [] == await peer.names()


async def test_a_disconnect_before_connect_closes_the_connection(
    broker: RunningBroker, dialect: str
) -> None:
    """It has no answer."""
    async with stranger(broker, dialect) as peer:
        assert PONG == (await peer.ask(PING)).kind
        peer.send(peer.frame(DISCONNECT, "d"))
        await peer.expect_close()


ALLOWED = {
    "writer-key": {PUBLISH: True, SUBSCRIBE: False, QUEUE_INFO: True},
    "reader-key": {PUBLISH: False, SUBSCRIBE: True, QUEUE_INFO: True},
    "outsider-key": {PUBLISH: False, SUBSCRIBE: False, QUEUE_INFO: False},
    "boss-key": {
        PUBLISH: False,
        SUBSCRIBE: False,
        QUEUE_INFO: True,
        CREATE_QUEUE: True,
        DELETE_QUEUE: True,
    },
    "dev-key": dict.fromkeys(
        (PUBLISH, SUBSCRIBE, QUEUE_INFO, CREATE_QUEUE, DELETE_QUEUE), True
    ),
}
COMMANDS = [PUBLISH, SUBSCRIBE, QUEUE_INFO, CREATE_QUEUE, DELETE_QUEUE]


@pytest.mark.parametrize("key", ALLOWED)
async def test_every_command_checks_the_permission(dialect: str, key: str) -> None:
    """CreateQueue and DeleteQueue need an admin key; dev-key may do everything."""
    async with broker_at(auth=KEYS) as broker:
        async with connected(broker, dialect) as owner:
            await owner.create("orders")
        async with connected(broker, dialect, headers=token(key)) as peer:
            for kind in COMMANDS:
                answer = await peer.ask(kind, "orders")
                assert ALLOWED[key].get(kind, False) == (answer.error != NOT_ALLOWED), kind
                assert "orders" == answer.queue
            assert UNSUBSCRIBE_ACK == (await peer.ask(UNSUBSCRIBE, "orders")).kind


async def test_only_the_credential_says_who_a_peer_is(dialect: str) -> None:
    """What else a Connect claims to be changes nothing: the key's own permissions hold."""
    claims = {"authUsername": "boss", "principal": "boss", "connectionId": "1", "admin": "true"}
    claims["authToken"] = "writer-key"
    async with (
        broker_at(auth=KEYS) as broker,
        connected(broker, dialect, headers=claims) as peer,
    ):
        assert NOT_ALLOWED == (await peer.ask(CREATE_QUEUE, "orders")).error
        assert NOT_ALLOWED == (await peer.ask(SUBSCRIBE, "orders")).error


async def test_a_queue_outside_the_pattern_is_forbidden(dialect: str) -> None:
    """Whether it exists or not."""
    async with (
        broker_at(auth=KEYS) as broker,
        connected(broker, dialect, headers=token("writer-key")) as writer,
        connected(broker, dialect, headers=token("reader-key")) as reader,
    ):
        assert NOT_ALLOWED == (await writer.ask(PUBLISH, "others", b"1")).error
        assert NOT_ALLOWED == (await reader.ask(SUBSCRIBE, "others")).error
        assert NOT_ALLOWED == (await reader.ask(QUEUE_INFO, "others")).error
        assert {} == core(broker).queues.by_name


async def test_auto_create_needs_only_publish_or_subscribe(dialect: str) -> None:
    """Using a queue creates it, even with a key that may not declare queues."""
    async with (
        broker_at(auth=KEYS) as broker,
        connected(broker, dialect, headers=token("writer-key")) as writer,
        connected(broker, dialect, headers=token("reader-key")) as reader,
    ):
        assert PUBLISH_ACK == (await writer.ask(PUBLISH, "orders.a", b"1")).kind
        assert SUBSCRIBE_ACK == (await reader.ask(SUBSCRIBE, "orders.b")).kind

        assert {"orders.a", "orders.b"} == set(core(broker).queues.by_name)


async def test_a_second_connect_re_authenticates(dialect: str) -> None:
    """From then on the new principal applies; a failed Connect changes nothing."""
    async with (
        broker_at(auth=KEYS) as broker,
        connected(broker, dialect, headers=token("writer-key")) as peer,
    ):
        await peer.publish("orders", b"1")
        assert "AUTH_FAILED" == (await peer.ask(CONNECT)).error_code
        await peer.publish("orders", b"2")
        await peer.log_in(token("reader-key"))
        assert NOT_ALLOWED == (await peer.ask(PUBLISH, "orders", b"3")).error
        await peer.subscribe("orders")

        assert [b"1", b"2"] == await peer.payloads(2)


async def test_a_subscription_needs_the_permission_of_the_new_principal(dialect: str) -> None:
    """Without it, the broker delivers nothing more."""
    async with (
        broker_at(auth=KEYS) as broker,
        connected(broker, dialect, headers=token("reader-key")) as peer,
        connected(broker, dialect) as source,
    ):
        await peer.subscribe("orders")
        await peer.log_in(token("outsider-key"))
        await source.publish("orders", b"1")
        await peer.expect_silence()

        assert (1, 0) == await source.counts("orders")


async def test_a_disconnect_returns_held_messages_and_closes_the_connection(
    broker: RunningBroker, dialect: str
) -> None:
    """Held deliveries return at once, and do not count as an attempt."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await peer.publish("q", b"1")
        await peer.subscribe("q")
        assert 1 == (await peer.delivered()).attempts
        await other.subscribe("q")
        peer.send(peer.frame(DISCONNECT, "d"))
        await peer.expect_close()

        assert 1 == (await other.delivered()).attempts


async def test_everything_before_a_disconnect_is_answered(
    broker: RunningBroker, dialect: str
) -> None:
    """Replies keep the order of the requests, and none is lost."""
    async with connected(broker, dialect) as peer:
        peer.send(
            *(peer.frame(PUBLISH, f"m{number}", "q", b"1") for number in range(20)),
            peer.frame(DISCONNECT, "d"),
        )

        assert [f"m{n}" for n in range(20)] == [(await peer.next()).id for _ in range(20)]
        await peer.expect_close()


async def test_a_shutdown_sends_disconnect_and_returns_held_messages(
    tmp_path: Path, dialect: str
) -> None:
    """They return at once, and the delivery does not count as an attempt."""
    clock = FakeClock()
    quickly = {"drain_s": 0}
    async with (
        broker_at(tmp_path, clock, limits=quickly) as broker,
        connected(broker, dialect) as peer,
    ):
        await peer.publish("q", b"1")
        await peer.subscribe("q")
        assert 1 == (await peer.delivered()).attempts
        await broker.daemon.stop()
        goodbye = await peer.next()
        assert DISCONNECT == goodbye.kind
        await until(lambda: peer.is_closed)
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        await peer.subscribe("q")

        assert 1 == (await peer.delivered()).attempts


async def test_a_ping_may_be_the_first_frame(broker: RunningBroker, dialect: str) -> None:
    """The broker recognises the dialect by it."""
    async with stranger(broker, dialect) as peer:
        peer.send(frame(dialect, body(PING, "p")))
        answer = await peer.next()

        assert (PONG, "p") == (answer.kind, answer.id)
