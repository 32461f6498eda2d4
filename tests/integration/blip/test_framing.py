"""Framing: valid frames, errors that close a connection, and replies before the close."""

import random
import socket
import struct

import pytest
import structlog

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import (
    ACK,
    LENGTH_MAX,
    PUBLISH,
    STATS,
    ack,
    auth,
    connected,
    credit,
    frame,
    hello,
    listener,
    nack,
    ping,
    poll,
    pong,
    publish,
    stranger,
    subscribe,
    unsubscribe,
    until,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("length", [0, 1, 8, LENGTH_MAX + 1, 0xFFFF_FFFF])
async def test_an_illegal_length_closes_the_connection_at_once(
    broker: RunningBroker, length: int
) -> None:
    """Below 9 or above 16 MiB: the broker closes after four bytes, without a reply."""
    async with connected(broker) as peer:
        peer.send(struct.pack(">I", length))
        await peer.expect_close()


@pytest.mark.parametrize("kind", [0x00, 0x0D, 0x7F, 0xFF])
@pytest.mark.parametrize(
    "before", [b"", hello(1) + auth(2)], ids=["unauthenticated", "authenticated"]
)
async def test_an_unknown_type_closes_the_connection_at_the_fifth_byte(
    broker: RunningBroker, kind: int, before: bytes
) -> None:
    """The broker does not wait for the rest of the frame."""
    async with stranger(broker) as peer:
        peer.send(before, struct.pack(">IB", 100, kind))
        if before:
            await peer.expect(ack(1, 0), ack(2, 0))
        await peer.expect_close()


async def test_an_illegal_length_closes_an_unauthenticated_connection_too(
    broker: RunningBroker,
) -> None:
    """The broker checks the framing before it checks authentication."""
    async with stranger(broker) as peer:
        peer.send(struct.pack(">I", 8))
        await peer.expect_close()


async def test_frames_may_arrive_byte_by_byte(broker: RunningBroker) -> None:
    """It does not matter where TCP cuts the stream."""
    async with stranger(broker) as peer:
        for byte in hello(1) + auth(2) + subscribe(3, "cut") + ping(4, b"ignored"):
            peer.send(bytes([byte]))
            # Each byte must arrive alone, or the test would prove nothing.
            await until(lambda: peer.transport.get_write_buffer_size() == 0)
        await peer.expect(ack(1, 0), ack(2, 0), ack(3, 1), pong(4))


async def test_a_conversation_may_arrive_in_one_segment(broker: RunningBroker) -> None:
    """The broker handles pipelined frames in order, from HELLO to ACK."""
    async with stranger(broker) as peer:
        peer.send(
            hello(1),
            auth(2),
            subscribe(3, "pipe"),
            publish(4, "pipe", b"hi"),
            ping(5),
            poll(6, 1),
            ack(2, 1),
            poll(7, 1),
            ping(8),
        )
        await peer.expect(
            ack(1, 0), ack(2, 0), ack(3, 1), pong(5), publish(2, "pipe", b"hi"), pong(8)
        )


async def test_replies_keep_request_order(broker: RunningBroker) -> None:
    """A reply that waits for the log holds back the later ones."""
    async with connected(broker) as peer:
        peer.send(
            subscribe(10, "order"),
            publish(11, "", b""),
            publish(12, "order", b"", qos=9),
            ping(13),
            frame(ACK, 14, b"short"),
            subscribe(15, "order"),
            poll(16, 0),
        )
        await peer.expect(
            ack(10, 1),
            nack(11, 400, "empty topic"),
            nack(12, 400, "invalid QoS value"),
            pong(13),
            nack(14, 400, "invalid ACK payload"),
            ack(15, 2),
            nack(16, 400, "subscription_id must be non-zero"),
        )


@pytest.mark.parametrize("bad", [struct.pack(">I", 3), struct.pack(">IB", 9, 0x55)])
async def test_everything_before_a_bad_frame_is_answered(
    broker: RunningBroker, bad: bytes
) -> None:
    """The broker handles and answers the frames before it, a waiting PONG included."""
    async with stranger(broker) as peer:
        peer.send(
            hello(1),
            auth(2),
            subscribe(3, "bad"),
            publish(4, "bad", b"kept"),
            ping(5),
            poll(6, 1),
            ping(7),
            bad,
            publish(8, "bad", b"behind the bad frame"),
        )
        await peer.expect(ack(1, 0), ack(2, 0), ack(3, 1), pong(5))
        await peer.expect(publish(2, "bad", b"kept"), pong(7))
        await peer.expect_close()
    async with connected(broker) as other:
        assert b"kept" == (await other.take(1))[1]
        assert None is await other.poll(1)


async def test_a_frame_of_exactly_16_mib_is_legal(broker: RunningBroker) -> None:
    """16,777,216 is a legal length in both directions."""
    overhead = len(publish(0, "large", b"")) - 4
    message = random.Random(1).randbytes(LENGTH_MAX - overhead)
    async with connected(broker) as peer:
        subscription = await peer.subscribe("large")
        await peer.publish("large", message)
        peer.send(poll(9, subscription))
        answer = await peer.next()

        assert PUBLISH == answer.kind
        assert LENGTH_MAX == 9 + len(answer.payload)
        assert answer.payload.endswith(message)


async def test_after_half_close_everything_is_answered(broker: RunningBroker) -> None:
    """The broker answers everything that was sent, and then closes."""
    async with stranger(broker) as peer:
        peer.send(hello(1), auth(2), subscribe(3, "half"))
        peer.send(*(publish(4, "half", b"%d" % number) for number in range(300)))
        peer.send(ping(5), poll(6, 1), ping(7))
        peer.finish()
        await peer.expect(ack(1, 0), ack(2, 0), ack(3, 1), pong(5))
        await peer.expect(publish(2, "half", b"0"), pong(7))
        await peer.expect_close()


async def test_a_half_close_inside_a_frame_closes_the_connection(broker: RunningBroker) -> None:
    """The broker does not wait for a frame that will never be complete."""
    async with connected(broker) as peer:
        peer.send(ping(5), publish(6, "half", b"never whole")[:-1])
        peer.finish()
        await peer.expect(pong(5))
        await peer.expect_close()


async def test_a_half_close_does_not_drop_replies_that_wait_for_the_output_buffer(
    broker: RunningBroker,
) -> None:
    """A peer that reads late gets every reply, however full the buffer was at its EOF."""
    message = bytes(100_000)
    count = 100
    async with connected(broker) as peer:
        subscription = await peer.subscribe("late")
        await peer.publish("late", *[message] * count)
        peer.transport.pause_reading()
        peer.send(*(poll(7, subscription) for _ in range(count)), ping(8))
        peer.finish()
        await until(lambda: _unsent(broker) > 0)
        peer.transport.resume_reading()
        for _ in range(count):
            assert PUBLISH == (await peer.next()).kind
        await peer.expect(pong(8))
        await peer.expect_close()


def _unsent(broker: RunningBroker) -> int:
    return sum(wire.unsent_bytes() for wire in listener(broker)._wires)  # noqa: SLF001 - not visible to a peer


async def test_nodelay_and_keepalive_are_on(broker: RunningBroker) -> None:
    """Small replies are sent at once: TCP_NODELAY; and keepalive starts after 60 s."""
    async with connected(broker):
        (wire,) = listener(broker)._wires  # noqa: SLF001 - a peer cannot see a socket option
        assert wire._transport is not None  # noqa: SLF001 - as above
        raw = wire._transport.get_extra_info("socket")  # noqa: SLF001 - as above

        assert 1 == raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert 1 == raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert 60 == raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)


def _noise(rng: random.Random, subscription: int) -> bytes:
    """Return a random frame, sometimes with a corrupted byte."""
    ids = (0, 1, 2, subscription, rng.getrandbits(64))
    topic = rng.choice(("", "a", "dlq.a", "\x00", "ä" * 300))
    known = (
        hello(rng.getrandbits(64), rng.getrandbits(16)),
        auth(7, rng.choice(("dev-key", "wrong", ""))),
        publish(rng.getrandbits(64), topic, rng.randbytes(rng.randrange(40)), rng.randrange(3)),
        subscribe(rng.getrandbits(64), topic, rng.randrange(3)),
        ack(rng.randrange(1, 90), rng.choice(ids)),
        nack(1, 400, "from a client"),
        ping(rng.getrandbits(64), rng.randbytes(rng.randrange(5))),
        pong(rng.getrandbits(64)),
        poll(rng.getrandbits(64), rng.choice(ids)),
        unsubscribe(rng.getrandbits(64), rng.choice(ids)),
        credit(rng.getrandbits(64), rng.choice(ids), rng.choice((0, 1, 5, 2**32 - 1))),
        frame(STATS, 1),
        frame(rng.randrange(14), rng.getrandbits(64), rng.randbytes(rng.randrange(30))),
    )
    chosen = bytearray(rng.choice(known))
    if rng.random() < 0.05:
        chosen[rng.randrange(len(chosen))] = rng.getrandbits(8)
    return bytes(chosen)


@pytest.mark.parametrize("seed", range(4))
async def test_random_frames_do_not_disturb_the_broker(
    broker: RunningBroker, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It serves other clients meanwhile, logs no error, and no exception escapes."""
    rng = random.Random(seed)
    with structlog.testing.capture_logs() as lines:
        for _ in range(40):
            async with stranger(broker) as noisy:
                if rng.random() < 0.8:
                    await noisy.log_in()
                subscription = rng.randrange(1, 30)
                noise = b"".join(_noise(rng, subscription) for _ in range(rng.randrange(60)))
                noisy.send(noise[: len(noise) - rng.randrange(3)])
                if rng.random() < 0.7:
                    noisy.finish()
                    await until(noisy.transport.is_closing)
                broker.clock.advance(rng.choice((0, 0, 1, 6)))
            async with connected(broker) as other:
                mine = await other.subscribe("others")
                await other.publish("others", b"still here")
                assert b"still here" == (await other.take(mine))[1]

    assert [] == [line for line in lines if line["log_level"] in {"error", "critical"}]
    assert [] == [record for record in caplog.records if record.levelname == "ERROR"]
