"""The memory limits of subscriptions, individually and together."""

import pytest

from braidmq.broker.delivery.channels import Entry
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.broker.delivery.windows import ENTRY_BYTES, Windows
from braidmq.broker.policy import Rules
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message, Topic

TOPIC = Topic("a")


def sized(size: int) -> Message:
    return Message(TOPIC, 1, bytes(size))


class Bench:
    """Windows of ten messages, 100 bytes each and a budget together, and a subscription."""

    def __init__(self, memory_bytes: int = 250 + 11 * ENTRY_BYTES) -> None:
        self.settings = Settings(window=10, window_bytes=100, memory_bytes=memory_bytes)
        self.stats = Stats()
        self.windows = Windows(self.settings, self.stats)
        self.subscription = self.another()

    def another(self) -> Subscription:
        return Subscription(TOPIC, 1, "ada", Rules(self.settings))

    def take_in(self, size: int) -> Entry:
        entry = Entry(self.subscription, Message(TOPIC, 1, bytes(size)), 0)
        self.subscription.add_ready(entry)
        self.windows.hold(self.subscription, entry.message)
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
    bench.windows.hold(bench.subscription, sized(20))
    bench.windows.hold(bench.subscription, sized(10))
    bench.windows.hold(other, sized(50))
    bench.windows.release(bench.subscription, sized(10))

    assert (20, 50, 70 + 2 * ENTRY_BYTES) == (
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
    bench.subscription.flight().add(entry)

    assert not bench.windows.has_room(bench.subscription, 101)


def test_other_subscriptions_can_use_up_the_budget() -> None:
    """The shared budget takes precedence over the window of one, and entries count in it."""
    bench = Bench(250 + 2 * ENTRY_BYTES)
    bench.windows.hold(bench.another(), sized(240))

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
    held = 96 + 8 * ENTRY_BYTES
    assert (4, held) == (bench.stats.dropped.overflow, bench.windows.held_bytes)


def test_older_messages_are_dropped_when_the_total_is_too_large() -> None:
    """The shared budget includes the subscription's own messages."""
    budget = 250 + 3 * ENTRY_BYTES
    bench = Bench(budget)
    bench.offer(40)
    bench.offer(40)
    bench.windows.hold(bench.another(), sized(160))

    assert [40, 50] == bench.offer(50)
    assert budget == bench.windows.held_bytes


def test_a_memory_only_message_is_dropped_when_others_use_up_the_budget() -> None:
    """Dropping older ones would not make enough room, so they stay."""
    bench = Bench(250 + 2 * ENTRY_BYTES)
    bench.offer(40)
    bench.windows.hold(bench.another(), sized(205))

    assert [40] == bench.offer(50)
    held = 245 + 2 * ENTRY_BYTES
    assert (1, held) == (bench.stats.dropped.overflow, bench.windows.held_bytes)


def test_one_memory_only_message_of_any_size_fits_alone(bench: Bench) -> None:
    """Like one durable message."""
    bench.offer(10)

    assert [1000] == bench.offer(1000)
