"""The broker's counters."""

from braidmq.broker.broker import UNKNOWN
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from tests.unit.broker.drive import START_US, Drive, S


def test_counters_start_at_zero() -> None:
    """They are not restored after a restart."""
    stats = Stats()

    assert 13 * [0] == [
        stats.published,
        stats.published_bytes,
        stats.delivered,
        stats.acknowledged,
        stats.redelivered,
        stats.dead_lettered,
        stats.expired,
        stats.dropped.overflow,
        stats.refused,
        stats.duplicates,
        stats.unsubscribed,
        stats.leases_ended,
        stats.dropped.retention,
    ]


def test_every_message_end_is_counted_by_reason() -> None:
    """A message is acknowledged, expired, dead-lettered, dropped or refused."""
    drive = Drive(Settings(max_retries=1, window=3))
    consumer = drive.subscribe("a")
    acknowledged, dead, expiring = (
        drive.publish("a"),
        drive.publish("a"),
        drive.publish("a", ttl_us=5),
    )
    drive.commit()
    drive.poll_ids(consumer, 3)
    drive.ack(consumer, acknowledged)
    drive.now_us += 5

    assert UNKNOWN == drive.ack(consumer, expiring)
    drive.disconnect(consumer)
    drive.commit()
    for _ in range(5):
        drive.publish("a", qos=0)
    drive.publish("a")
    drive.refuse()
    stats = drive.broker.stats

    assert [dead] == [letter.settles_id for letter in drive.dead_letters("dlq.a")]
    assert (1, 1, 1) == (stats.acknowledged, stats.expired, stats.dead_lettered)
    assert (2, 1) == (stats.dropped.overflow, stats.refused)
    assert (9, 3, 0) == (stats.published, stats.delivered, stats.redelivered)
    assert 8 * len(b"\0\1ax") + len(b"\0\5dlq.ax") == stats.published_bytes


def test_subscription_ends_are_counted_by_reason() -> None:
    """A subscription ends on request, or when its lease runs out."""
    drive = Drive(Settings(lease_us=60 * S))
    drive.subscribe("a")
    drive.broker.unsubscribe(drive.subscribe("a"))
    drive.advance(61 * S)

    assert START_US + 61 * S == drive.now_us
    assert (1, 1) == (drive.broker.stats.unsubscribed, drive.broker.stats.leases_ended)
