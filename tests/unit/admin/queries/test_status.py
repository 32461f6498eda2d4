"""The daemon as its pages show it: ready or why not, and the numbers."""

from pathlib import Path

import pytest

from braidmq.admin.http.refusals import UnavailableError
from braidmq.admin.queries.status import Status
from braidmq.base.errors import LogPoisonedError
from braidmq.broker import records
from braidmq.server.access.keys import KeyRing
from braidmq.server.config.config import BlipConfig, Config, VibeConfig
from braidmq.server.engine.recovery import recover
from braidmq.server.strands.blip.connection import BlipConnection
from braidmq.server.strands.listeners import Admission, TcpListener
from braidmq.testing.disk import FakeDisk
from braidmq.wire.vibe.queue_options import QueueOptions
from tests.integration.blip.peer import broker_at, connected
from tests.unit.server.by_hand import Hand


def status_of(hand: Hand | None) -> Status:
    config = Config(dev=True)
    disk = FakeDisk()
    status = Status(config, KeyRing([], dev=True), disk, now_us=lambda: 1)
    if hand is not None:
        status.engine = hand.engine
        status.wal = recover(disk, config, now_us=1, clock=lambda: 0.0).wal
    return status


@pytest.mark.asyncio
async def test_before_recovery_it_is_not_ready() -> None:
    """The pages answer during recovery, and say so; there are no numbers yet."""
    status = status_of(None)

    assert (False, "recovering the log") == _readiness(status)
    assert 0 == status.metrics().topics
    with pytest.raises(UnavailableError, match="recovering the log"):
        await status.queues.page(after="", limit=10, visible=lambda _: True)
    with pytest.raises(UnavailableError, match="recovering the log"):
        await status.letters.page(after="", limit=10, visible=lambda _: True)


def test_after_recovery_it_is_ready() -> None:
    """And says nothing more."""
    assert (True, "") == _readiness(status_of(Hand()))


def test_a_poisoned_log_is_not_ready() -> None:
    """Whoever balances load sends it elsewhere."""
    hand = Hand()
    hand.fail(LogPoisonedError("write", "Input/output error"))

    assert (False, "the log is poisoned") == _readiness(status_of(hand))


def test_a_broker_that_is_ending_is_not_ready() -> None:
    """The drain is seen at once."""
    hand = Hand()
    hand.engine.drain()

    assert (False, "shutting down") == _readiness(status_of(hand))


def test_cursors_are_shown_with_their_lag() -> None:
    """Who holds the log back is seen in the metrics, too."""
    hand = Hand()
    status = status_of(hand)
    hand.engine.broker.cursors.create("night", "ada", 1)
    assert status.wal is not None
    status.wal.append(3 * [bytes([records.UNSUBSCRIBE])])
    status.wal.commit(1)

    assert {"night": 3} == status.metrics().cursor_lag
    assert [("night", 3)] == [(cursor.name, cursor.lag) for cursor in status.cursors.all()]


def test_failed_keys_are_counted() -> None:
    """Every unknown key counts, under the strand it was shown to."""
    hand = Hand()
    status = status_of(hand)
    found = [status.principal("wrong"), status.principal("dev-key")]
    hand.engine.authentication_failures["vibe"] += 2

    assert [True, False] == [principal is None for principal in found]
    assert {
        "http": 1,
        "blip": 0,
        "vibe": 2,
        "qumbed": 0,
    } == status.metrics().authentication_failures


def test_refusals_are_those_of_all_strands() -> None:
    """Connections are shown by strand, refusals by reason."""
    limits = Config(dev=True).limits
    status = status_of(Hand())
    for strand, config in (("blip", BlipConfig(port=0)), ("vibe", VibeConfig(port=0))):
        listener = TcpListener(
            strand, config, limits, admission=Admission(limits), make=BlipConnection
        )
        listener.stop_accepting()
        listener.refused.update({"idle": 1, strand: 2})
        status.listeners.append(listener)
    values = status.metrics()

    assert {"blip": 0, "vibe": 0} == values.connections
    assert {"idle": 2, "blip": 2, "vibe": 2} == values.connections_refused


@pytest.mark.asyncio
async def test_the_overview_is_the_metrics(tmp_path: Path) -> None:
    """The same numbers, for a person."""
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        await peer.subscribe("t")
        await peer.publish("t", b"x", b"y")
        overview = broker.daemon.status.overview()

        assert (True, 1, 1, 2, 3) == (
            overview.ready,
            overview.topics,
            overview.subscriptions,
            overview.messages_published,
            overview.committed_id,
        )
        assert {"blip": 1, "vibe": 0, "qumbed": 0} == overview.connections


@pytest.mark.asyncio
async def test_messages_that_will_expire_are_counted() -> None:
    """Waiting and handed out, for each who is to get them; those that stay for ever are not."""
    async with (
        broker_at(delivery={"message_ttl_ms": 60_000}) as broker,
        connected(broker) as peer,
    ):
        status = broker.daemon.status
        await status.queues.create("lasting", QueueOptions())
        first = await peer.subscribe("t")
        for topic, qos in (("t", 1), ("t", 0), ("lasting", 1)):
            await peer.subscribe(topic, qos)
        before = status.metrics().expiration_heap_size
        await peer.publish("t", b"1", b"2")
        await peer.publish("lasting", b"3", b"4")
        await peer.poll(first)

        assert (0, 3 * 2) == (before, status.metrics().expiration_heap_size)
        assert 1 == status.metrics().messages_inflight


def _readiness(status: Status) -> tuple[bool, str]:
    readiness = status.readiness()
    return readiness.ready, readiness.reason


def test_listeners_with_tls_are_told(tmp_path: Path) -> None:
    """Whoever is led to one must know how to speak to it; QUIC is never without."""
    both = tmp_path / "both.pem"
    both.touch()
    config = Config(dev=True, blip=BlipConfig(tls_cert=both, tls_key=both))
    statuses = [
        Status(one, KeyRing([], dev=True), FakeDisk(), now_us=lambda: 1)
        for one in (Config(dev=True), config)
    ]

    assert [["qumbed"], ["qumbed", "blip"]] == [status.overview().tls for status in statuses]
