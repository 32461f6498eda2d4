"""The blocking facade."""

import asyncio
import queue
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, assert_type

import pytest

import braidmq
from braidmq.client import sync
from braidmq.client.surface import Client
from braidmq.wire.blip import frames
from tests.unit.client.blip.peer import Peer
from tests.unit.client.peer import quick
from tests.unit.client.qumbed.peer import Peer as QumbedPeer
from tests.unit.client.qumbed.people import ALICE, BOB
from tests.unit.client.vibe.peer import Peer as VibePeer


class Elsewhere:
    """A peer that runs in a thread of its own, as a broker would."""

    def __init__(self) -> None:
        self.loop = sync.LoopThread()
        self.peer = self.loop.run(self._start())

    async def _start(self) -> Peer:
        peer = Peer()
        await peer.start()
        return peer

    def until(self, what: str) -> None:
        """Wait until the peer has seen something."""
        conditions = {
            "nobody": lambda: not self.peer.open_lines(),
            "held": lambda: self.peer.held,
            "credit": lambda: any(queue.credit for queue in self.peer.queues.values()),
        }
        self.loop.run(self.peer.until(conditions[what]))


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    elsewhere = Elsewhere()
    yield elsewhere
    elsewhere.loop.run(elsewhere.peer.stop())
    elsewhere.loop.stop()


def test_the_same_names_without_await(elsewhere: Elsewhere) -> None:
    """Publish, subscribe, iterate, process: as in an asynchronous program."""
    with braidmq.sync.connect(elsewhere.peer.url) as client:
        with client.subscribe("orders") as messages:
            assert client.publish("orders", b"0").durable
            assert 2 == len(client.publish_many("orders", [b"1", b"2"]))
            seen = []
            for message in messages:
                with message.process() as same:
                    assert message is same
                    seen.append(message.payload)
                if len(seen) == 3:
                    break
            assert ("orders", 1) == (messages.topic, messages.qos)
            assert messages.subscription_id > 0

        assert [b"0", b"1", b"2"] == seen
        assert 3 == len(elsewhere.peer.acked)
        assert braidmq.Stats(1, 2, 3, 4, 5) == client.stats()
        assert client.ping() > 0
        client.drain()
    elsewhere.until("nobody")


def test_a_message_says_the_same(elsewhere: Elsewhere) -> None:
    """All that the asynchronous message says, and the same errors."""
    with (
        braidmq.sync.connect(elsewhere.peer.url) as client,
        client.subscribe("orders") as messages,
    ):
        client.publish("orders", b"1")
        (message,) = messages.fetch(max=1, timeout=10)

        assert ("orders", b"1", 1) == (message.topic, message.payload, message.qos)
        assert (None, {}) == (message.attempt, dict(message.headers))
        assert f"id={message.id}" in repr(message)
        with pytest.raises(braidmq.NotSupported):
            message.nack()
        message.ack(confirmed=True)
        assert [message.id] == elsewhere.peer.acked


def test_an_exception_leaves_the_message_unacknowledged(elsewhere: Elsewhere) -> None:
    """It goes on to the caller."""
    with (
        braidmq.sync.connect(elsewhere.peer.url) as client,
        client.subscribe("orders") as messages,
    ):
        client.publish("orders", b"1")
        with pytest.raises(ZeroDivisionError), next(messages).process():
            raise ZeroDivisionError
        messages.drain()

        assert [] == elsewhere.peer.acked
        assert [] == list(messages)


def test_closing_from_another_thread_ends_iteration(elsewhere: Elsewhere) -> None:
    """Whoever blocks in an iterator is released."""
    client = braidmq.sync.connect(elsewhere.peer.url)
    messages = client.subscribe("orders").open()
    with ThreadPoolExecutor(1) as pool:
        iterating = pool.submit(lambda: list(messages))
        elsewhere.until("credit")
        messages.close()

        assert [] == iterating.result(10)
    client.close()


def test_a_failed_connection_leaves_no_thread(elsewhere: Elsewhere) -> None:
    """The error is the asynchronous one."""
    before = threading.active_count()
    with pytest.raises(braidmq.AuthenticationFailed):
        braidmq.sync.connect(elsewhere.peer.url, key="wrong")
    with pytest.raises(braidmq.InvalidArgument):
        braidmq.sync.connect("qumbed://127.0.0.1", private_key="none")

    assert before == threading.active_count()


def test_a_closed_client_says_so_and_leaves_no_thread(elsewhere: Elsewhere) -> None:
    """Closing again does nothing."""
    before = threading.active_count()
    client = braidmq.sync.connect(elsewhere.peer.url)
    client.close()
    client.close()
    with pytest.raises(braidmq.Closed):
        client.publish("orders", b"1")

    assert before == threading.active_count()


def test_a_callback_that_waits_for_its_own_loop_is_told(elsewhere: Elsewhere) -> None:
    """It would wait for ever."""
    caught: queue.Queue[BaseException] = queue.Queue()

    def careless(lost: braidmq.ConnectionLost) -> None:
        try:
            client.ping()
        except braidmq.ClientError as error:
            caught.put(error)

    options = quick(on_disconnect=careless)
    with braidmq.sync.connect(elsewhere.peer.url, **options) as client:
        elsewhere.loop.run(kill(elsewhere.peer))

        assert "a callback must not call the blocking client" in str(caught.get(timeout=10))


async def kill(peer: Peer) -> None:
    for line in peer.open_lines():
        line.die()


def test_an_interrupt_ends_the_wait(elsewhere: Elsewhere) -> None:
    """Ctrl-C reaches a program that blocks in a call, and the call is given up."""
    with braidmq.sync.connect(elsewhere.peer.url) as client:
        elsewhere.peer.hold(frames.PING)
        interrupter = threading.Thread(target=interrupt_when_held, args=(elsewhere,))
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            client.publish("orders", b"1")
        interrupter.join()
        elsewhere.loop.run(release(elsewhere.peer))

        assert client.publish("orders", b"2").durable


def interrupt_when_held(elsewhere: Elsewhere) -> None:
    elsewhere.until("held")
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


async def release(peer: Peer) -> None:
    peer.release()


def test_work_left_in_the_loop_ends_with_it() -> None:
    """Stopping cancels what still runs, and again does nothing."""
    loop = sync.LoopThread()
    ended = threading.Event()

    async def linger() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    async def begin() -> None:
        lingering.append(asyncio.create_task(linger()))
        await asyncio.sleep(0)

    lingering: list[asyncio.Task[None]] = []
    loop.run(begin())
    loop.stop()
    loop.stop()

    assert ended.is_set()


def test_the_facade_is_over_any_strand() -> None:
    """It knows the surface only."""
    (base,) = sync.Client.__orig_bases__  # type: ignore[attr-defined] # typing's own
    assert (Client,) == base.__args__


def test_the_types_of_the_facade_are_those_of_the_surface(elsewhere: Elsewhere) -> None:
    """A type checker sees what the asynchronous surface says; this file is checked."""
    with (
        braidmq.sync.connect(elsewhere.peer.url) as client,
        client.subscribe("orders") as messages,
    ):
        assert_type(client.publish("orders", b"1", qos=1), braidmq.Receipt)
        assert_type(
            client.publish_many("orders", []), list[braidmq.Receipt | braidmq.PublishError]
        )
        assert_type(messages, sync.Subscription)
        (message,) = assert_type(messages.fetch(max=1, timeout=10), list[sync.Message])
        assert_type(message.payload, bytes)
        assert_type(message.id, int | str | None)
        assert_type(message.headers, Mapping[str, str])
        assert_type(message.ack(confirmed=True), None)

        assert (b"1", elsewhere.peer.acked) == (message.payload, [message.id])


def test_queues_without_await() -> None:
    """Declare, ask, list, delete: the same names, over a strand that has queues."""
    loop = sync.LoopThread()
    peer = loop.run(start(VibePeer()))
    with braidmq.sync.connect(peer.url) as client, client.subscribe("orders") as messages:
        declared = client.declare_queue("jobs", mode="priority_based", ttl=1.5, max_size=7)
        client.publish("orders", b"1", headers={"a": "b"}, priority=braidmq.Priority.HIGH)
        (message,) = messages.fetch(timeout=10)
        message.nack(dead_letter=True)
        messages.drain()

        assert ("PriorityBased", 1.5, 7) == (declared.mode, declared.ttl, declared.max_size)
        assert declared == client.queue_info("jobs")
        assert ["jobs", "orders"] == client.list_queues()
        assert (1, "b") == (message.attempt, message.headers["a"])
        assert isinstance(message.id, str)
        assert ["reject"] == [body.headers["result"] for body in peer.acked]
        client.delete_queue("jobs")
        assert client.queue_info("jobs") is None
    loop.run(peer.stop())
    loop.stop()


def test_sealed_messages_without_await() -> None:
    """The options of publish and subscribe, the sender, and what was refused."""
    loop = sync.LoopThread()
    peer = loop.run(start(QumbedPeer()))
    with (
        braidmq.sync.connect(peer.url, private_key=ALICE) as alice,
        braidmq.sync.connect(peer.url, private_key=BOB, trust=ALICE.public_key) as bob,
        bob.subscribe("orders", schema="control.Command", envelope=True) as messages,
    ):
        recipient = BOB.public_key.hex()
        alice.publish("orders", b'{"action": "on"}')
        receipt = alice.publish(
            "orders",
            b'{"action": "on"}',
            recipient=recipient,
            schema="control.Command",
            envelope=True,
        )
        many = alice.publish_many(
            "orders",
            [b'{"action": "off"}', b"{}"],
            recipient=recipient,
            schema="control.Command",
            envelope=True,
        )
        first, second = next(messages), next(messages)
        first.ack(confirmed=True)

        assert 1 == receipt.delivered
        assert [braidmq.Receipt, braidmq.NotSent] == [type(one) for one in many]
        assert [b'{"action": "on"}', b'{"action": "off"}'] == [first.payload, second.payload]
        assert (ALICE.public_key, False, "control.Command") == (
            first.sender,
            first.sealed_by_gateway,
            first.schema,
        )
        assert {"untrusted": 1} == messages.refused
    loop.run(peer.stop())
    loop.stop()


P = TypeVar("P", VibePeer, QumbedPeer)


async def start(peer: P) -> P:
    await peer.start()
    return peer
