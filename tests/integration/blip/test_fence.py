"""The fence: a PONG means that everything before it is durable; which frames overtake it."""

import shutil
import threading
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import (
    STATS,
    ack,
    broker_at,
    connected,
    frame,
    nack,
    not_found,
    ping,
    poll,
    pong,
    publish,
    subscribe,
    unsubscribe,
    until,
)

pytestmark = pytest.mark.asyncio


def uncommitted(broker: RunningBroker) -> int:
    engine = broker.daemon.status.engine
    assert engine is not None
    return len(engine.broker.outgoing.pending())


def in_flight(broker: RunningBroker) -> int:
    return broker.daemon.status.metrics().messages_inflight


async def test_pong_waits_for_the_commit(may_sync: threading.Event) -> None:
    """It waits for every earlier PUBLISH of its connection; other connections do not wait."""
    async with (
        broker_at() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        may_sync.clear()
        peer.send(publish(1, "t", b"x"), ping(2))
        await until(lambda: uncommitted(broker) == 1)
        await other.expect_silence()

        assert b"" == peer.unread
        may_sync.set()
        await peer.expect(pong(2))


async def test_nothing_is_delivered_before_it_is_durable(may_sync: threading.Event) -> None:
    """No consumer sees a message that a crash could still lose."""
    async with (
        broker_at() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        subscription = await other.subscribe("t")
        may_sync.clear()
        peer.send(publish(1, "t", b"x"))
        await until(lambda: uncommitted(broker) == 1)

        assert None is await other.poll(subscription)
        may_sync.set()
        await peer.expect_silence()
        assert b"x" == (await other.take(subscription))[1]


async def test_only_publish_and_ack_are_handled_while_a_pong_waits(
    may_sync: threading.Event,
) -> None:
    """The broker accepts a later PUBLISH or ACK; every other frame waits its turn."""
    async with (
        broker_at() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"one")
        tag, _ = await peer.take(subscription)
        may_sync.clear()
        peer.send(publish(1, "t", b"two"), ping(2))
        await until(lambda: uncommitted(broker) > 0)
        before = uncommitted(broker)
        peer.send(
            ack(tag, subscription),
            publish(3, "t", b"three"),
            publish(4, "", b"refused"),
            ping(5),
            poll(6, subscription),
            subscribe(7, "t"),
            publish(8, "t", b"four"),
        )
        await until(lambda: in_flight(broker) == 0 and uncommitted(broker) > before)
        await other.expect_silence()

        assert b"" == peer.unread
        may_sync.set()
        await peer.expect(pong(2), nack(4, 400, "empty topic"), pong(5))
        await peer.expect(publish(tag + 1, "t", b"two"))
        answer = await peer.next()
        assert 7 == answer.correlation_id
        await peer.expect_silence()
        assert b"three" == (await peer.take(subscription))[1]
        assert b"four" == (await peer.take(int.from_bytes(answer.payload, "big")))[1]


async def test_subscribe_is_acknowledged_after_its_commit(may_sync: threading.Event) -> None:
    """The ACK with the new id follows the commit of the subscription's record."""
    async with (
        broker_at() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        may_sync.clear()
        peer.send(subscribe(1, "t", 0))
        await until(lambda: uncommitted(broker) == 1)
        await other.expect_silence()

        assert b"" == peer.unread
        may_sync.set()
        await peer.expect(ack(1, 1))


async def test_a_bad_frame_behind_a_waiting_pong_does_not_suppress_it(
    may_sync: threading.Event,
) -> None:
    """The broker closes the connection after the PONG, not instead of it."""
    async with broker_at() as broker, connected(broker) as peer:
        may_sync.clear()
        peer.send(publish(1, "t", b"x"), ping(2), b"\x00\x00\x00\x00")
        await until(lambda: uncommitted(broker) == 1)
        may_sync.set()
        await peer.expect(pong(2))
        await peer.expect_close()


async def test_a_half_close_behind_a_waiting_pong_does_not_suppress_replies(
    may_sync: threading.Event,
) -> None:
    """Everything waiting for the log at half-close is answered: PING, POLL, SUBSCRIBE."""
    async with broker_at() as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        may_sync.clear()
        peer.send(publish(1, "t", b"x"), ping(2), poll(3, subscription), subscribe(4, "t"))
        peer.finish()
        await until(lambda: uncommitted(broker) == 1)
        may_sync.set()
        await peer.expect(pong(2), publish(2, "t", b"x"), ack(4, 3))
        await peer.expect_close()


async def test_a_fence_does_not_wait_for_other_connections(may_sync: threading.Event) -> None:
    """PING concerns its own connection's frames; STATS and POLL need no commit either."""
    async with (
        broker_at() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        may_sync.clear()
        peer.send(*(publish(1, "t", b"x") for _ in range(100)))
        await until(lambda: uncommitted(broker) == 100)
        other.send(ping(1), frame(STATS, 2), poll(3, 77), ping(4))
        await other.expect(pong(1))
        assert 2 == (await other.next()).correlation_id
        await other.expect(not_found(3), pong(4))
        may_sync.set()
        await peer.expect_silence()


async def test_a_message_is_kept_when_its_publisher_disconnects(
    may_sync: threading.Event,
) -> None:
    """A complete durable PUBLISH is kept even if its fence is never answered."""
    async with (
        broker_at() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        subscription = await other.subscribe("t")
        may_sync.clear()
        peer.send(publish(1, "t", b"last words"), ping(2))
        await until(lambda: uncommitted(broker) == 1)
        await peer.leave()
        may_sync.set()
        await until(lambda: uncommitted(broker) == 0)

        assert b"last words" == (await other.take(subscription))[1]


async def test_a_crash_after_a_pong_loses_nothing(tmp_path: Path) -> None:
    """PUBLISH, SUBSCRIBE, ACK and UNSUBSCRIBE before a PONG survive a crash."""
    running, crashed = tmp_path / "running", tmp_path / "crashed"
    async with broker_at(running) as broker, connected(broker) as peer:
        kept = await peer.subscribe("t")
        ended = await peer.subscribe("t")
        await peer.publish("t", b"acknowledged", b"open", b"waiting")
        first, _ = await peer.take(kept)
        second, _ = await peer.take(kept)
        peer.send(ack(first, kept), unsubscribe(5, ended), publish(6, "t", b"last"), ping(7))
        await peer.expect(ack(5, ended), pong(7))
        shutil.copytree(running, crashed)
    async with broker_at(crashed) as broker, connected(broker) as peer:
        assert (second, b"open") == await peer.take(kept)
        assert b"waiting" == (await peer.take(kept))[1]
        assert b"last" == (await peer.take(kept))[1]
        peer.send(ack(first, kept), poll(8, ended))
        await peer.expect(not_found(first), not_found(8))


async def test_a_pong_covers_an_ack_of_another_connections_delivery(tmp_path: Path) -> None:
    """The fence covers this connection's frames, whichever connection got the message."""
    running, crashed = tmp_path / "running", tmp_path / "crashed"
    async with (
        broker_at(running) as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"x")
        tag, _ = await peer.take(subscription)
        await other.acknowledge(subscription, tag)
        shutil.copytree(running, crashed)
    async with broker_at(crashed) as broker, connected(broker) as peer:
        assert None is await peer.poll(subscription)
