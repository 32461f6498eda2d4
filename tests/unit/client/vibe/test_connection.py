"""One Vibe connection, on the client's side."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from braidmq.client.connection import Post, dial
from braidmq.client.errors import AuthenticationFailed, ConnectionFailed, ConnectionLost
from braidmq.client.options import Options
from braidmq.client.url import parse
from braidmq.client.vibe.connection import (
    BODY_BYTES_MAX,
    Receiver,
    VibeConnection,
    asking,
)
from braidmq.wire.vibe import frames, messages
from braidmq.wire.vibe.messages import Body
from tests.unit.client.peer import die, ignore
from tests.unit.client.vibe.peer import (
    KEY,
    PASSWORD,
    USER,
    Line,
    Peer,
    error_frame,
    frame,
)

pytestmark = pytest.mark.asyncio


class KeepingReceiver(Receiver):
    """A receiver that keeps the messages it gets."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, bytes]] = []
        self.batches = asyncio.Queue[int]()

    def deliver(self, connection: VibeConnection, body: Body, now: float) -> None:
        self.messages.append((body.id, body.queue, body.payload))

    def delivered(self) -> None:
        self.batches.put_nowait(len(self.messages))


@asynccontextmanager
async def connected(
    peer: Peer,
    options: Options | None = None,
    receiver: Receiver | None = None,
    url: str | None = None,
) -> AsyncIterator[VibeConnection]:
    connection = await dial(
        VibeConnection,
        parse(url or peer.url),
        options or Options(),
        receiver or Receiver(),
        lambda _: None,
    )
    try:
        yield connection
    finally:
        await connection.close()


def post(message_id: str, payload: bytes = b"1") -> Post:
    body = messages.write_body(
        messages.PUBLISH, message_id, "orders", payload, with_errors=False
    )
    return Post(message_id, body)


@pytest.mark.parametrize(
    ("userinfo", "headers"),
    [
        (KEY, {"authToken": KEY}),
        ("ada:s:e%40cret", {"authUsername": USER, "authPassword": PASSWORD}),
    ],
)
async def test_connect_carries_a_token_or_a_user_with_a_password(
    userinfo: str, headers: dict[str, str]
) -> None:
    """One uncompressed Connect of dialect 1.1; by default it offers no compression.

    It asks for the time of each publish, which a broker that does not know that ignores.
    """
    async with Peer() as peer, connected(peer, url=f"vibe://{userinfo}@127.0.0.1:{peer.port}"):
        (connect,) = peer.lines[0].seen

        asked = headers | {"receipts": "timestamp"}
        assert (messages.CONNECT, asked) == (connect.type, connect.headers)


@pytest.mark.parametrize(
    ("code", "error"),
    [("AUTH_FAILED", AuthenticationFailed), ("SERVER_ERROR", ConnectionFailed)],
)
async def test_a_refused_connect_says_why(code: str, error: type[ConnectionFailed]) -> None:
    """Only AUTH_FAILED is an authentication error; the text never contains the key."""
    async with Peer() as peer:
        peer.refuse(messages.CONNECT, code)
        with pytest.raises(ConnectionFailed, match=f"{code} because") as caught:
            async with connected(peer):
                pass

        assert error is type(caught.value)
        assert KEY not in str(caught.value)


@pytest.mark.parametrize("offered", [True, False])
async def test_bodies_are_compressed_when_both_sides_want_it(offered: bool) -> None:
    """In both directions; without the option the client does not offer it."""
    receiver = KeepingReceiver()
    large = b'"' + b"".join(b"%d " % number for number in range(500)) * 50 + b'"'
    async with (
        Peer() as peer,
        connected(peer, Options(compression=offered), receiver) as connection,
    ):
        sent: list[int] = []
        peer.lines[0].answer(Body(), messages.DELIVER, large)
        await receiver.batches.get()
        write = connection.send

        def recording(*parts: bytes) -> None:
            sent.extend(map(len, parts))
            write(*parts)

        connection.send = recording  # type: ignore[method-assign] # to see what is sent
        await connection.post([post("m-1", large)]).done

        assert offered == ("supported-compression" in peer.lines[0].seen[0].headers)
        assert offered == (sent[0] < 10_000)
        assert [large] == peer.payloads()
        assert [large] == [payload for _, _, payload in receiver.messages]


async def test_answers_are_matched_to_requests_in_any_order() -> None:
    """They are matched by id."""
    async with Peer() as peer, connected(peer) as connection:
        peer.hold(messages.PUBLISH)
        first = connection.post([post("a"), post("b")])
        second = connection.post([post("c")])
        await peer.until(lambda: len(peer.held) == 3)
        for message_id in ("c", "b"):
            peer.lines[0].send(frame(messages.PUBLISH_ACK, message_id))
        await second.done

        assert not first.done.done()
        peer.lines[0].send(error_frame("a", "SERVER_ERROR", "queue full"))
        assert await first.done
        refused, stored = first.answers
        assert refused is not None
        assert stored is not None
        assert ("SERVER_ERROR", "queue full") == VibeConnection.refusal_of(refused)
        assert VibeConnection.refusal_of(stored) is None


async def test_a_broken_connection_fails_unanswered_requests() -> None:
    """Earlier answers are kept; later requests fail at once."""
    async with Peer() as peer, connected(peer) as connection:
        peer.hold(messages.PUBLISH)
        replies = connection.post([post("a"), post("b")])
        cancelled = connection.post([post("c")])
        cancelled.done.cancel()
        await peer.until(lambda: len(peer.held) == 3)
        peer.lines[0].send(frame(messages.PUBLISH_ACK, "a"))
        peer.lines[0].hang_up()

        assert not await replies.done
        assert [True, False] == [answer is not None for answer in replies.answers]
        assert not await connection.post([post("d")]).done
        assert await connection.post([]).done
        with pytest.raises(ConnectionLost):
            await connection.ask(asking(messages.LIST_QUEUES))


async def test_a_request_that_is_not_answered_ends_the_connection() -> None:
    """Even if the broker is alive otherwise: no request waits forever."""
    async with Peer() as peer:
        options = Options(answer_timeout=0.05, keepalive=0.01)
        async with connected(peer, options) as connection:
            peer.script(messages.LIST_QUEUES, ignore)
            with pytest.raises(ConnectionLost, match=r"no answer within 0.05 s"):
                await connection.ask(asking(messages.LIST_QUEUES))
            await peer.until(lambda: not peer.open_lines())


async def test_a_publish_may_stay_unanswered_while_the_broker_answers_pings() -> None:
    """A full queue blocks its publishers; the broker is not dead."""
    options = Options(answer_timeout=0.2, keepalive=60)
    async with Peer() as peer, connected(peer, options) as connection:
        peer.hold(messages.PUBLISH)
        replies = connection.post([post("a")])
        await peer.until(lambda: peer.count(messages.PING) >= 3)

        assert not connection.is_lost
        peer.release()
        assert await replies.done


async def test_new_requests_do_not_hide_unanswered_old_ones() -> None:
    """A publisher that never pauses still notices a dead broker."""
    async with Peer() as peer, connected(peer, Options(answer_timeout=0.05)) as connection:
        peer.script(messages.PUBLISH, ignore)
        peer.script(messages.PING, ignore)
        number = 0
        async with asyncio.timeout(10):
            while not connection.is_lost:
                number += 1
                connection.post([post(str(number))])
                await asyncio.sleep(0)

        assert "no answer within" in str(connection.lost())


async def test_closing_sends_a_disconnect() -> None:
    """The broker then requeues unacknowledged messages without counting an attempt."""
    async with Peer() as peer:
        async with connected(peer):
            pass
        await peer.until(lambda: not peer.open_lines())

        assert messages.DISCONNECT == peer.lines[0].types()[-1]


async def test_a_disconnect_from_the_broker_ends_the_connection() -> None:
    """Whichever side closes the socket first."""
    async with Peer() as peer, connected(peer) as connection:
        peer.script(messages.PING, lambda line, _: line.send(frame(messages.DISCONNECT, "x")))

        assert not await connection.fence()[1]
        assert connection.ended_by_peer
        assert "the broker disconnected" in str(connection.lost())


@pytest.mark.parametrize(
    "noise",
    [
        bytes(5),
        b"\x00\x00\x00\x01\x07",
        (BODY_BYTES_MAX + 1).to_bytes(4, "big") + b"\x00",
        frames.encode(frames.DIALECT_1_1, b"\x01" * 20),
        frames.encode(frames.DIALECT_1_1, b"\x02\x0b\x00\x01x" + bytes(8)),
        frame(messages.PUBLISH, "x"),
        frame(messages.ACK, "x"),
    ],
    ids=["length", "flags", "size", "layout", "version", "publish", "ack"],
)
async def test_noise_ends_the_connection(noise: bytes) -> None:
    """The client hangs up on a broker that violates the protocol."""
    async with Peer() as peer, connected(peer) as connection:
        peer.hold(messages.PING)
        _, reached = connection.fence()
        await peer.until(lambda: peer.held)
        peer.lines[0].send(noise)

        assert not await reached
        assert "broke the protocol" in str(connection.lost())


@pytest.mark.parametrize("stray", ["0", "999", "x", "", "²", "1" * 100, 5000 * "9"])
async def test_a_stray_pong_confirms_nothing(stray: str) -> None:
    """A Pong answers only the Ping with the same id."""
    async with Peer() as peer, connected(peer) as connection:
        peer.hold(messages.PING)
        _, reached = connection.fence()
        await peer.until(lambda: peer.held)
        peer.lines[0].send(frame(messages.PONG, stray), frame(messages.PUBLISH_ACK, stray))
        await connection.ask(asking(messages.LIST_QUEUES))

        assert not reached.done()
        peer.release()
        assert await reached


async def test_a_refusal_without_a_waiter_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client swallows no answer of the broker."""
    async with Peer() as peer, connected(peer) as connection:
        peer.refuse(messages.ACK, "INVALID_MESSAGE", "odd")
        with caplog.at_level(logging.WARNING, "braidmq.client"):
            connection.tell(messages.ACK, "m-1", "orders", None)
            await connection.settle()

        assert ["refused by the broker: INVALID_MESSAGE odd"] == caplog.messages


async def test_deliveries_are_reassembled_from_any_segments() -> None:
    """Bytes that arrive one by one make the same messages."""
    receiver = KeepingReceiver()
    async with Peer() as peer:
        peer.fragments = True
        async with connected(peer, receiver=receiver) as connection:
            peer.lines[0].send(
                frame(messages.DELIVER, "a", "orders", b"1"),
                frame(messages.DELIVER, "b", "température"),
            )
            assert await connection.settle()

        assert [("a", "orders", b"1"), ("b", "température", b"")] == receiver.messages


async def test_a_delivery_may_have_more_headers_than_a_publish() -> None:
    """The broker adds its own to the hundred that a publisher may set."""
    receiver = KeepingReceiver()
    async with Peer() as peer, connected(peer, receiver=receiver):
        headers = {f"h{number}": "" for number in range(102)}
        peer.lines[0].send(frame(messages.DELIVER, "a", "orders", b"1", **headers))

        assert 1 == await receiver.batches.get()


async def test_a_delivery_on_a_publishing_connection_is_dropped() -> None:
    """Without a subscription there is no handler for it."""
    async with Peer() as peer, connected(peer) as connection:
        peer.lines[0].send(frame(messages.DELIVER, "a", "orders", b"1"))

        assert await connection.settle()


async def test_an_unrelated_error_in_the_handshake_fails_the_connection() -> None:
    """If the connection then breaks, the caller is not left waiting."""

    def refuse_and_die(line: Line, body: Body) -> None:
        line.send(error_frame("err-1", "INVALID_MESSAGE", "no"))
        die(line)

    async with Peer() as peer:
        peer.script(messages.CONNECT, refuse_and_die)
        with pytest.raises(ConnectionFailed):
            async with connected(peer):
                pass
