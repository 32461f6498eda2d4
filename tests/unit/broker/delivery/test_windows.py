"""The memory limits of subscriptions, individually and together."""

import pytest

from braidmq.broker.delivery.channels import Entry, Windows
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.broker.policy import Rules
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message, Topic

TOPIC = Topic("a")


class Bench:
    """Windows of ten messages, 100 bytes each and 250 bytes together, and a subscription."""

    def __init__(self) -> None:
        self.settings = Settings(window=10, window_bytes=100, memory_bytes=250)
        self.stats = Stats()
        self.windows = Windows(self.settings, self.stats)
        self.subscription = self.another()

    def another(self) -> Subscription:
        return Subscription(TOPIC, 1, "ada", Rules(self.settings))

    def take_in(self, size: int) -> Entry:
        entry = Entry(self.subscription, Message(TOPIC, 1, bytes(size)), 0)
        self.subscription.ready.append(entry)
        self.windows.hold(self.subscription, size)
        return entry

    def offer(self, size: int) -> list[int]:
        """Offer a memory-only message; return the sizes of all that wait."""
        self.windows.offer_volatile(self.subscription, Message(TOPIC, 0, bytes(size)))
        return [len(message.body) for message in self.subscription.volatile]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_held_bytes_count_per_subscription_and_in_total(bench: Bench) -> None:
    """The total is the sum over all subscriptions."""
    other = bench.another()
    bench.windows.hold(bench.subscription, 30)
    bench.windows.hold(other, 50)
    bench.windows.hold(bench.subscription, -10)

    assert (20, 50, 70) == (
        bench.subscription.held_bytes,
        other.held_bytes,
        bench.windows.held_bytes,
    )


def test_a_window_is_full_at_its_count(bench: Bench) -> None:
    """However small its messages are."""
    for _ in range(9):
        bench.take_in(1)
    before = bench.windows.has_room(bench.subscription, 1)
    bench.take_in(1)

    assert before
    assert not bench.windows.has_room(bench.subscription, 1)


def test_a_window_is_full_at_its_byte_limit(bench: Bench) -> None:
    """A message that reaches the limit exactly still fits."""
    bench.take_in(60)

    assert bench.windows.has_room(bench.subscription, 40)
    assert not bench.windows.has_room(bench.subscription, 41)


def test_one_message_always_fits_an_empty_window(bench: Bench) -> None:
    """Otherwise it could never be delivered; a message in flight counts, though."""
    assert bench.windows.has_room(bench.subscription, 101)

    entry = bench.take_in(1)
    bench.subscription.ready.clear()
    bench.subscription.in_flight.add(entry)

    assert not bench.windows.has_room(bench.subscription, 101)


def test_other_subscriptions_can_use_up_the_budget(bench: Bench) -> None:
    """The shared budget takes precedence over the window of one."""
    bench.windows.hold(bench.another(), 240)

    assert bench.windows.has_room(bench.subscription, 10)
    assert not bench.windows.has_room(bench.subscription, 11)


def test_a_message_beyond_the_budget_fits_when_nothing_is_held(bench: Bench) -> None:
    """Otherwise it could never be delivered."""
    assert bench.windows.has_room(bench.subscription, 1000)


def test_older_memory_only_messages_make_room(bench: Bench) -> None:
    """By count and by bytes; each drop is counted."""
    for _ in range(10):
        bench.offer(5)
    by_count = bench.offer(6)
    by_bytes = bench.offer(60)

    assert [5] * 9 + [6] == by_count
    assert [5] * 6 + [6, 60] == by_bytes
    assert (4, 96) == (bench.stats.dropped.overflow, bench.windows.held_bytes)


def test_older_messages_are_dropped_when_the_total_is_too_large(bench: Bench) -> None:
    """The shared budget includes the subscription's own messages."""
    bench.offer(40)
    bench.offer(40)
    bench.windows.hold(bench.another(), 160)

    assert [40, 50] == bench.offer(50)
    assert 250 == bench.windows.held_bytes


def test_a_memory_only_message_is_dropped_when_others_use_up_the_budget(bench: Bench) -> None:
    """Dropping older ones would not make enough room, so they stay."""
    bench.offer(40)
    bench.windows.hold(bench.another(), 205)

    assert [40] == bench.offer(50)
    assert (1, 245) == (bench.stats.dropped.overflow, bench.windows.held_bytes)


def test_one_memory_only_message_of_any_size_fits_alone(bench: Bench) -> None:
    """Like one durable message."""
    bench.offer(10)

    assert [1000] == bench.offer(1000)
