"""One Qumbed connection, on the client's side."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from braidmq.client.connection import Post
from braidmq.client.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ConnectionLost,
    InvalidArgument,
)
from braidmq.client.options import Options
from braidmq.client.qumbed.connection import (
    QumbedConnection,
    Receiver,
    open_connection,
    trust_of,
)
from braidmq.client.url import parse
from braidmq.wire.qumbed import frames, messages
from tests.unit.client.peer import die, hang_up, ignore
from tests.unit.client.qumbed.peer import (
    GATEWAY,
    GREETING,
    KEY,
    Peer,
    certificate,
)
from tests.unit.client.qumbed.people import BOB

pytestmark = pytest.mark.asyncio


class KeepingReceiver(Receiver):
    """A receiver that keeps the ids of its messages, and pauses after *pause_at* of them."""

    def __init__(self, pause_at: int = 0) -> None:
        self.ids: list[str] = []
        self.batches = asyncio.Queue[int]()
        self._pause_at = pause_at

    def deliver(self, connection: QumbedConnection, frame: messages.Message) -> None:
        self.ids.append(frame.id)
        if len(self.ids) == self._pause_at:
            connection.pause_reading()

    def delivered(self) -> None:
        self.batches.put_nowait(len(self.ids))

    async def until(self, count: int) -> None:
        while len(self.ids) < count:
            await self.batches.get()


@asynccontextmanager
async def connected(
    peer: Peer,
    options: Options | None = None,
    receiver: Receiver | None = None,
    url: str | None = None,
) -> AsyncIterator[QumbedConnection]:
    connection = await open_connection(
        parse(url or peer.url), options or Options(), receiver or Receiver(), lambda _: None
    )
    try:
        yield connection
    finally:
        await connection.close()


def post(message_id: str, payload: bytes = b"1") -> Post:
    return Post(message_id, messages.publish("orders", payload, frame_id=message_id))


def message(message_id: str) -> bytes:
    return messages.message(b'"orders"', b"sealed", bytes(32), message_id=message_id)


async def test_the_first_frame_carries_the_key() -> None:
    """It is a Discovery; the answer contains the gateway's public key."""
    async with Peer() as peer, connected(peer) as connection:
        (greeting,) = peer.lines[0].seen

        assert (messages.DISCOVERY, KEY) == (greeting.kind, greeting.key)
        assert GATEWAY.public_key == connection.gateway_key


async def test_without_a_key_none_is_sent() -> None:
    """A broker on the loopback interface may not require one."""
    pinned = certificate().fingerprint
    async with Peer() as peer:
        url = f"qumbed://127.0.0.1:{peer.port}?fingerprint={pinned}"
        async with connected(peer, url=url):
            assert [""] == [frame.key for frame in peer.lines[0].seen]


@pytest.mark.parametrize(
    ("code", "error"),
    [("UNAUTHORIZED", AuthenticationFailed), ("SERVER_ERROR", ConnectionFailed)],
)
async def test_a_refused_greeting_says_why(code: str, error: type[ConnectionFailed]) -> None:
    """Only UNAUTHORIZED is an authentication error; the text never contains the key."""
    async with Peer() as peer:
        peer.refuse(GREETING, code)
        with pytest.raises(ConnectionFailed, match=f"{code} because") as caught:
            async with connected(peer):
                pass

        assert error is type(caught.value)
        assert KEY not in str(caught.value)
        await peer.until(lambda: not peer.open_lines())


async def test_an_error_before_the_end_of_the_stream_is_reported() -> None:
    """The client reports the Error, not the end of the stream that follows it."""
    async with Peer() as peer:
        with pytest.raises(AuthenticationFailed, match="unknown key"):
            async with connected(peer, url=peer.url.replace(KEY, "other")):
                pass


async def test_a_greeting_with_a_wrong_answer_fails_the_connection() -> None:
    """The only valid answer to a Discovery is a Discovery."""
    async with Peer() as peer:
        peer.script(GREETING, lambda line, frame: line.send(messages.ack()))
        with pytest.raises(ConnectionFailed, match="did not answer as a broker does"):
            async with connected(peer):
                pass


async def test_a_wrong_fingerprint_is_refused() -> None:
    """The client does not send its key to a server with another certificate."""
    async with Peer() as peer:
        other = peer.url.replace(certificate().fingerprint, 64 * "0")
        with pytest.raises(ConnectionFailed, match="fingerprint is not the pinned one"):
            async with connected(peer, url=other):
                pass

        assert [] == peer.lines


async def test_a_broker_is_verified_by_an_authority_unless_insecure() -> None:
    """By default a self-signed certificate is refused."""
    async with Peer() as peer:
        url = peer.url.partition("?")[0]
        for options in (Options(ca_file=certificate().certificate), Options(insecure=True)):
            async with connected(peer, options, url=url):
                pass
        with pytest.raises(ConnectionFailed, match=r"self-signed.*fingerprint="):
            async with connected(peer, url=url):
                pass


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"qumbed://h?fingerprint={64 * '0'}", Options(insecure=True)),
        (f"qumbed://h?fingerprint={64 * '0'}", Options(ca_file=__file__)),
        ("qumbed://h", Options(ca_file=Path(__file__), insecure=True)),
    ],
)
async def test_only_one_way_to_verify_a_broker_may_be_given(url: str, options: Options) -> None:
    """With two, the weaker one would decide."""
    with pytest.raises(InvalidArgument, match="use only one of"):
        trust_of(parse(url), options)


async def test_a_missing_ca_file_is_reported() -> None:
    """Before the client connects."""
    with pytest.raises(InvalidArgument, match="nowhere is not a file"):
        trust_of(parse("qumbed://h"), Options(ca_file="nowhere"))


async def test_answers_are_matched_to_requests_by_order() -> None:
    """Acks, refusals and Discoveries answer the requests in turn."""
    async with Peer() as peer, connected(peer) as connection:
        peer.once(messages.PUBLISH, peer.refusing("RATE_LIMIT", "slow down"))
        replies = connection.post([post("a"), post("b")])
        fence = connection.fence()[1]

        assert await replies.done
        refused, stored = replies.answers
        assert refused is not None
        assert stored is not None
        assert ("RATE_LIMIT", "slow down") == QumbedConnection.refusal_of(refused)
        assert QumbedConnection.refusal_of(stored) is None
        assert await fence


async def test_messages_are_delivered_as_they_arrive() -> None:
    """Between answers, in batches as they were read."""
    receiver = KeepingReceiver()
    async with Peer() as peer, connected(peer, receiver=receiver) as connection:
        peer.lines[0].send(message("1"), message("2"))
        await receiver.until(2)
        peer.lines[0].send(message("3"))
        await connection.fence()[1]

        assert ["1", "2", "3"] == receiver.ids


async def test_reading_can_pause_in_the_middle_of_a_batch() -> None:
    """No further message or answer is processed until reading resumes."""
    receiver = KeepingReceiver(pause_at=2)
    async with Peer() as peer, connected(peer, receiver=receiver) as connection:
        fence = connection.fence()[1]
        peer.hold(messages.DISCOVERY)
        await peer.until(lambda: peer.held)
        peer.lines[0].send(*(message(str(number)) for number in range(5)))
        peer.release()
        await receiver.until(2)
        for _ in range(100):
            await asyncio.sleep(0)

        assert ["0", "1"] == receiver.ids
        assert connection.is_paused
        assert not fence.done()
        connection.resume_reading()
        connection.resume_reading()
        assert await fence
        assert ["0", "1", "2", "3", "4"] == receiver.ids


async def test_a_broker_waits_for_a_reader_that_pauses() -> None:
    """QUIC's flow control window bounds what is in flight."""
    receiver = KeepingReceiver(pause_at=1)
    large = messages.message(b'"orders"', bytes(60_000), bytes(32), message_id="7")
    async with Peer() as peer, connected(peer, receiver=receiver) as connection:
        for _ in range(50):
            peer.lines[0].send(large)
        await receiver.until(1)
        assert peer.listener is not None
        (carrier,) = peer.listener.carriers
        before = carrier.unsent_bytes
        assert before > 2_000_000
        connection.resume_reading()
        await receiver.until(50)

        assert 50 == len(receiver.ids)


async def test_messages_received_before_the_end_are_still_delivered() -> None:
    """Delivery has settled them, so the broker will not redeliver them."""
    receiver = KeepingReceiver(pause_at=1)
    async with Peer() as peer, connected(peer, receiver=receiver) as connection:
        peer.lines[0].send(*(message(str(number)) for number in range(3)))
        await receiver.until(1)
        peer.lines[0].die()
        await receiver.until(3)

        assert connection.is_lost


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        frames.encode(b"not JSON"),
        frames.encode(b'{"t":9}'),
        messages.publish("orders", b"1"),
        messages.ack("an answer to nothing"),
    ],
)
async def test_a_protocol_violation_ends_the_connection(bytes_sent: bytes) -> None:
    """The client ignores everything after it."""
    receiver = KeepingReceiver()
    async with Peer() as peer, connected(peer, receiver=receiver) as connection:
        peer.lines[0].send(bytes_sent, message("1"))
        await peer.until(lambda: not peer.open_lines())
        while not connection.is_lost:  # noqa: ASYNC110 - each turn lets the loss arrive
            await asyncio.sleep(0)

        assert "the broker broke the protocol" in str(connection.lost())
        assert not connection.ended_by_peer
        assert [] == receiver.ids


async def test_an_ack_for_another_message_confirms_nothing() -> None:
    """It does not answer what the client sent."""
    async with Peer() as peer, connected(peer) as connection:
        peer.script(messages.PUBLISH, lambda line, frame: line.send(messages.ack("other")))
        replies = connection.post([post("ours")])

        assert not await replies.done
        assert [None] == replies.answers
        assert "an Ack for another message" in str(connection.lost())


async def test_an_unrelated_error_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is not taken as the answer to a request."""
    async with Peer() as peer, connected(peer) as connection:
        with caplog.at_level(logging.WARNING, "braidmq.client"):
            peer.lines[0].send(messages.error("SERVER_ERROR", "shutting down"))
            assert await connection.fence()[1]

        assert ["refused by the broker: SERVER_ERROR shutting down"] == caplog.messages


@pytest.mark.parametrize("script", [die, hang_up])
async def test_a_lost_connection_fails_every_request(script: object) -> None:
    """Those in flight and those made afterwards."""
    async with Peer() as peer, connected(peer) as connection:
        peer.script(messages.PUBLISH, die if script is die else hang_up)
        replies = connection.post([post("a"), post("b")])

        assert not await replies.done
        assert not await connection.post([post("c")]).done
        assert not await connection.request(lambda number: b"").done
        with pytest.raises(ConnectionLost):
            await connection.ask(lambda number: b"")


async def test_a_request_that_is_not_answered_ends_the_connection() -> None:
    """Even if the broker is alive otherwise."""
    async with Peer() as peer, connected(peer, Options(answer_timeout=0.05)) as connection:
        peer.script(messages.SUBSCRIBE, ignore)
        with pytest.raises(ConnectionLost, match=r"no answer within 0.05 s"):
            await connection.ask(
                lambda number: messages.subscribe(
                    "orders", "", BOB.public_key, frame_id=str(number)
                )
            )


async def test_a_publish_may_stay_unanswered_while_the_broker_is_alive() -> None:
    """A broker that answers QUIC's PINGs is not dead, however long a publish takes."""
    async with Peer() as peer, connected(peer, Options(answer_timeout=1.0)) as connection:
        peer.hold(messages.PUBLISH)
        replies = connection.post([post("a")])
        loop = asyncio.get_running_loop()
        begin = loop.time()
        fence = connection.fence()[1]
        while loop.time() < begin + 2.5:  # far longer than `answer_timeout`
            await asyncio.wait([fence], timeout=0.05)

        assert not connection.is_lost
        peer.release()
        assert await replies.done
        assert await fence


async def test_a_broker_that_disappears_silently_is_noticed() -> None:
    """After `answer_timeout`, even while a publish waits for its answer."""
    async with Peer() as peer, connected(peer, Options(answer_timeout=0.1)) as connection:
        peer.hold(messages.PUBLISH)
        replies = connection.post([post("a")])
        await peer.until(lambda: peer.held)
        peer.vanish()

        assert not await replies.done
        assert "no answer within 0.1 s" in str(connection.lost())


async def test_a_killed_broker_is_noticed_at_once() -> None:
    """The kernel reports it, long before `answer_timeout`."""
    async with Peer() as peer, connected(peer, Options(answer_timeout=60.0)) as connection:
        peer.hold(messages.PUBLISH)
        replies = connection.post([post("a")])
        await peer.until(lambda: peer.held)
        peer.end()
        connection.post([post("b")])

        assert not await replies.done
        assert "nothing listens there" in str(connection.lost())


async def test_an_idle_connection_to_a_vanished_broker_ends() -> None:
    """QUIC notices by itself; the client sends no request."""
    lost = asyncio.Event()
    async with Peer() as peer:
        options = Options(keepalive=0.1, answer_timeout=0.2)
        connection = await open_connection(
            parse(peer.url), options, Receiver(), lambda _: lost.set()
        )
        peer.vanish()
        async with asyncio.timeout(10):
            await lost.wait()

        assert connection.is_lost
        assert [GREETING] == [peer.kind(frame) for frame in peer.lines[0].seen]
        await connection.close()


async def test_an_idle_connection_is_kept_alive() -> None:
    """By QUIC's own PINGs alone; the client sends no frame."""
    async with (
        Peer() as peer,
        connected(peer, Options(keepalive=0.1, answer_timeout=1.0)) as connection,
    ):
        loop = asyncio.get_running_loop()
        nothing, begin = loop.create_future(), loop.time()
        while loop.time() < begin + 2.5:  # far longer than `answer_timeout`
            assert await connection.settle()
            await asyncio.wait([nothing], timeout=0.1)

        assert not connection.is_lost
        assert 1 == len(peer.lines[0].seen)


async def test_settling_waits_for_every_answer() -> None:
    """One Discovery confirms all of them."""
    async with Peer() as peer, connected(peer) as connection:
        peer.hold(messages.PUBLISH)
        peer.hold(messages.DISCOVERY)
        replies = connection.post([post("a"), post("b")])
        settling = asyncio.create_task(connection.settle())
        await peer.until(lambda: len(peer.held) == 3)

        assert not settling.done()
        peer.release()
        assert await settling
        assert replies.done.result()


async def test_a_fence_is_reached_by_any_answer_to_it() -> None:
    """A broker that refuses the Discovery has read it, and everything before it."""
    async with Peer() as peer, connected(peer) as connection:
        peer.refuse(messages.DISCOVERY, "RATE_LIMIT")

        assert await connection.fence()[1]


async def test_frames_may_be_split_anywhere() -> None:
    """QUIC does not preserve frame boundaries."""
    receiver = KeepingReceiver()
    async with Peer() as peer, connected(peer, receiver=receiver):
        data = message("1") + message("2")
        for at in range(0, len(data), 7):
            peer.lines[0].send(data[at : at + 7])
            await asyncio.sleep(0)
        await receiver.until(2)

        assert ["1", "2"] == receiver.ids
