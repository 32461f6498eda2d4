"""The handshake: HELLO, AUTH, and frames that come too early or too late."""

import struct

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import (
    ACK,
    AUTH,
    CREDIT,
    HELLO,
    NACK,
    PING,
    POLL,
    PONG,
    PUBLISH,
    STATS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    ack,
    auth,
    broker_at,
    connected,
    frame,
    hello,
    key_config,
    nack,
    ping,
    poll,
    pong,
    publish,
    stranger,
    subscribe,
)

pytestmark = pytest.mark.asyncio

HANDSHAKE = hello(1) + auth(2)
HANDSHAKE_REPLIES = [ack(1, 0), ack(2, 0)]


ROWS = {
    "HELLO ok": (hello(1), [ack(1, 0)]),
    "HELLO twice": (hello(1) + hello(7), [ack(1, 0), nack(7, 400, "HELLO already performed")]),
    "HELLO after AUTH": (
        HANDSHAKE + hello(7),
        [*HANDSHAKE_REPLIES, nack(7, 400, "HELLO already performed")],
    ),
    "a second HELLO is refused unparsed": (
        hello(1) + frame(HELLO, 7, b"junk"),
        [ack(1, 0), nack(7, 400, "HELLO already performed")],
    ),
    "HELLO empty": (frame(HELLO, 1), [nack(1, 400, "invalid HELLO payload")]),
    "HELLO one byte": (frame(HELLO, 1, b"\x01"), [nack(1, 400, "invalid HELLO payload")]),
    "HELLO trailing byte": (
        frame(HELLO, 1, b"\x00\x01\x00"),
        [nack(1, 400, "invalid HELLO payload")],
    ),
    "HELLO version 0": (hello(1, 0), [nack(1, 426, "unsupported protocol version")]),
    "HELLO version 2, then 1": (
        hello(1, 2) + hello(3) + auth(4),
        [nack(1, 426, "unsupported protocol version"), ack(3, 0), ack(4, 0)],
    ),
    "AUTH without HELLO": (auth(2), [nack(2, 400, "HELLO not performed")]),
    "a refused HELLO does not count": (
        hello(1, 9) + auth(2),
        [nack(1, 426, "unsupported protocol version"), nack(2, 400, "HELLO not performed")],
    ),
    "AUTH without HELLO is refused unparsed": (
        frame(AUTH, 2, b"junk"),
        [nack(2, 400, "HELLO not performed")],
    ),
    "AUTH twice": (
        HANDSHAKE + auth(7),
        [*HANDSHAKE_REPLIES, nack(7, 400, "already authenticated")],
    ),
    "AUTH twice with a wrong key": (
        HANDSHAKE + auth(7, "wrong"),
        [*HANDSHAKE_REPLIES, nack(7, 400, "already authenticated")],
    ),
    "AUTH empty": (
        hello(1) + frame(AUTH, 2),
        [ack(1, 0), nack(2, 400, "invalid AUTH payload")],
    ),
    "AUTH too short": (
        hello(1) + frame(AUTH, 2, b"\x00\x09dev-key"),
        [ack(1, 0), nack(2, 400, "invalid AUTH payload")],
    ),
    "AUTH too long": (
        hello(1) + frame(AUTH, 2, b"\x00\x07dev-key!"),
        [ack(1, 0), nack(2, 400, "invalid AUTH payload")],
    ),
    "AUTH not UTF-8": (
        hello(1) + frame(AUTH, 2, b"\x00\x02\xff\xfe"),
        [ack(1, 0), nack(2, 400, "invalid AUTH payload")],
    ),
    "AUTH unknown key": (
        hello(1) + auth(2, "no"),
        [ack(1, 0), nack(2, 401, "invalid API key")],
    ),
    "AUTH empty key": (hello(1) + auth(2, ""), [ack(1, 0), nack(2, 401, "invalid API key")]),
    "AUTH second try": (
        hello(1) + auth(2, "no") + auth(3),
        [ack(1, 0), nack(2, 401, "invalid API key"), ack(3, 0)],
    ),
}


@pytest.mark.parametrize("row", ROWS)
async def test_the_handshake_follows_the_table(broker: RunningBroker, row: str) -> None:
    """The broker answers as the table says, and the connection stays open."""
    sent, answers = ROWS[row]
    async with stranger(broker) as peer:
        peer.send(sent, frame(PONG, 99))
        await peer.expect(*answers)
        # Still open: an unauthenticated PONG gets a NACK, an authenticated one is ignored.
        if ack(2, 0) in answers or ack(3, 0) in answers or ack(4, 0) in answers:
            await peer.expect_silence()
        else:
            await peer.expect(nack(99, 401, "unauthenticated"))


@pytest.mark.parametrize(
    "kind",
    [PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL, STATS, UNSUBSCRIBE, CREDIT],
)
@pytest.mark.parametrize("greeted", [False, True])
async def test_any_other_frame_before_authentication_is_401(
    broker: RunningBroker, kind: int, greeted: bool
) -> None:
    """PING included; the connection stays open."""
    async with stranger(broker) as peer:
        if greeted:
            peer.send(hello(1))
            await peer.expect(ack(1, 0))
        peer.send(frame(kind, 8, b"anything"), frame(kind, 9))
        await peer.expect(nack(8, 401, "unauthenticated"), nack(9, 401, "unauthenticated"))
        peer.send(auth(2) if greeted else HANDSHAKE)
        await peer.expect(*(HANDSHAKE_REPLIES[1:] if greeted else HANDSHAKE_REPLIES))


async def test_frames_before_authentication_have_no_effect(broker: RunningBroker) -> None:
    """The broker does not carry out a refused SUBSCRIBE or PUBLISH later."""
    async with stranger(broker) as peer:
        peer.send(subscribe(5, "early"), publish(6, "early", b"no"), HANDSHAKE)
        await peer.expect(nack(5, 401, "unauthenticated"), nack(6, 401, "unauthenticated"))
        await peer.expect(*HANDSHAKE_REPLIES)

        assert (0, 0, 0, 0, 0) == await peer.stats()


@pytest.mark.parametrize("kind", [NACK, PONG])
async def test_nack_and_pong_from_a_client_are_ignored(
    broker: RunningBroker, kind: int
) -> None:
    """Once the client has authenticated, whatever they carry."""
    async with connected(broker) as peer:
        peer.send(frame(kind, 5), frame(kind, 6, b"anything at all"))
        await peer.expect_silence()


async def test_ping_ignores_its_payload(broker: RunningBroker) -> None:
    """PONG has the PING's correlation id and an empty payload."""
    async with connected(broker) as peer:
        peer.send(ping(2**64 - 1, b"hello?"), ping(0))
        await peer.expect(pong(2**64 - 1), pong(0))


async def test_the_fifth_failed_auth_closes_the_connection(broker: RunningBroker) -> None:
    """Each unknown key gets a 401, the fifth one too; then the broker closes."""
    async with stranger(broker) as peer:
        peer.send(hello(1))
        for number in range(2, 6):
            peer.send(auth(number, "wrong"))
        await peer.expect(
            ack(1, 0), *(nack(number, 401, "invalid API key") for number in range(2, 6))
        )
        peer.send(auth(6, "wrong"), auth(7), ping(8))
        await peer.expect(nack(6, 401, "invalid API key"))
        await peer.expect_close()


async def test_malformed_auth_does_not_count_as_failed(broker: RunningBroker) -> None:
    """NACK never closes a connection by itself, except the fifth failed AUTH."""
    async with stranger(broker) as peer:
        peer.send(hello(1), *(frame(AUTH, 2, b"\x00") for _ in range(9)), auth(3))
        await peer.expect(ack(1, 0), *[nack(2, 400, "invalid AUTH payload")] * 9, ack(3, 0))


async def test_many_nacks_do_not_close_the_connection(broker: RunningBroker) -> None:
    """An authenticated client may send any number of bad frames."""
    async with connected(broker) as peer:
        peer.send(*(poll(number, 12345) for number in range(200)))
        answers = [await peer.next() for _ in range(200)]

        assert [NACK] * 200 == [answer.kind for answer in answers]
        await peer.expect_silence()


async def test_a_configured_key_is_accepted_but_not_its_hash() -> None:
    """The configuration holds only the hashes of keys other than dev-key."""
    async with (
        broker_at(auth={"keys": [key_config("ada", "ada's key")]}) as broker,
        stranger(broker) as peer,
    ):
        digest = struct.pack(">H", 71) + str(key_config("ada", "ada's key")["hash"]).encode()
        peer.send(hello(1), frame(AUTH, 2, digest), auth(3, "ada's key"))
        await peer.expect(ack(1, 0), nack(2, 401, "invalid API key"), ack(3, 0))
