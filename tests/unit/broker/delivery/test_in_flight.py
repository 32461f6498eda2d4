"""Open tags, and which consumer may take a returned message."""

from typing import Any

from braidmq.broker.delivery.channels import Entry, InFlight, Peer
from braidmq.broker.delivery.subscriptions import Consumer, Subscription
from braidmq.broker.policy import Rules
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message, Topic
from tests.unit.broker.drive import body_of

TOPIC = Topic("a")
SUBSCRIPTION = Subscription(TOPIC, 1, "ada", Rules(Settings()))


def entry_of(message_id: int) -> Entry:
    message = Message(TOPIC, 1, body_of("a", b"1234567"))
    message.id = message_id
    return Entry(SUBSCRIPTION, message, message_id - 1)


def test_messages_and_bytes_in_flight_are_counted() -> None:
    """A tag stays open when no consumer holds its message."""
    in_flight = InFlight()
    first, second = entry_of(1), entry_of(2)
    in_flight.add(first)
    in_flight.add(second)
    in_flight.uncount(first)

    assert (1, 10) == (in_flight.count, in_flight.bytes)
    assert 2 == len(in_flight)
    assert [first, second] == in_flight.all()
    assert first is in_flight.open.get(1)


def test_a_closed_tag_is_unknown() -> None:
    """It cannot be found once it is settled."""
    in_flight = InFlight()
    in_flight.add(entry_of(1))
    in_flight.remove(1)

    assert in_flight.open.get(1) is None
    assert 0 == len(in_flight)


def test_the_oldest_returned_message_is_taken_first() -> None:
    """In id order, in whatever order they were returned."""
    in_flight = InFlight()
    for message_id in (5, 2, 9):
        in_flight.give_back(entry_of(message_id), last_chance=False)
    taken = [in_flight.take_returned(consumer_is_idle=False) for _ in range(4)]

    assert [2, 5, 9] == [entry.id for entry in taken if entry is not None]
    assert taken[-1] is None


def test_a_last_chance_is_only_for_an_idle_consumer() -> None:
    """A busy consumer takes the others; an idle one takes the last chance first."""
    in_flight = InFlight()
    in_flight.give_back(entry_of(1), last_chance=False)
    alone = entry_of(2)
    in_flight.give_back(alone, last_chance=True)
    in_flight.give_back(entry_of(3), last_chance=False)
    busy = in_flight.take_returned(consumer_is_idle=False)
    idle = in_flight.take_returned(consumer_is_idle=True)
    rest = in_flight.take_returned(consumer_is_idle=True)

    assert busy is not None
    assert 1 == busy.id
    assert alone is idle
    assert rest is not None
    assert 3 == rest.id


def test_a_message_settled_while_it_waited_is_skipped() -> None:
    """An acknowledgement that comes after the timeout is honoured."""
    in_flight = InFlight()
    in_flight.give_back(entry_of(1), last_chance=False)
    in_flight.give_back(entry_of(2), last_chance=True)
    in_flight.remove(1)
    in_flight.remove(2)

    assert 2 == len(in_flight.returned) + len(in_flight.last_chances)
    assert in_flight.last_chance() is None
    assert in_flight.take_returned(consumer_is_idle=True) is None
    assert 0 == len(in_flight.returned) + len(in_flight.last_chances)


def test_looking_at_a_last_chance_does_not_take_it() -> None:
    """A second look finds it again."""
    in_flight = InFlight()
    waiting = entry_of(4)
    in_flight.give_back(waiting, last_chance=True)

    assert waiting is in_flight.last_chance()
    assert waiting is in_flight.last_chance()


def test_an_entry_listed_twice_is_taken_once() -> None:
    """It was returned, closed, and returned again while still listed."""
    in_flight = InFlight()
    entry = entry_of(1)
    in_flight.give_back(entry, last_chance=False)
    in_flight.remove(1)
    in_flight.give_back(entry, last_chance=False)
    taken = in_flight.take_returned(consumer_is_idle=True)
    entry.consumer = Consumer(Peer(), SUBSCRIPTION)

    assert entry is taken
    assert in_flight.take_returned(consumer_is_idle=True) is None


def test_a_delayed_entry_is_not_available() -> None:
    """It is open but may not be taken, although it is still listed."""
    in_flight = InFlight()
    entry = entry_of(1)
    in_flight.give_back(entry, last_chance=True)
    entry.due_us = 5

    assert in_flight.last_chance() is None
    assert entry is in_flight.oldest_unheld()


def test_the_oldest_unheld_entry_is_found() -> None:
    """Returned or a last chance: the lowest id wins."""
    in_flight = InFlight()
    held, second, third = entry_of(1), entry_of(2), entry_of(3)
    held.consumer = Consumer(Peer(), SUBSCRIPTION)
    in_flight.add(held)
    before = in_flight.oldest_unheld()
    in_flight.give_back(third, last_chance=False)
    in_flight.give_back(second, last_chance=True)

    assert before is None
    assert second is in_flight.oldest_unheld()


def test_the_oldest_unheld_entry_changes_with_what_is_held() -> None:
    """It is found whatever was added, taken, removed or given back since the last look."""
    in_flight = InFlight()
    first, second, third = entry_of(1), entry_of(2), entry_of(3)
    in_flight.give_back(second, last_chance=False)
    found = [in_flight.oldest_unheld()]
    in_flight.keep(first)
    found.append(in_flight.oldest_unheld())
    first.consumer = Consumer(Peer(), SUBSCRIPTION)
    in_flight.add(first)
    found.append(in_flight.oldest_unheld())
    in_flight.remove(2)
    found.append(in_flight.oldest_unheld())
    in_flight.give_back(third, last_chance=True)
    found.append(in_flight.oldest_unheld())
    in_flight.uncount(first)
    first.consumer = None
    found.append(in_flight.oldest_unheld())

    assert [second, first, second, None, third, first] == found


class CountedTags(dict[int, Entry]):
    """Open tags that count how often they are gone through."""

    walks = 0

    def values(self) -> Any:  # noqa: ANN401 - the type of the view has no public name
        self.walks += 1
        return super().values()


def test_many_unheld_entries_are_removed_without_looking_for_each() -> None:
    """A purge of thousands takes time in proportion, not to their square."""
    in_flight = InFlight()
    in_flight.open = tags = CountedTags()
    for message_id in (5, 1, 4, 2, 3):
        in_flight.give_back(entry_of(message_id), last_chance=False)
    removed: list[int] = []
    while (entry := in_flight.oldest_unheld()) is not None:
        removed.append(entry.id)
        in_flight.remove(entry.id)

    assert [1, 2, 3, 4, 5] == removed
    assert 1 == tags.walks


def test_a_last_chance_is_not_taken_through_its_old_listing() -> None:
    """It was listed among the others before it came to its last chance."""
    in_flight = InFlight()
    entry = entry_of(1)
    in_flight.give_back(entry, last_chance=False)
    in_flight.give_back(entry, last_chance=True)

    assert in_flight.take_returned(consumer_is_idle=False) is None
    assert entry is in_flight.take_returned(consumer_is_idle=True)
