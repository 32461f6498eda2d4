"""What a turn leaves to be done."""

from braidmq.broker.delivery.channels import Peer
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.broker.outgoing import PROGRESS_BYTES, PROGRESS_DELAY_US, Effects
from braidmq.broker.policy import Rules
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Topic


def subscription_at(subscription_id: int) -> Subscription:
    subscription = Subscription(Topic("a"), 1, "ada", Rules(Settings(window=4)))
    subscription.begin(subscription_id)
    return subscription


def follower_at(follower_id: int, cursor: int) -> Follower:
    follower = Follower(Topic("a"), "ada", bytes(32))
    follower.begin(follower_id)
    follower.cursor = cursor
    return follower


def test_a_peer_is_looked_after_once_in_a_turn() -> None:
    """However often it is touched; and again in the next turn."""
    left = Effects()
    peer = Peer()
    left.touch(peer)
    left.touch(peer)

    assert [peer] == left.take_touched()
    assert (False, []) == (peer.touched, left.take_touched())


def test_a_backlog_is_asked_for_once_and_only_by_who_is_behind() -> None:
    """What is being read is not asked for again until it has come."""
    left = Effects()
    subscription = subscription_at(1)
    left.read_ahead(subscription)
    before = list(left.reads)
    subscription.position.behind = True
    left.read_ahead(subscription)
    left.read_ahead(subscription)
    left.read_now(subscription)

    assert ([], [subscription]) == (before, left.reads)


def test_progress_is_due_soon_after_the_first_of_it() -> None:
    """Later progress does not put it off."""
    left = Effects()
    left.note_progress(subscription_at(1), 100)
    left.note_followed(follower_at(2, 2), 200)

    assert left.is_dirty()
    assert 100 + PROGRESS_DELAY_US == left.progress_due_us


def test_progress_is_taken_once() -> None:
    """Of channels and of followers, in one record."""
    left = Effects()
    subscription, follower = subscription_at(1), follower_at(2, 9)
    left.progress_of(subscription, 100).settle(1, 3)
    left.note_followed(follower, 100)
    left.acknowledged = True
    (made,) = left.take_progress(500)

    assert {1: [(1, 3)], 2: [(2, 9)]} == {i: one.ranges for i, one in made.items()}
    assert (False, False, 500) == (left.is_dirty(), left.acknowledged, left.progress_due_us)
    assert [] == left.take_progress(600)


def test_what_a_follower_has_not_received_is_recorded_later() -> None:
    """It stays dirty until its transport has confirmed all of it."""
    left = Effects()
    follower = follower_at(2, 9)
    follower.peer = Peer()
    follower.unreceived.append(6)
    left.note_followed(follower, 100)
    (made,) = left.take_progress(500)

    assert [(2, 5)] == made[2].ranges
    assert {2: follower} == left.dirty_followers


def test_progress_that_is_too_large_for_one_record_takes_several() -> None:
    """Each channel's goes into one of them."""
    left = Effects()
    for number in (1, 2, 3):
        made = left.progress_of(subscription_at(number), 100)
        made.ranges = [(last - 1, last) for last in range(1, PROGRESS_BYTES // 32)]
    batches = left.take_progress(500)

    assert [[1, 2], [3]] == [list(batch) for batch in batches]
