"""What subscriptions may hold in memory, each and all together."""

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


def test_what_is_held_counts_for_one_and_for_all(bench: Bench) -> None:
    """The sum of all subscriptions is the sum of the whole."""
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
    """However small the messages are."""
    for _ in range(9):
        bench.take_in(1)
    before = bench.windows.has_room(bench.subscription, 1)
    bench.take_in(1)

    assert before
    assert not bench.windows.has_room(bench.subscription, 1)


def test_a_window_is_full_at_its_bytes(bench: Bench) -> None:
    """Exactly as many bytes as it may hold fit."""
    bench.take_in(60)

    assert bench.windows.has_room(bench.subscription, 40)
    assert not bench.windows.has_room(bench.subscription, 41)


def test_one_message_always_fits_an_empty_window(bench: Bench) -> None:
    """Else it could never be delivered; one that is open counts, though."""
    assert bench.windows.has_room(bench.subscription, 101)

    entry = bench.take_in(1)
    bench.subscription.ready.clear()
    bench.subscription.in_flight.add(entry)

    assert not bench.windows.has_room(bench.subscription, 101)


def test_what_others_hold_leaves_no_room(bench: Bench) -> None:
    """The budget of all comes before the window of one."""
    bench.windows.hold(bench.another(), 240)

    assert bench.windows.has_room(bench.subscription, 10)
    assert not bench.windows.has_room(bench.subscription, 11)


def test_a_message_beyond_the_budget_fits_when_nothing_is_held(bench: Bench) -> None:
    """Else it could never be delivered."""
    assert bench.windows.has_room(bench.subscription, 1000)


def test_elders_make_room_for_a_memory_only_message(bench: Bench) -> None:
    """By count and by bytes; each that goes is counted."""
    for _ in range(10):
        bench.offer(5)
    by_count = bench.offer(6)
    by_bytes = bench.offer(60)

    assert [5] * 9 + [6] == by_count
    assert [5] * 6 + [6, 60] == by_bytes
    assert (4, 96) == (bench.stats.dropped.overflow, bench.windows.held_bytes)


def test_elders_go_when_all_together_hold_too_much(bench: Bench) -> None:
    """The budget of all is not only for others."""
    bench.offer(40)
    bench.offer(40)
    bench.windows.hold(bench.another(), 160)

    assert [40, 50] == bench.offer(50)
    assert 250 == bench.windows.held_bytes


def test_a_memory_only_message_goes_when_others_spend_the_budget(bench: Bench) -> None:
    """Its elders would have to go for nothing: they stay."""
    bench.offer(40)
    bench.windows.hold(bench.another(), 205)

    assert [40] == bench.offer(50)
    assert (1, 245) == (bench.stats.dropped.overflow, bench.windows.held_bytes)


def test_one_memory_only_message_fits_alone_whatever_its_size(bench: Bench) -> None:
    """As one durable message does."""
    bench.offer(10)

    assert [1000] == bench.offer(1000)
