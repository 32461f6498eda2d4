"""The blocking facade."""

import asyncio
import queue
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import assert_type

import pytest

import braidmq
from braidmq.client import sync
from braidmq.client.subscription import Consumer
from braidmq.client.surface import Client
from braidmq.wire.blip import frames
from tests.unit.client.blip.peer import Peer
from tests.unit.client.peer import quick
from tests.unit.client.qumbed.peer import Peer as QumbedPeer
from tests.unit.client.qumbed.people import ALICE, BOB
from tests.unit.client.strands import AnyPeer, every_strand
from tests.unit.client.vibe.peer import Peer as VibePeer

SENT = [b"%d" % number for number in range(10)]
"""Fewer than any strand prefetches before it knows the handler's speed."""


@contextmanager
def serving(peer: AnyPeer) -> Iterator[sync.LoopThread]:
    """Run a peer in its own thread, as a separate broker would."""
    loop = sync.LoopThread()
    loop.run(peer.start())
    try:
        yield loop
    finally:
        loop.run(peer.stop())
        loop.stop()


class RemotePeer:
    """A peer in its own thread."""

    def __init__(self, peer: Peer, loop: sync.LoopThread) -> None:
        self.peer = peer
        self.loop = loop

    def until(self, what: str) -> None:
        """Wait until the named condition holds at the peer."""
        conditions = {
            "no connections": lambda: not self.peer.open_lines(),
            "held": lambda: self.peer.held,
            "credit": lambda: any(queue.credit for queue in self.peer.queues.values()),
        }
        self.loop.run(self.peer.until(conditions[what]))


@pytest.fixture
def remote() -> Iterator[RemotePeer]:
    peer = Peer()
    with serving(peer) as loop:
        yield RemotePeer(peer, loop)


def test_the_same_names_without_await(remote: RemotePeer) -> None:
    """Publish, subscribe, iterate and process, as in an asynchronous program."""
    with braidmq.sync.connect(remote.peer.url) as client:
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
        assert 3 == len(remote.peer.acked)
        assert braidmq.Stats(1, 2, 3, 4, 5) == client.stats()
        assert client.ping() > 0
        client.drain()
    remote.until("no connections")


def test_a_message_has_the_same_attributes(remote: RemotePeer) -> None:
    """Those of the asynchronous message; its methods raise the same errors."""
    with (
        braidmq.sync.connect(remote.peer.url) as client,
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
        assert [message.id] == remote.peer.acked


def test_an_exception_leaves_the_message_unacknowledged(remote: RemotePeer) -> None:
    """The exception reaches the caller."""
    with (
        braidmq.sync.connect(remote.peer.url) as client,
        client.subscribe("orders") as messages,
    ):
        client.publish("orders", b"1")
        with pytest.raises(ZeroDivisionError), next(messages).process():
            raise ZeroDivisionError
        messages.drain()

        assert [] == remote.peer.acked
        assert [] == list(messages)


def close_and_fail(client: sync.Client) -> None:
    client.close()
    raise ZeroDivisionError


@every_strand
def test_an_exception_is_not_masked_by_a_closed_client(strand: type[AnyPeer]) -> None:
    """The handler's own exception is what its caller must see."""
    peer = strand()
    with serving(peer) as loop, braidmq.sync.connect(peer.url) as client:
        messages = client.subscribe("orders").open()
        client.publish("orders", b"1")
        message = next(messages)
        with pytest.raises(ZeroDivisionError), message.process():
            close_and_fail(client)
        loop.run(peer.until(lambda: not peer.open_lines()))


def test_a_subscription_of_a_closed_client_is_closed_already(remote: RemotePeer) -> None:
    """Leaving it does nothing, and masks no exception."""
    client = braidmq.sync.connect(remote.peer.url)
    with pytest.raises(ZeroDivisionError), client.subscribe("orders") as messages:
        close_and_fail(client)
    messages.close()


def test_closing_from_another_thread_ends_iteration(remote: RemotePeer) -> None:
    """A thread that blocks in the iterator is released."""
    client = braidmq.sync.connect(remote.peer.url)
    messages = client.subscribe("orders").open()
    with ThreadPoolExecutor(1) as pool:
        iterating = pool.submit(lambda: list(messages))
        remote.until("credit")
        messages.close()

        assert [] == iterating.result(10)
    client.close()


def test_a_failed_connection_leaves_no_thread(remote: RemotePeer) -> None:
    """The blocking client raises the same error as the asynchronous one."""
    before = threading.active_count()
    with pytest.raises(braidmq.AuthenticationFailed):
        braidmq.sync.connect(remote.peer.url, key="wrong")
    with pytest.raises(braidmq.InvalidArgument):
        braidmq.sync.connect("qumbed://127.0.0.1", private_key="none")

    assert before == threading.active_count()


def test_a_closed_client_raises_closed_and_leaves_no_thread(remote: RemotePeer) -> None:
    """Closing again does nothing."""
    before = threading.active_count()
    client = braidmq.sync.connect(remote.peer.url)
    client.close()
    client.close()
    with pytest.raises(braidmq.Closed):
        client.publish("orders", b"1")

    assert before == threading.active_count()


def test_a_callback_that_calls_the_blocking_client_gets_an_error(remote: RemotePeer) -> None:
    """The call would deadlock: the callback runs on the loop that would have to answer."""
    caught: queue.Queue[BaseException] = queue.Queue()

    def careless(lost: braidmq.ConnectionLost) -> None:
        try:
            client.ping()
        except braidmq.ClientError as error:
            caught.put(error)

    options = quick(on_disconnect=careless)
    with braidmq.sync.connect(remote.peer.url, **options) as client:
        remote.loop.run(kill(remote.peer))

        assert "a callback must not call the blocking client" in str(caught.get(timeout=10))


async def kill(peer: Peer) -> None:
    for line in peer.open_lines():
        line.die()


def test_an_interrupt_ends_the_wait(remote: RemotePeer) -> None:
    """Ctrl-C reaches a program that blocks in a call, and cancels the call."""
    with braidmq.sync.connect(remote.peer.url) as client:
        remote.peer.hold(frames.PING)
        interrupter = threading.Thread(target=interrupt_when_held, args=(remote,))
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            client.publish("orders", b"1")
        interrupter.join()
        remote.loop.run(release(remote.peer))

        assert client.publish("orders", b"2").durable


def interrupt_when_held(remote: RemotePeer) -> None:
    remote.until("held")
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


async def release(peer: Peer) -> None:
    peer.release()


def test_work_left_in_the_loop_ends_with_it() -> None:
    """Stopping the loop cancels the tasks that still run; stopping again does nothing."""
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


def test_work_that_the_stop_interrupts_raises_closed() -> None:
    """The caller, in its own thread, is not left waiting."""
    loop = sync.LoopThread()
    began = threading.Event()

    async def endless() -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(loop.run, endless())
        assert began.wait(10)
        loop.stop()
        with pytest.raises(braidmq.Closed):
            waiting.result(10)


def test_work_that_comes_while_the_loop_stops_raises_closed() -> None:
    """Between the loop's last turn and its end nothing would run it."""
    loop = sync.LoopThread()
    stopping, tried = threading.Event(), threading.Event()

    async def linger() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:  # cancelled by the stop: the loop's last turns
            stopping.set()
            tried.wait(10)

    async def begin() -> None:
        lingering.append(asyncio.create_task(linger()))
        await asyncio.sleep(0)

    async def nothing() -> None:
        pass

    def late() -> None:
        assert stopping.wait(10)
        try:
            loop.run(nothing())
        finally:
            tried.set()

    lingering: list[asyncio.Task[None]] = []
    loop.run(begin())
    with ThreadPoolExecutor(2) as pool:
        trying = pool.submit(late)
        pool.submit(loop.stop).result(20)
        with pytest.raises(braidmq.Closed):
            trying.result(10)


def test_calls_that_race_with_the_stop_return_or_raise_closed() -> None:
    """Each of them ends."""

    async def nothing() -> None:
        pass

    def call_until_closed(loop: sync.LoopThread) -> bool:
        while True:
            try:
                loop.run(nothing())
            except braidmq.Closed:
                return True

    with ThreadPoolExecutor(5) as pool:
        for _ in range(50):
            loop = sync.LoopThread()
            callers = [pool.submit(call_until_closed, loop) for _ in range(4)]
            loop.stop()

            assert [True] * 4 == [caller.result(10) for caller in callers]


def test_the_facade_wraps_the_surface_and_no_strand() -> None:
    """So it works over every strand."""
    (base,) = sync.Client.__orig_bases__  # type: ignore[attr-defined] # typing's own
    assert (Client,) == base.__args__


def test_the_facade_has_the_types_of_the_surface(remote: RemotePeer) -> None:
    """Checked by mypy, which runs over this file."""
    with (
        braidmq.sync.connect(remote.peer.url) as client,
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

        assert (b"1", remote.peer.acked) == (message.payload, [message.id])


def test_queues_without_await() -> None:
    """Declare, inspect, list and delete: the same names, over a strand with queues."""
    peer = VibePeer()
    with (
        serving(peer),
        braidmq.sync.connect(peer.url) as client,
        client.subscribe("orders") as messages,
    ):
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


def test_sealed_messages_without_await() -> None:
    """Options of publish and subscribe, the sender, and the count of refused messages."""
    peer = QumbedPeer()
    with (
        serving(peer),
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


def fill(peer: AnyPeer, loop: sync.LoopThread, messages: sync.Subscription) -> bytes:
    """Have the iterator bring over all of SENT at once; return what it hands out first."""
    inner = messages._inner  # noqa: SLF001 - only it says how many messages are here
    assert isinstance(inner, Consumer)

    async def offer() -> None:
        peer.offer("orders", *SENT)

    async def arrival() -> None:
        async with asyncio.timeout(10):
            while inner.waiting < len(SENT):  # noqa: ASYNC110 - each turn lets them arrive
                await asyncio.sleep(0)

    loop.run(offer())
    messages._loop.run(arrival())  # noqa: SLF001 - the client's own thread
    return next(messages).payload


def test_draining_hands_out_what_cannot_go_back() -> None:
    """On Qumbed a message that is here is settled: the broker would not deliver it again."""
    peer = QumbedPeer()
    with (
        serving(peer) as loop,
        braidmq.sync.connect(peer.url) as client,
        client.subscribe("orders") as messages,
    ):
        first = fill(peer, loop, messages)
        messages.drain()

        assert SENT == [first] + [message.payload for message in messages]


def test_draining_gives_back_what_the_broker_redelivers() -> None:
    """Iterating ends at once, also for the messages that were brought over together."""
    peer = VibePeer()
    with serving(peer) as loop, braidmq.sync.connect(peer.url) as client:
        with client.subscribe("orders") as messages:
            first = fill(peer, loop, messages)
            messages.drain()

            assert [] == list(messages)
        with client.subscribe("orders") as again:
            assert first == next(again).payload


@pytest.mark.parametrize("strand", [VibePeer, QumbedPeer], ids=["vibe", "qumbed"])
def test_fetching_after_iterating_skips_nothing(strand: type[AnyPeer]) -> None:
    """Messages that the iterator brought over and did not hand out are waiting, too."""
    peer = strand()
    with (
        serving(peer) as loop,
        braidmq.sync.connect(peer.url) as client,
        client.subscribe("orders") as messages,
    ):
        first = fill(peer, loop, messages)
        some = messages.fetch(max=5, timeout=0)
        rest = messages.fetch(max=100, timeout=0)

        assert SENT == [first] + [message.payload for message in some + rest]
        assert 5 == len(some)
        with pytest.raises(braidmq.InvalidArgument, match="max must be at least 1"):
            messages.fetch(max=0)
