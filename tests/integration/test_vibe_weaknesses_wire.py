"""Promises that VibeMQ does not keep, part two: the wire and permissions.

Each test is named after the promise; its docstring starts with the number of the weakness in
the research notes on the original, where the test would fail.
"""

import gzip
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.testing.broker import RunningBroker, running_broker
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import broker_at, until
from tests.integration.vibe.peer import (
    CONNECT,
    CONNECT_ACK,
    CREATE_QUEUE,
    ERROR,
    GZIP,
    PING,
    PONG,
    PUBLISH,
    PUBLISH_ACK,
    V1_1,
    body,
    core,
    frame,
)
from tests.integration.vibe_peer import (
    BODY_MAX,
    CHANGE_PASSWORD,
    CREATE_USER,
    DELETE_USER,
    GRANT_PERMISSION,
    REVOKE_PERMISSION,
    Peer,
    ack,
    connected,
    ping,
    publish,
    request,
    stranger,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    "broken",
    [
        bytes(5),
        frame(V1_1, b"\x01"),
        frame(V1_1, body(PUBLISH, "m", "q"), 7),
        frame(V1_1, b"not gzip", GZIP),
        (BODY_MAX + 1).to_bytes(4, "big") + b"\0",
        b"\xff" * 5,
        frame(V1_1, b"\x01\x14\x00\x01\xff\x00\x00\x00\x00\x00\x00\x00\x00"),
    ],
)
async def test_broken_framing_gets_an_error_before_the_close(
    broker: RunningBroker, broken: bytes
) -> None:
    """15: an Error says what was wrong, then the broker closes the connection."""
    async with connected(broker) as peer:
        peer.send(broken)
        answer = await peer.next()

        assert (ERROR, "INVALID_MESSAGE") == (answer.kind, answer.error_code)
        assert answer.id
        assert answer.error_message
        await peer.expect_close()


async def test_a_bad_payload_does_not_end_the_connection(broker: RunningBroker) -> None:
    """15: the refusal names the missing key, the unknown option or the invalid JSON."""
    async with connected(broker) as peer:
        missing = await peer.administer(CREATE_USER, username="u")
        bad_mode = await peer.ask(CREATE_QUEUE, "q", b'{"mode":"Sideways"}')
        no_json = await peer.ask(PUBLISH, "q", b"{")
        named = await peer.ask(CREATE_QUEUE, "q", b'{"mode":"FanOutWithAck"}')

        assert "INVALID_PAYLOAD" == missing.error_code
        assert "INVALID_MESSAGE" == bad_mode.error_code
        assert "mode" in bad_mode.error_message
        assert "INVALID_MESSAGE" == no_json.error_code
        assert CREATE_QUEUE == named.kind


async def test_every_refusal_carries_the_id_of_its_request() -> None:
    """16: a refused client does not have to wait for its timeout."""
    async with broker_at(limits={"messages_per_s": 1}) as broker, stranger(broker) as peer:
        early = await peer.ask(PUBLISH, "q", b"1")
        wrong = await peer.ask(CONNECT, headers={"authToken": "wrong"})
        nothing = await peer.ask(CONNECT)
        await peer.ask(CONNECT, headers={"authToken": "dev-key"})
        bad_name = await peer.ask(PUBLISH, "a/b", b"1")
        assert PUBLISH_ACK == (await peer.ask(PUBLISH, "q", b"1")).kind
        too_many = await peer.ask(PUBLISH, "q", b"1")

        codes = [one.error_code for one in (early, wrong, nothing, bad_name, too_many)]
        auth = ["AUTH_FAILED"] * 3
        assert [*auth, "INVALID_MESSAGE", "RATE_LIMITED"] == codes


async def test_acknowledgements_are_never_refused() -> None:
    """17: a consumer above the rate limit gets no redelivery of what it acknowledged."""
    async with (
        broker_at(limits={"messages_per_s": 1}) as broker,
        connected(broker) as consumer,
    ):
        await consumer.subscribe("q")
        for number in range(20):
            async with connected(broker) as publisher:
                await publisher.publish_all("q", [str(number)])
        await consumer.deliveries(20)
        consumer.send(*(ack(str(number)) for number in range(20)))
        await consumer.fence()

        assert (20, 0) == (core(broker).stats.acknowledged, core(broker).stats.unknown_acks)
        broker.clock.advance(3600)
        await consumer.expect_silence()


async def test_strings_of_every_length_round_trip(broker: RunningBroker) -> None:
    """18: an id and a header of 65,535 bytes, and an empty one, come back unchanged."""
    long = "é" * 32_767 + "x"
    async with connected(broker) as peer:
        await peer.subscribe("q")
        peer.send(publish(long, "q", empty="", long=long))
        await peer.reply(long)
        found = await peer.delivered()

        assert (long, "", long) == (found.id, found.headers["empty"], found.headers["long"])
        peer.send(ack(long))
        await peer.fence()
        assert (0, 0) == await peer.counts("q")


async def test_frames_in_one_write_are_whole_frames(broker: RunningBroker) -> None:
    """19: batching drops no byte of any frame."""
    async with connected(broker) as peer:
        peer.send(*(ping(str(number)) for number in range(1000)))
        answers = [await peer.next() for _ in range(1000)]

        wanted = [(PONG, str(number)) for number in range(1000)]
        assert wanted == [(one.kind, one.id) for one in answers]


@pytest.mark.parametrize("version", [0, 2, 255])
async def test_an_unknown_version_is_refused(broker: RunningBroker, version: int) -> None:
    """20: the broker does not guess at another version; the connection stays open."""
    async with connected(broker) as peer:
        peer.send(frame(V1_1, body(PUBLISH, "m", "q", b"1", version=version)))
        answer = await peer.reply("m")

        assert (ERROR, "INVALID_MESSAGE") == (answer.kind, answer.error_code)
        assert [] == await peer.names()


async def test_the_connect_ack_describes_the_server(broker: RunningBroker) -> None:
    """20: the ConnectAck has the request's id, and version, connection and compression."""
    async with stranger(broker) as peer:
        peer.send(
            request(
                CONNECT,
                "mine",
                headers={"authToken": "dev-key", "supported-compression": "zstd,gzip"},
            )
        )
        answer = await peer.reply("mine")

        assert CONNECT_ACK == answer.kind
        assert "gzip" == answer.headers.pop("negotiated-compression")
        assert {"serverVersion", "connectionId"} == set(answer.headers)


async def test_the_size_limit_holds_after_decompression(broker: RunningBroker) -> None:
    """21: the broker refuses a small frame that decompresses to more than the limit."""
    bomb = body(PUBLISH, "m", "q", b'"' + b"x" * BODY_MAX + b'"')
    async with connected(broker) as peer:
        peer.send(frame(V1_1, gzip.compress(bomb), GZIP))
        answer = await peer.next()

        assert (ERROR, "INVALID_MESSAGE") == (answer.kind, answer.error_code)
        await peer.expect_close()


async def test_no_consumer_is_sent_more_than_the_limit(broker: RunningBroker) -> None:
    """21: not even compressed; a message too large for any frame becomes a dead letter."""
    huge = b'"' + b"x" * (2 * BODY_MAX) + b'"'
    compressing = {"authToken": "dev-key", "supported-compression": "gzip"}
    async with connected(broker, **compressing) as peer, blip.connected(broker) as other:
        await peer.subscribe("q")
        await other.publish("q", huge, b'"behind it"')

        assert b'"behind it"' == (await peer.delivered()).payload
        assert (1, 0) == await peer.counts("dlq.q")
        await peer.subscribe("dlq.q")
        await peer.expect_silence()
        assert (1, 0) == await peer.counts("dlq.q")


async def test_the_handshake_times_out_and_pings_do_not_extend_it() -> None:
    """22: ten seconds from accept to a successful Connect; the test sets it shorter."""
    async with (
        broker_at(limits={"handshake_timeout_s": 0.3}) as broker,
        stranger(broker) as idle,
        connected(broker) as friend,
    ):
        assert PONG == (await idle.ask(PING)).kind
        await until(lambda: idle.is_closed)

        assert PONG == (await friend.ask(PING)).kind


async def create_user(peer: Peer, name: str, password: str, *grants: str) -> None:
    """Create a user that may publish and subscribe where *grants* say."""
    answer = await peer.administer(CREATE_USER, username=name, password=password)
    assert CREATE_USER == answer.kind, answer
    for pattern in grants:
        answer = await peer.administer(
            GRANT_PERMISSION,
            username=name,
            queuePattern=pattern,
            operations=["Publish", "Subscribe"],
        )
        assert GRANT_PERMISSION == answer.kind, answer


async def test_user_names_are_case_sensitive(broker: RunningBroker) -> None:
    """28: `Bob` changes his own password, and not `bob`'s."""
    async with connected(broker) as admin:
        await create_user(admin, "bob", "small")
        await create_user(admin, "Bob", "large")
        async with connected(broker, authUsername="Bob", authPassword="large") as peer:
            other = await peer.administer(CHANGE_PASSWORD, username="bob", newPassword="x")
            own = await peer.administer(CHANGE_PASSWORD, username="Bob", newPassword="x")

        assert ("NOT_AUTHORIZED", CHANGE_PASSWORD) == (other.error_code, own.kind)
        async with connected(broker, authUsername="bob", authPassword="small"):
            pass


async def test_a_grant_with_a_pattern_that_is_too_long_is_refused(
    broker: RunningBroker,
) -> None:
    """29: the administrator gets the error; the user's connections continue."""
    async with connected(broker) as admin:
        await create_user(admin, "u", "pw", "q")
        async with connected(broker, authUsername="u", authPassword="pw") as user:
            for length, wanted in ((257, "INVALID_PAYLOAD"), (256, "")):
                answer = await admin.administer(
                    GRANT_PERMISSION,
                    username="u",
                    queuePattern="x" * length,
                    operations=["Publish"],
                )
                assert wanted == answer.error_code
                await user.publish("q", b"1")


async def test_a_connection_has_five_attempts_to_authenticate(broker: RunningBroker) -> None:
    """30: the fifth closes it; an unknown user gets the same answer as a wrong password."""
    async with connected(broker) as admin, stranger(broker) as guesser:
        await create_user(admin, "u", "pw")
        answers = [
            await guesser.ask(CONNECT, headers={"authUsername": name, "authPassword": "no"})
            for name in ("u", "unknown", "u", "unknown", "u")
        ]

        assert {("AUTH_FAILED", "invalid credentials")} == {one.error for one in answers}
        await guesser.expect_close()


async def test_deleting_a_user_shuts_out_its_live_sessions(broker: RunningBroker) -> None:
    """30: they are closed, and what they held waits for others."""
    async with connected(broker) as admin:
        await create_user(admin, "u", "pw", "q")
        async with connected(broker, authUsername="u", authPassword="pw") as user:
            await user.subscribe("q")
            await user.publish("q", b"1")
            await user.delivered()
            assert DELETE_USER == (await admin.administer(DELETE_USER, username="u")).kind
            await user.expect_close()
            await admin.publish("q", b"3")

            assert (2, 0) == await admin.counts("q")


async def test_a_revoked_permission_ends_for_live_sessions_too(broker: RunningBroker) -> None:
    """30: the broker checks permissions on every command, not only at Connect."""
    async with connected(broker) as admin:
        await create_user(admin, "u", "pw", "q")
        async with connected(broker, authUsername="u", authPassword="pw") as user:
            await user.publish("q", b"1")
            await admin.administer(REVOKE_PERMISSION, username="u", queuePattern="q")

            assert "AUTH_FAILED" == (await user.ask(PUBLISH, "q", b"2")).error_code


async def test_an_unusable_certificate_stops_the_broker_from_starting(tmp_path: Path) -> None:
    """31: the error comes at the start, not on every connection."""
    (tmp_path / "cert.pem").write_text("not a certificate")
    (tmp_path / "key.pem").write_text("not a key")
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    with pytest.raises(ConfigError) as caught:
        async with running_broker(config={"vibe": files}):
            pass

    assert "vibe" in str(caught.value)
