"""The backlog: how much of it is read at once."""

from braidmq.broker.backlog import ReadRequest
from braidmq.broker.settings import Settings
from braidmq.broker.subscriptions import Subscription
from braidmq.broker.topics import Topic


def request(*, held: int = 0, held_by_all: int = 0) -> ReadRequest:
    subscription = Subscription(Topic("a"), 1, "somebody")
    subscription.begin(5)
    subscription.topic.last_id = 9
    subscription.held_bytes = held
    settings = Settings(window=7, window_bytes=100, memory_bytes=1000)
    return ReadRequest(subscription, settings, held_by_all)


def test_a_read_goes_from_the_cursor_to_the_newest_message() -> None:
    """The range is (after, up to], of one topic."""
    asked = request()

    assert (b"a", 5, 9, 7) == (asked.topic, asked.after_id, asked.up_to, asked.count_max)


def test_window_and_budget_bound_a_read_and_one_message_always_comes() -> None:
    """The smaller of the two rooms counts; without any, one message is still read."""
    assert 60 == request(held=40).bytes_max
    assert 30 == request(held_by_all=970).bytes_max
    assert 1 == request(held=500).bytes_max
    assert 1 == request(held_by_all=5000).bytes_max
