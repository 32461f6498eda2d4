"""One Blip connection, on the client's side."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from braidmq.client.blip.connection import (
    OWN_IDS_FROM,
    BlipConnection,
    Receiver,
)
from braidmq.client.blip.publishing import BlipPosting
from braidmq.client.connection import dial
from braidmq.client.errors import AuthenticationFailed, ConnectionFailed, ConnectionLost
from braidmq.client.options import Options
from braidmq.client.replies import Refusal
from braidmq.client.url import parse
from braidmq.wire.blip import frames, messages
from tests.unit.client.blip.peer import KEY, Peer

pytestmark = pytest.mark.asyncio

ORDERS = BlipPosting("orders", 1)


class KeepingReceiver(Receiver):
    """A receiver that keeps the messages it gets."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, int, str, bytes]] = []
        self.batches = asyncio.Queue[int]()

    def deliver(
        self, correlation_id: int, qos: int, topic: str, payload: bytes, now: float
    ) -> None:
        self.messages.append((correlation_id, qos, topic, payload))

    def delivered(self) -> None:
        self.batches.put_nowait(len(self.messages))


@asynccontextmanager
async def connected(
    peer: Peer,
    *,
    options: Options | None = None,
    receiver: Receiver | None = None,
    on_lost: Callable[[BlipConnection], None] = lambda connection: None,
) -> AsyncIterator[BlipConnection]:
    connection = await dial(
        BlipConnection, parse(peer.url), options or Options(), receiver or Receiver(), on_lost
    )
    try:
        yield connection
    finally:
        await connection.close()


def pings(peer: Peer) -> int:
    return peer.lines[0].types().count(frames.PING)


async def test_greeting_and_key_go_out_in_one_segment() -> None:
    """The handshake is one round trip."""
    async with Peer() as peer:
        peer.hold(frames.HELLO)
        opening = asyncio.create_task(
            dial(BlipConnection, parse(peer.url), Options(), Receiver(), lambda _: None)
        )
        await peer.until(lambda: peer.lines and len(peer.lines[0].seen) == 2)

        assert [frames.HELLO, frames.AUTH] == peer.lines[0].types()
        assert KEY == messages.read_auth(peer.lines[0].seen[1][2])
        peer.release()
        await (await opening).close()


@pytest.mark.parametrize(
    ("kind", "code", "error"),
    [
        (frames.AUTH, 401, AuthenticationFailed),
        (frames.AUTH, 400, ConnectionFailed),
        (frames.HELLO, 426, ConnectionFailed),
    ],
)
async def test_a_refused_handshake_says_why(
    kind: int, code: int, error: type[ConnectionFailed]
) -> None:
    """Only 401 is an authentication error; the text never contains the key."""
    async with Peer() as peer:
        peer.refuse(kind, code, "because")
        with pytest.raises(ConnectionFailed, match=f"{code} because") as caught:
            async with connected(peer):
                pass

        assert error is type(caught.value)
        assert KEY not in str(caught.value)
        await peer.until(lambda: not peer.open_lines())


async def test_a_fence_follows_everything_sent_before_it() -> None:
    """The PING is sent after the messages, in the same segment."""
    async with Peer() as peer, connected(peer) as connection:
        for number in range(3):
            connection.publish(ORDERS.prefix, b"%d" % number, qos=1)
        await connection.fence()[1]

        assert [frames.PUBLISH] * 3 + [frames.PING] == peer.lines[0].types()[2:]


async def test_refusals_belong_to_the_fence_that_covers_their_ids() -> None:
    """A NACK may arrive before the PONG of an earlier fence."""
    async with Peer() as peer, connected(peer) as connection:
        peer.hold(frames.PING)
        one = connection.publish(ORDERS.prefix, b"1", qos=1)
        fence_one, reached_one = connection.fence()
        await peer.until(lambda: pings(peer) == 1)
        two = connection.publish(ORDERS.prefix, b"2", qos=1)
        fence_two, reached_two = connection.fence()
        peer.lines[0].send(
            messages.encode_nack(two, 403, "forbidden"), messages.encode_nack(one, 400, "bad")
        )
        peer.release()
        await asyncio.gather(reached_one, reached_two)

        assert {one: Refusal(400, "bad")} == fence_one.refusals
        assert {two: Refusal(403, "forbidden")} == fence_two.refusals


async def test_a_refusal_without_a_waiter_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A QoS 0 message that the broker refuses is not lost silently."""
    async with Peer() as peer, connected(peer) as connection:
        peer.refuse(frames.PUBLISH, 403, "forbidden")
        with caplog.at_level(logging.WARNING, "braidmq.client"):
            connection.publish(ORDERS.prefix, b"1", qos=0)
            await connection.settle()

        assert ["refused by the broker: 403 forbidden"] == caplog.messages


async def test_a_broken_connection_notifies_fences_and_requests() -> None:
    """Those in flight, those queued, and those made afterwards."""
    lost: list[BlipConnection] = []
    async with Peer() as peer, connected(peer, on_lost=lost.append) as connection:
        peer.hold(frames.PING)
        peer.hold(frames.STATS)
        fences = [connection.fence()[1]]
        await peer.until(lambda: pings(peer) == 1)
        fences.append(connection.fence()[1])
        request = connection.request(lambda number: frames.encode(frames.STATS, number))
        cancelled = connection.request(lambda number: frames.encode(frames.STATS, number))
        cancelled.done.cancel()
        await peer.until(lambda: len(peer.held) == 3)
        peer.lines[0].hang_up()

        assert [False, False] == await asyncio.gather(*fences)
        assert not await request.done
        assert not await connection.fence()[1]
        assert not await connection.settle()
        with pytest.raises(ConnectionLost):
            await connection.ask(lambda number: frames.encode(frames.STATS, number))
        connection.send(b"lost on the way")
        assert [connection] == lost
        assert connection.ended_by_peer
        assert "lost the connection" in str(connection.lost())


async def test_answers_to_cancelled_requests_are_ignored() -> None:
    """A late answer does no harm."""
    async with Peer() as peer, connected(peer) as connection:
        request = connection.request(lambda number: frames.encode(frames.STATS, number))
        request.done.cancel()

        assert await connection.settle()


@pytest.mark.parametrize(
    "noise",
    [
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x09\x7f",
        frames.encode(frames.POLL, 1),
        frames.encode(frames.ACK, 1, b"short"),
        frames.encode(frames.NACK, 1, b"\x01"),
        frames.encode(frames.PUBLISH, 1, b"\x01"),
        frames.encode(frames.PUBLISH, 1, b"\x01\x00\x05t"),
    ],
)
async def test_noise_ends_the_connection(noise: bytes) -> None:
    """The client hangs up on a broker that violates the protocol."""
    async with Peer() as peer, connected(peer) as connection:
        peer.hold(frames.PING)
        _, reached = connection.fence()
        await peer.until(lambda: peer.held)
        peer.lines[0].send(noise)

        assert not await reached
        assert "broke the protocol" in str(connection.lost())
        assert not connection.ended_by_peer


async def test_a_stray_pong_confirms_nothing() -> None:
    """A PONG answers only the PING with the same id."""
    async with Peer() as peer, connected(peer) as connection:
        peer.hold(frames.PING)
        _, reached = connection.fence()
        await peer.until(lambda: peer.held)
        peer.lines[0].send(frames.encode(frames.PONG, 1), messages.encode_ack(5, 5))
        answer = await connection.ask(lambda number: frames.encode(frames.STATS, number))

        assert isinstance(answer, messages.Stats)
        assert not reached.done()
        peer.release()
        assert await reached


async def test_deliveries_are_reassembled_from_any_segments() -> None:
    """Bytes that arrive one by one make the same messages."""
    receiver = KeepingReceiver()
    async with Peer() as peer:
        peer.fragments = True
        async with connected(peer, receiver=receiver) as connection:
            peer.lines[0].send(
                messages.encode_publish(7, 1, "orders", b"one"),
                messages.encode_publish(OWN_IDS_FROM, 0, "température", b""),
                messages.encode_publish(8, 1, "orders", b"two"),
            )
            assert await connection.settle()

    assert [
        (7, 1, "orders", b"one"),
        (OWN_IDS_FROM, 0, "température", b""),
        (8, 1, "orders", b"two"),
    ] == receiver.messages


async def test_a_batch_of_deliveries_is_announced_once() -> None:
    """One wake-up for all messages of one read."""
    receiver = KeepingReceiver()
    async with Peer() as peer, connected(peer, receiver=receiver):
        peer.lines[0].send(*(messages.encode_publish(n, 1, "t", b"") for n in range(1, 4)))

        assert 3 == await receiver.batches.get()


async def test_a_delivery_on_a_publishing_connection_is_dropped() -> None:
    """Without a subscription there is no handler for it."""
    async with Peer() as peer, connected(peer) as connection:
        peer.lines[0].send(messages.encode_publish(7, 1, "t", b""))

        assert await connection.settle()


async def test_senders_wait_while_the_broker_does_not_read() -> None:
    """Memory is bounded by the buffer, not by the sender's speed."""
    async with Peer() as peer, connected(peer) as connection:
        line = peer.lines[0]
        line.pause_reading()
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(400):
                await connection.writable()
                connection.publish(ORDERS.prefix, bytes(65536), qos=0)
                sent += 1

        sender = asyncio.create_task(send())
        async with asyncio.timeout(10):
            while not connection.is_full:  # noqa: ASYNC110 - each turn lets the sender proceed
                await asyncio.sleep(0)
        stuck_at = sent
        for _ in range(100):
            await asyncio.sleep(0)

        assert stuck_at == sent < 400
        line.resume_reading()
        await sender
        await connection.settle()
        assert 400 == len(peer.published)
