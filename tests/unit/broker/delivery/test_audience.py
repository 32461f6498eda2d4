"""Subscriptions that publishes pass by: what they cost, and that they miss nothing."""

import pytest

from braidmq.broker.broker import DELIVERED
from braidmq.broker.delivery.audience import Audience
from braidmq.broker.delivery.subscriptions import IDLE_US, UNPOLLED_WINDOW, Consumer
from braidmq.broker.delivery.windows import ENTRY_BYTES
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import Drive, charged, entries_of

PAYLOAD = b"ten bytes."


def audience_on(drive: Drive, topic: str = "a") -> Audience:
    audience = drive.topic(topic).audience
    assert audience is not None
    return audience


def payloads_of(drive: Drive, consumer: Consumer) -> list[bytes]:
    """Poll until nothing is left; acknowledge what wants it."""
    taken: list[bytes] = []
    while (delivery := drive.poll(consumer)) is not None:
        taken.append(delivery.message.payload)
        if delivery.entry is not None:
            assert DELIVERED == drive.ack(consumer, delivery.entry.id)
    return taken


@pytest.mark.parametrize("qos", [0, 1])
def test_abandoned_subscriptions_cost_a_publish_nothing(qos: int) -> None:
    """However many there are: no publish goes to them, and each message is held once."""
    window = 4 * UNPOLLED_WINDOW
    drive = Drive(Settings(window=window))
    consumers = [drive.subscribe("a", qos=qos) for _ in range(50)]
    shares = [max(UNPOLLED_WINDOW, window // number) for number in range(1, 51)]
    for _ in range(300):
        drive.publish("a", PAYLOAD, qos=qos)
        drive.commit()
    audience = audience_on(drive)

    assert [] == audience.awake
    taken = [entries_of(one.subscription) for one in consumers]
    assert [] == [n for n, share in zip(taken, shares, strict=True) if n > share]
    held = drive.broker.dispatch.windows.held_bytes
    assert held <= (sum(shares) * qos + 300) * (len(b"\0\1a") + 10 + ENTRY_BYTES)


def test_one_that_is_alone_starts_with_all_of_its_window() -> None:
    """Its first poll is likely to come, and need not read the log."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.publish_many("a", 10 * UNPOLLED_WINDOW)

    assert 10 * UNPOLLED_WINDOW == len(consumer.subscription.ready)


def test_abandoned_subscriptions_of_both_qos_hold_what_they_were_promised() -> None:
    """Memory-only messages wait in one ring for each QoS, the newest window of them."""
    drive = Drive(Settings(window=40))
    durable, plain = drive.subscribe("a"), drive.subscribe("a", qos=0)
    sent = [b"%d" % number for number in range(100)]
    for number, payload in enumerate(sent):
        drive.publish("a", payload, qos=number % 2)
        drive.commit()
    aside = (durable.subscription.position.aside, plain.subscription.position.aside)

    assert (True, True) == aside
    assert 10 + 60 == drive.broker.stats.dropped.overflow
    assert sent[60:] == payloads_of(drive, plain)
    # What was read back from the log comes after what waited in memory.
    got = payloads_of(drive, durable)
    assert sorted(sent[1::2] + sent[20::2]) == sorted(got)
    assert [b for b in got if b in sent[1::2]] == sent[1::2]
    assert 0 == drive.broker.dispatch.windows.held_bytes


def test_one_that_is_polled_again_reads_back_what_it_missed() -> None:
    """In pieces that grow, until it is awake and its window has its full size."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.publish_many("a", 5_000)
    taken = payloads_of(drive, consumer)
    subscription = consumer.subscription

    assert 5_000 == len(taken)
    assert not subscription.position.aside
    assert subscription.rules.window == subscription.position.window


def test_one_that_is_polled_now_and_then_keeps_its_window() -> None:
    """Its bursts wait in memory, so that its polls need no read from the log."""
    drive = Drive()
    consumer = drive.subscribe("a")
    for _ in range(8):
        drive.publish_many("a", 400)
        drive.now_us += 5_000_000
        payloads_of(drive, consumer)
    reads = len(drive.log.reads)
    drive.publish_many("a", 400)
    drive.now_us += 5_000_000
    payloads_of(drive, consumer)

    assert reads == len(drive.log.reads)


def test_one_that_is_no_longer_polled_leaves_its_window_to_the_log() -> None:
    """After a while; what it had taken is delivered again and what it settled is not."""
    drive = Drive()
    consumer = drive.subscribe("a")
    for _ in range(8):
        drive.publish_many("a", 400)
        payloads_of(drive, consumer)
    ids = drive.publish_many("a", 400)
    before = len(consumer.subscription.ready)
    drive.advance(IDLE_US + 2_000_000)

    assert (400, UNPOLLED_WINDOW) == (before, len(consumer.subscription.ready))
    assert charged(consumer.subscription) == drive.broker.dispatch.windows.held_bytes
    assert ids == [drive.poll_id(consumer) for _ in ids]
    assert 0 == drive.poll_id(consumer)


def test_credit_wakes_it() -> None:
    """Its consumer gets what waits in the log, and what comes from then on."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 100)
    drive.publish("a", b"memory", qos=0)
    pushed = drive.credit(consumer, 1_000)
    drive.serve_reads()
    pushed += drive.pushed_ids(consumer)
    drive.publish("a", b"later", qos=0)

    assert sorted([0, *ids]) == sorted(pushed)
    assert [b"later"] == [d.message.payload for d in drive.pushed(consumer)]


def test_what_expires_in_a_ring_is_dropped_and_counted_for_each() -> None:
    """As what expires in a window of its own."""
    drive = Drive()
    for _ in range(2):
        drive.subscribe("a", qos=0)
    for _ in range(UNPOLLED_WINDOW + 5):
        drive.publish("a", qos=0, ttl_us=1_000_000)
    drive.advance(3_000_000)

    assert 2 * (UNPOLLED_WINDOW + 5) == drive.broker.stats.expired
    assert 0 == drive.broker.dispatch.windows.held_bytes


def test_retention_does_not_wait_for_one_of_a_quiet_topic() -> None:
    """It stands aside because of memory-only messages; the log holds nothing for it."""
    drive = Drive(Settings(window=UNPOLLED_WINDOW))
    drive.subscribe("a")
    for _ in range(UNPOLLED_WINDOW):
        drive.publish("a", qos=0)
    drive.publish_many("b", 10)

    assert drive.broker.committed_id + 1 == drive.broker.needed_id()


def test_the_end_of_one_that_stands_aside_ends_its_part_of_the_ring() -> None:
    """The others keep theirs; with the last one nothing is held."""
    drive = Drive(Settings(window=UNPOLLED_WINDOW))
    first, second = (drive.subscribe("a", qos=0) for _ in range(2))
    for number in range(UNPOLLED_WINDOW):
        drive.publish("a", b"%d" % number, qos=0)
    drive.broker.unsubscribe(first)

    assert UNPOLLED_WINDOW == audience_on(drive).heard_count(second.subscription)
    drive.broker.unsubscribe(second)
    assert 0 == drive.broker.dispatch.windows.held_bytes
    assert drive.topic("a").audience is None
