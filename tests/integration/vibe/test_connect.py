"""Connect and what may come before it, who may do what, and how a connection ends."""

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
        key_config("nobody", "nobody-key", publish=[], subscribe=[]),
        key_config("boss", "boss-key", publish=[], subscribe=[], admin=True),
    ]
}


def token(key: str) -> Headers:
    return {"authToken": key}


async def test_a_token_lets_in(broker: RunningBroker, dialect: str) -> None:
    """ConnectAck: same id, headers serverVersion and connectionId, and no more."""
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
async def test_who_is_let_in(broker: RunningBroker, dialect: str, how: str) -> None:
    """authToken, or authUsername and authPassword; the token is looked at first."""
    headers, good = CREDENTIALS[how]
    await make_user(broker, dialect, "bob")
    async with stranger(broker, dialect) as peer:
        answer = await peer.ask(CONNECT, headers=headers)

        assert (CONNECT_ACK if good else ERROR) == answer.kind
        assert ("" if good else "AUTH_FAILED") == answer.error_code
        assert PONG == (await peer.ask(PING)).kind


async def test_the_fifth_refusal_is_answered_and_closes(
    broker: RunningBroker, dialect: str
) -> None:
    """Refused: AUTH_FAILED; the fifth refusal is answered, then closed."""
    async with stranger(broker, dialect) as peer:
        for _ in range(4):
            assert "AUTH_FAILED" == (await peer.ask(CONNECT)).error_code
        assert PONG == (await peer.ask(PING)).kind
        peer.send(peer.frame(CONNECT, "fifth"), peer.frame(CONNECT, "sixth", headers=TOKEN))
        answer = await peer.next()

        assert ("fifth", "AUTH_FAILED") == (answer.id, answer.error_code)
        await peer.expect_close()


async def test_four_refusals_and_then_the_right_key(
    broker: RunningBroker, dialect: str
) -> None:
    """Nothing is held against whoever gets it right in time."""
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
    """Anything but Connect, Ping, Disconnect before Connect: AUTH_FAILED "Connect first"."""
    async with stranger(broker, dialect) as peer:
        answer = await peer.ask(kind, "q", b"1")

        assert (ERROR, "q") == (answer.kind, answer.queue)
        assert ("AUTH_FAILED", "Connect first") == answer.error
        assert PONG == (await peer.ask(PING)).kind
        await peer.log_in(TOKEN)
        assert [] == await peer.names()


async def test_disconnect_before_connect_closes(broker: RunningBroker, dialect: str) -> None:
    """Disconnect: none; close."""
    async with stranger(broker, dialect) as peer:
        assert PONG == (await peer.ask(PING)).kind
        peer.send(peer.frame(DISCONNECT, "d"))
        await peer.expect_close()


COMMANDS = [PUBLISH, SUBSCRIBE, QUEUE_INFO, CREATE_QUEUE, DELETE_QUEUE]
ALLOWED = {
    "writer-key": {PUBLISH: True, SUBSCRIBE: False, QUEUE_INFO: True},
    "reader-key": {PUBLISH: False, SUBSCRIBE: True, QUEUE_INFO: True},
    "nobody-key": {PUBLISH: False, SUBSCRIBE: False, QUEUE_INFO: False},
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
async def test_every_command_asks_whether_it_is_allowed(dialect: str, key: str) -> None:
    """AUTH_FAILED "not allowed"; CreateQueue and DeleteQueue need admin; dev-key may all."""
    async with broker_at(auth=KEYS) as broker:
        async with connected(broker, dialect) as owner:
            await owner.create("orders")
        async with connected(broker, dialect, headers=token(key)) as peer:
            for kind in COMMANDS:
                answer = await peer.ask(kind, "orders")
                assert ALLOWED[key].get(kind, False) == (answer.error != NOT_ALLOWED), kind
                assert "orders" == answer.queue
            assert UNSUBSCRIBE_ACK == (await peer.ask(UNSUBSCRIBE, "orders")).kind


async def test_a_pattern_goes_no_further_than_it_says(dialect: str) -> None:
    """Another queue is not allowed, existing or not."""
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
    """A queue that is used is made, though its maker may not declare one."""
    async with (
        broker_at(auth=KEYS) as broker,
        connected(broker, dialect, headers=token("writer-key")) as writer,
        connected(broker, dialect, headers=token("reader-key")) as reader,
    ):
        assert PUBLISH_ACK == (await writer.ask(PUBLISH, "orders.a", b"1")).kind
        assert SUBSCRIBE_ACK == (await reader.ask(SUBSCRIBE, "orders.b")).kind

        assert {"orders.a", "orders.b"} == set(core(broker).queues.by_name)


async def test_connect_again_re_authenticates(dialect: str) -> None:
    """From then on it is the other one who asks; a refusal changes nothing."""
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


async def test_a_subscription_goes_on_only_for_who_is_allowed(dialect: str) -> None:
    """Whoever it is now must be allowed to have the messages as well."""
    async with (
        broker_at(auth=KEYS) as broker,
        connected(broker, dialect, headers=token("reader-key")) as peer,
        connected(broker, dialect) as source,
    ):
        await peer.subscribe("orders")
        await peer.log_in(token("nobody-key"))
        await source.publish("orders", b"1")
        await peer.expect_silence()

        assert (1, 0) == await source.counts("orders")


async def test_disconnect_returns_what_is_held_and_closes(
    broker: RunningBroker, dialect: str
) -> None:
    """Disconnect: none; held deliveries return at once, which is no attempt; close."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await peer.publish("q", b"1")
        await peer.subscribe("q")
        assert 1 == (await peer.delivered()).attempts
        await other.subscribe("q")
        peer.send(peer.frame(DISCONNECT, "d"))
        await peer.expect_close()

        assert 1 == (await other.delivered()).attempts


async def test_what_came_before_a_disconnect_is_answered(
    broker: RunningBroker, dialect: str
) -> None:
    """Replies keep request order, and none is lost."""
    async with connected(broker, dialect) as peer:
        peer.send(
            *(peer.frame(PUBLISH, f"m{number}", "q", b"1") for number in range(20)),
            peer.frame(DISCONNECT, "d"),
        )

        assert [f"m{n}" for n in range(20)] == [(await peer.next()).id for _ in range(20)]
        await peer.expect_close()


async def test_shutdown_says_goodbye_and_returns_what_is_held(
    tmp_path: Path, dialect: str
) -> None:
    """Broker shutdown returns messages at once and does not count as an attempt."""
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


async def test_a_ping_before_connect_tells_the_dialect(
    broker: RunningBroker, dialect: str
) -> None:
    """Ping is allowed before Connect, as the first frame too."""
    async with stranger(broker, dialect) as peer:
        peer.send(frame(dialect, body(PING, "p")))
        answer = await peer.next()

        assert (PONG, "p") == (answer.kind, answer.id)
