"""The fence: a PublishAck follows the commit, a Pong every earlier Publish and Ack."""

import shutil
import threading
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import broker_at, until
from tests.integration.vibe.peer import (
    ACK,
    CREATE_QUEUE,
    DELIVER,
    PING,
    PONG,
    PUBLISH,
    SUBSCRIBE,
    Peer,
    connected,
    core,
)

pytestmark = pytest.mark.asyncio


def uncommitted(running: RunningBroker) -> int:
    return len(core(running).outgoing.pending())


async def ids(peer: Peer, count: int) -> list[str]:
    return [(await peer.next()).id for _ in range(count)]


@pytest.mark.parametrize("kind", [PUBLISH, SUBSCRIBE, CREATE_QUEUE])
async def test_a_request_with_a_record_is_answered_after_its_commit(
    broker: RunningBroker, dialect: str, may_sync: threading.Event, kind: int
) -> None:
    """For a new queue, that of the queue's record."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        may_sync.clear()
        peer.send(peer.frame(kind, "m", "q"))
        await until(lambda: uncommitted(broker) > 0)
        assert PONG == (await other.ask(PING)).kind

        assert b"" == peer.unread
        may_sync.set()
        assert "m" == (await peer.next()).id


async def test_a_pong_waits_for_earlier_publishes(
    broker: RunningBroker, dialect: str, may_sync: threading.Event
) -> None:
    """For those of its own connection; others do not wait."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await peer.publish("q", b"0")
        may_sync.clear()
        peer.send(peer.frame(PUBLISH, "m", "q", b"1"), peer.frame(PING, "p"))
        await until(lambda: uncommitted(broker) > 0)
        assert PONG == (await other.ask(PING)).kind

        assert b"" == peer.unread
        may_sync.set()
        assert ["m", "p"] == await ids(peer, 2)


async def test_a_pong_waits_for_earlier_acks(
    broker: RunningBroker, dialect: str, may_sync: threading.Event
) -> None:
    """After the Pong the acknowledgement is durable."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await peer.publish("q", b"1", "m")
        await peer.subscribe("q")
        await peer.delivered()
        await peer.expect_silence()
        may_sync.clear()
        peer.send(peer.frame(ACK, "m"), peer.frame(PING, "p"))
        await until(lambda: uncommitted(broker) > 0)
        assert PONG == (await other.ask(PING)).kind

        assert b"" == peer.unread
        may_sync.set()
        assert ["p"] == await ids(peer, 1)


async def test_nothing_is_delivered_before_it_is_durable(
    broker: RunningBroker, dialect: str, may_sync: threading.Event
) -> None:
    """No consumer sees a message that a crash could still lose."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await other.subscribe("q")
        may_sync.clear()
        peer.send(peer.frame(PUBLISH, "m", "q", b"1"))
        await until(lambda: uncommitted(broker) > 0)
        assert PONG == (await other.ask(PING)).kind
        assert b"" == other.unread
        may_sync.set()

        assert b"1" == (await other.delivered()).payload


async def test_replies_keep_their_order_during_a_commit(
    broker: RunningBroker, dialect: str, may_sync: threading.Event
) -> None:
    """Replies that need no commit wait behind those that do."""
    async with connected(broker, dialect) as peer:
        await peer.create("q")
        may_sync.clear()
        wanted = ["m1", "bad", "p1", "m2", "info", "list", "p2", "sub", "unsub"]
        kinds = [PUBLISH, 77, PING, PUBLISH, 42, 43, PING, SUBSCRIBE, 24]
        peer.send(
            *(peer.frame(kind, one, "q") for kind, one in zip(kinds, wanted, strict=True))
        )
        await until(lambda: uncommitted(broker) > 0)
        assert b"" == peer.unread
        may_sync.set()
        got: list[str] = []
        while len(got) < len(wanted):
            answer = await peer.next()
            if answer.kind != DELIVER:
                got.append(answer.id)

        assert wanted == got


async def test_a_crash_after_a_pong_loses_nothing(tmp_path: Path, dialect: str) -> None:
    """Publish, CreateQueue and Ack before a Pong survive a crash."""
    running, crashed = tmp_path / "running", tmp_path / "crashed"
    clock = FakeClock()
    async with broker_at(running, clock) as broker, connected(broker, dialect) as peer:
        await peer.create("other", maxQueueSize=7)
        for number in range(3):
            await peer.publish("q", b"%d" % number, f"m{number}")
        await peer.subscribe("q")
        assert [b"0", b"1", b"2"] == await peer.payloads(3)
        peer.send(peer.frame(ACK, "m1"))
        await peer.publish("q", b"3")
        assert PONG == (await peer.ask(PING)).kind
        shutil.copytree(running, crashed)
    async with broker_at(crashed, clock) as broker, connected(broker, dialect) as peer:
        assert 7 == (await peer.info("other"))["maxSize"]
        await peer.subscribe("q")
        got = sorted(await peer.payloads(3))
        await peer.expect_silence()

        assert [b"0", b"2", b"3"] == got
