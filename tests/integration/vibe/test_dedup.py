"""dedupId: a duplicate is acknowledged and not stored again."""

import threading
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import broker_at, until
from tests.integration.vibe.peer import PUBLISH, PUBLISH_ACK, connected, core, stats

pytestmark = pytest.mark.asyncio


async def test_a_duplicate_is_acknowledged_and_not_stored(
    broker: RunningBroker, dialect: str
) -> None:
    """Under its own id, whatever its payload, on any connection."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await peer.publish("q", b"1", "m1", dedupId="d")
        await peer.publish("q", b"2", "m2", dedupId="d")
        await other.publish("q", b"3", "m3", dedupId="d")
        assert (1, 0) == await peer.counts("q")
        await peer.subscribe("q")
        got = await peer.delivered()

        assert ("m1", b"1", "d") == (got.id, got.payload, got.headers["dedupId"])
        await peer.settle("m1")
        await peer.publish("q", b"4", dedupId="d")
        await peer.expect_silence()
        assert 3 == stats(broker).duplicates


async def test_dedup_ids_are_scoped_to_a_queue(broker: RunningBroker, dialect: str) -> None:
    """In another queue the same dedupId is a new message; an empty one always is."""
    async with connected(broker, dialect) as peer:
        await peer.publish("a", b"1", dedupId="d")
        await peer.publish("b", b"1", dedupId="d")
        await peer.publish("b", b"2", dedupId="")
        await peer.publish("b", b"3", dedupId="")

        assert [(1, 0), (3, 0)] == [await peer.counts("a"), await peer.counts("b")]


@pytest.mark.parametrize("restarts", [False, True])
async def test_dedup_ids_are_remembered_for_a_window(
    tmp_path: Path, dialect: str, restarts: bool
) -> None:
    """delivery.dedup_window_s, 120 s by default, across restarts."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        await peer.publish("q", b"1", dedupId="d")
        if not restarts:
            clock.advance(119)
            await peer.publish("q", b"2", dedupId="d")
            assert (1, 0) == await peer.counts("q")
            clock.advance(1)
            await peer.publish("q", b"3", dedupId="d")
            assert (2, 0) == await peer.counts("q")
            return
    clock.advance(119)
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        await peer.publish("q", b"2", dedupId="d")
        assert (1, 0) == await peer.counts("q")
        clock.advance(1)
        await peer.publish("q", b"3", dedupId="d")

        assert (2, 0) == await peer.counts("q")


async def test_the_answer_to_a_duplicate_waits_for_the_commit_of_the_first(
    broker: RunningBroker, dialect: str, may_sync: threading.Event
) -> None:
    """Otherwise the broker would acknowledge a message that is not durable yet."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await peer.create("q")
        may_sync.clear()
        peer.send(peer.frame(PUBLISH, "m1", "q", b"1", {"dedupId": "d"}))
        await until(core(broker).outgoing.pending)
        other.send(other.frame(PUBLISH, "m2", "q", b"1", {"dedupId": "d"}))
        await until(lambda: stats(broker).duplicates == 1)
        assert b"" == other.unread
        may_sync.set()

        assert PUBLISH_ACK == (await other.next()).kind
        assert PUBLISH_ACK == (await peer.next()).kind


async def test_a_refused_publish_is_not_remembered(broker: RunningBroker, dialect: str) -> None:
    """The publisher may retry it, and then it is stored."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", maxQueueSize=1, overflowStrategy="DropNewest")
        await peer.publish("q", b"0", "m0")
        for _ in range(2):
            refused = await peer.ask(PUBLISH, "q", b"1", {"dedupId": "d"})
            assert "SERVER_ERROR" == refused.error_code
        await peer.subscribe("q", 1)
        await peer.delivered()
        await peer.publish("q", b"1", dedupId="d")

        assert (1, 1) == await peer.counts("q")


@pytest.mark.parametrize("strategy", ["DropNewest", "BlockPublisher", "RedirectToDlq"])
async def test_a_duplicate_needs_no_room(
    broker: RunningBroker, dialect: str, strategy: str
) -> None:
    """The broker acknowledges it, however full the queue is."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", maxQueueSize=1, overflowStrategy=strategy)
        await peer.publish("q", b"0", dedupId="d")
        await peer.publish("q", b"0", dedupId="d")

        assert (1, 0) == await peer.counts("q")
        assert ["q"] == await peer.names()
