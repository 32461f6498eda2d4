"""Framing: the two dialects, how the broker tells them apart, and errors that close."""

import asyncio
import gzip
import socket
import struct

import brotli
import pytest

from braidmq.server.config.config import Config
from braidmq.testing.broker import RunningBroker
from braidmq.transport import tcp
from tests.integration.blip.peer import until
from tests.integration.vibe.peer import (
    BROTLI,
    CONNECT,
    CONNECT_ACK,
    ERROR,
    GZIP,
    PING,
    PONG,
    PUBLISH,
    TOKEN,
    V1_0,
    V1_1,
    body,
    connected,
    frame,
    packed,
    stranger,
)

pytestmark = pytest.mark.asyncio

CONNECT_BODY = body(CONNECT, "c", headers=TOKEN)


async def test_the_default_address_is_on_loopback() -> None:
    """127.0.0.1:2925."""
    assert "127.0.0.1:2925" == Config().vibe.address


async def test_small_replies_are_sent_without_delay(
    monkeypatch: pytest.MonkeyPatch, broker: RunningBroker
) -> None:
    """TCP_NODELAY is on at the broker's end."""
    seen: list[int] = []
    really = tcp.TcpWire.connection_made

    def connection_made(wire: tcp.TcpWire, transport: asyncio.BaseTransport) -> None:
        really(wire, transport)
        found = transport.get_extra_info("socket")
        seen.append(found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(tcp.TcpWire, "connection_made", connection_made)
    async with connected(broker):
        assert [1] == [int(bool(value)) for value in seen]


FIRST_FRAMES = {
    "1.0 with error fields": (V1_0, frame(V1_0, CONNECT_BODY + bytes(4))),
    "1.0 without error fields": (V1_0, frame(V1_0, CONNECT_BODY)),
    "1.1 raw": (V1_1, frame(V1_1, CONNECT_BODY)),
    "1.1 with error fields": (V1_1, frame(V1_1, CONNECT_BODY + bytes(4))),
    "1.1 gzip": (V1_1, packed(GZIP, CONNECT_BODY)),
    "1.1 brotli": (V1_1, packed(BROTLI, CONNECT_BODY)),
}


@pytest.mark.parametrize("how", FIRST_FRAMES)
async def test_the_first_frame_determines_the_dialect(broker: RunningBroker, how: str) -> None:
    """Byte 4: 00 and 02 mean 1.1; 01 before 1f 8b is gzip in 1.1, otherwise 1.0's version."""
    dialect, first = FIRST_FRAMES[how]
    async with stranger(broker, dialect) as peer:
        peer.send(first)
        answer = await peer.next()

        assert (CONNECT_ACK, "c") == (answer.kind, answer.id)


@pytest.mark.parametrize("how", FIRST_FRAMES)
async def test_the_first_frame_may_arrive_byte_by_byte(broker: RunningBroker, how: str) -> None:
    """Wherever TCP cuts the stream, the broker recognises the dialect."""
    dialect, first = FIRST_FRAMES[how]
    async with stranger(broker, dialect) as peer:
        peer.transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        for number in range(len(first)):
            peer.send(first[number : number + 1])
        answer = await peer.next()

        assert (CONNECT_ACK, "c") == (answer.kind, answer.id)


NO_DIALECT = {
    "fifth byte 03": struct.pack(">IB", 20, 3),
    "fifth byte ff": struct.pack(">IB", 20, 255),
    "length 0": struct.pack(">I", 0),
    "length 0 before a valid frame": struct.pack(">I", 0) + frame(V1_0, CONNECT_BODY),
    "a length beyond the limit": struct.pack(">IB", 4097, 1),
    "the largest length": b"\xff\xff\xff\xff",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("how", NO_DIALECT)
async def test_an_unknown_dialect_is_answered_in_1_1(broker: RunningBroker, how: str) -> None:
    """An Error with a generated id, then the broker closes the connection."""
    async with stranger(broker, V1_1) as peer:
        peer.send(NO_DIALECT[how])
        answer = await peer.next()

        assert (ERROR, "INVALID_MESSAGE") == (answer.kind, answer.error_code)
        assert answer.id
        await peer.expect_close()


@pytest.mark.parametrize("other", [V1_0, V1_1])
async def test_the_dialect_stays_for_the_connection(broker: RunningBroker, other: str) -> None:
    """A later frame of the other dialect is read as one of the first, and is malformed."""
    first = V1_1 if other == V1_0 else V1_0
    async with connected(broker, first) as peer:
        peer.send(frame(other, body(PING, "p", errors=True)), bytes(64))
        answer = await peer.next()

        assert (ERROR, "INVALID_MESSAGE") == (answer.kind, answer.error_code)
        await peer.expect_close()


PING_BODY = body(PING, "known-id")
MALFORMED_BODIES = {
    "cut in the middle": PING_BODY[:7],
    "one byte": b"\x01",
    "cut before its headers": PING_BODY[:-2],
    "a payload longer than the body": body(PING, "known-id")[:14] + b"\xff\xff\xff\xff\0\0",
    "more headers than there are": PING_BODY[:-2] + b"\x00\x09",
    "an id that is not UTF-8": b"\x01\x0a\x00\x02\xff\xfe" + bytes(8),
    "a queue that is not UTF-8": b"\x01\x0a\x00\x01p\x00\x02\xff\xfe" + bytes(6),
    "a key that is not UTF-8": PING_BODY[:-2] + b"\x00\x01\x00\x01\xff\x00\x00",
    "a value that is not UTF-8": PING_BODY[:-2] + b"\x00\x01\x00\x01k\x00\x01\xff",
}


@pytest.mark.parametrize("how", MALFORMED_BODIES)
@pytest.mark.parametrize("known", [True, False])
async def test_a_malformed_body_closes_the_connection(
    broker: RunningBroker, dialect: str, how: str, known: bool
) -> None:
    """After an Error INVALID_MESSAGE."""
    async with stranger(broker, dialect) as peer:
        if known:
            await peer.log_in(TOKEN)
        else:
            await peer.ask(PING)
        behind = peer.frame(PING, "never answered")
        peer.send(frame(dialect, MALFORMED_BODIES[how]), behind)
        answer = await peer.next()

        assert (ERROR, "INVALID_MESSAGE") == (answer.kind, answer.error_code)
        assert answer.id
        await peer.expect_close()


async def test_the_error_for_a_malformed_frame_has_its_id_if_readable(
    broker: RunningBroker, dialect: str
) -> None:
    """Otherwise a generated one."""
    async with connected(broker, dialect) as peer:
        peer.send(frame(dialect, MALFORMED_BODIES["more headers than there are"]))

        assert "known-id" == (await peer.next()).id
        await peer.expect_close()


MALFORMED_FRAMES = {
    "1.0 length 0": (V1_0, struct.pack(">I", 0)),
    "1.0 oversize": (V1_0, struct.pack(">I", 1024 * 1024 + 1)),
    "1.0 the largest length": (V1_0, b"\xff\xff\xff\xff"),
    "1.1 length 0": (V1_1, struct.pack(">IB", 0, 0)),
    "1.1 oversize": (V1_1, struct.pack(">IB", 1024 * 1024 + 1, 0)),
    "1.1 unknown flags": (V1_1, struct.pack(">IB", 20, 3)),
    "1.1 both flags": (V1_1, frame(V1_1, PING_BODY, 255)),
    "1.1 not gzip": (V1_1, frame(V1_1, PING_BODY, GZIP)),
    "1.1 not brotli": (V1_1, frame(V1_1, b"\xff" * 30, BROTLI)),
    "1.1 half a gzip": (V1_1, frame(V1_1, gzip.compress(PING_BODY)[:-12], GZIP)),
    "1.1 half a brotli": (V1_1, frame(V1_1, brotli.compress(bytes(500) + PING_BODY)[:-4], 2)),
}


@pytest.mark.parametrize("how", MALFORMED_FRAMES)
async def test_a_malformed_frame_closes_the_connection(broker: RunningBroker, how: str) -> None:
    """Bad length, oversize, unknown flags or bad compression; after an Error."""
    dialect, broken = MALFORMED_FRAMES[how]
    async with connected(broker, dialect) as peer:
        peer.send(broken)
        answer = await peer.next()

        assert (ERROR, "INVALID_MESSAGE") == (answer.kind, answer.error_code)
        await peer.expect_close()


async def test_everything_before_a_malformed_frame_is_answered(
    broker: RunningBroker, dialect: str
) -> None:
    """Replies keep the order of the requests, the Error included."""
    async with connected(broker, dialect) as peer:
        peer.send(
            peer.frame(PUBLISH, "m", "q", b"1"), peer.frame(PING, "p"), struct.pack(">IB", 0, 0)
        )
        answers = [await peer.next() for _ in range(3)]

        assert ["m", "p"] == [answer.id for answer in answers[:2]]
        assert ERROR == answers[2].kind
        await peer.expect_close()


async def test_bytes_after_the_last_field_are_ignored(
    broker: RunningBroker, dialect: str
) -> None:
    """With or without error fields, whatever the dialect."""
    async with connected(broker, dialect) as peer:
        for number, trailing in enumerate((b"", bytes(4), b"\xff", b"\0\0\0\0more")):
            peer.send(frame(dialect, body(PING, f"p{number}") + trailing))
            answer = await peer.next()

            assert (PONG, f"p{number}") == (answer.kind, answer.id)


async def test_many_frames_in_one_piece_are_answered_in_order(
    broker: RunningBroker, dialect: str
) -> None:
    """Whether or not they wait for a commit."""
    async with connected(broker, dialect) as peer:
        kinds = (PUBLISH, PING, 77, PUBLISH, 43)
        wanted = [f"{kind}-{number}" for number in range(50) for kind in kinds]
        peer.send(*(peer.frame(int(one.split("-")[0]), one, "q", b"1") for one in wanted))

        assert wanted == [(await peer.next()).id for _ in wanted]


async def test_everything_sent_before_a_half_close_is_answered(
    broker: RunningBroker, dialect: str
) -> None:
    """Then the broker closes the connection."""
    async with connected(broker, dialect) as peer:
        peer.send(*(peer.frame(PUBLISH, f"m{number}", "q", b"1") for number in range(20)))
        peer.transport.write_eof()

        assert [f"m{n}" for n in range(20)] == [(await peer.next()).id for _ in range(20)]
        await until(lambda: peer.is_closed)
