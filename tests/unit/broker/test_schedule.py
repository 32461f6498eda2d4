"""The schedule against a sorted list."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.delivery.channels import Channel, Entry
from braidmq.broker.outgoing import Schedule
from braidmq.broker.policy import Rules
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message, Topic

DELAYS_US = (5, 10, 20)
SWEEP_MIN = 1024

TOPIC = Topic("a")
CHANNEL = Channel(TOPIC, Rules(Settings()))


def new_entry() -> Entry:
    return Entry(CHANNEL, Message(TOPIC, 1, b""), 0)


@dataclass
class Sorted:
    """Deadlines as a list of (when, number), sorted after every change."""

    due: list[tuple[int, int]] = field(default_factory=list)

    def put(self, number: int, due_us: int) -> None:
        self.clear(number)
        self.due.append((due_us, number))
        self.due.sort()

    def clear(self, number: int) -> None:
        self.due = [row for row in self.due if row[1] != number]

    def take(self, now_us: int) -> set[int]:
        taken = {number for due_us, number in self.due if due_us <= now_us}
        self.due = [row for row in self.due if row[0] > now_us]
        return taken


steps = st.tuples(
    st.sampled_from(["set", "clear", "take"]),
    st.integers(0, 4),
    st.sampled_from(DELAYS_US),
    st.integers(0, 6),
)


@given(st.lists(steps, max_size=40))
def test_a_schedule_agrees_with_a_sorted_list(todo: list[tuple[str, int, int, int]]) -> None:
    """Set, set again, clear and let time pass: both have the same deadline and items."""
    schedule, expected = Schedule(), Sorted()
    items = [new_entry() for _ in range(5)]
    now_us = 0
    for verb, number, delay_us, pause_us in todo:
        now_us += pause_us
        if verb == "set":
            schedule.set(items[number], now_us, delay_us)
            expected.put(number, now_us + delay_us)
        elif verb == "clear":
            items[number].due_us = 0
            expected.clear(number)
        else:
            taken = [items.index(item) for item in schedule.take_due(now_us)]
            assert len(set(taken)) == len(taken)
            assert expected.take(now_us) == set(taken)

        assert (expected.due[0][0] if expected.due else 0) == schedule.next_due_us()


def test_items_with_the_same_delay_fall_due_in_order() -> None:
    """They were set in that order, and time does not run backwards."""
    schedule = Schedule()
    items = [new_entry() for _ in range(10)]
    for now_us, item in enumerate(items):
        schedule.set(item, now_us, 100)

    assert items[:5] == schedule.take_due(104)
    assert items[5:] == schedule.take_due(1_000)
    assert [] == schedule.take_due(2_000)


def test_settled_items_do_not_pile_up() -> None:
    """A row is never much longer than twice its live items."""
    schedule = Schedule()
    live = [new_entry() for _ in range(300)]
    for item in live:
        schedule.set(item, 0, 100)
    for _ in range(20 * SWEEP_MIN):
        settled = new_entry()
        schedule.set(settled, 1, 100)
        settled.due_us = 0
        assert len(schedule) <= 2 * len(live) + SWEEP_MIN + 1

    assert live == schedule.take_due(101)


def test_sweeping_a_row_keeps_its_live_items() -> None:
    """Every item is still there after the row has grown past several sweeps."""
    schedule = Schedule()
    live = [new_entry() for _ in range(5 * SWEEP_MIN)]
    for item in live:
        schedule.set(item, 0, 100)

    assert len(live) == len(schedule)
    assert live == schedule.take_due(100)
    assert 0 == schedule.next_due_us()
