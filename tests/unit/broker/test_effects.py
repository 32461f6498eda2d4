"""The effects that a turn leaves behind: peers to serve, reads and progress records."""

from braidmq.broker.delivery.channels import Peer
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.outgoing import PROGRESS_BYTES, PROGRESS_DELAY_US, Effects
from braidmq.broker.topics import Topic
from tests.unit.broker.drive import subscription_at


def follower_at(follower_id: int, cursor: int) -> Follower:
    follower = Follower(Topic("a"), "ada", bytes(32))
    follower.begin(follower_id)
    follower.cursor = cursor
    return follower


def test_a_peer_is_touched_once_per_turn() -> None:
    """Touching it twice lists it once; the next turn starts afresh."""
    effects = Effects()
    peer = Peer()
    effects.touch(peer)
    effects.touch(peer)

    assert [peer] == effects.take_touched()
    assert (False, []) == (peer.touched, effects.take_touched())


def test_only_a_subscription_that_is_behind_requests_a_read_and_only_once() -> None:
    """The broker does not request the same read again before it is answered."""
    effects = Effects()
    subscription = subscription_at(1)
    effects.read_ahead(subscription)
    before = list(effects.reads)
    subscription.position.behind = True
    effects.read_ahead(subscription)
    effects.read_ahead(subscription)
    effects.read_now(subscription)

    assert ([], [subscription]) == (before, effects.reads)


def test_progress_is_due_a_delay_after_the_first_change() -> None:
    """Later progress does not postpone it."""
    effects = Effects()
    effects.note_progress(subscription_at(1), 100)
    effects.note_followed(follower_at(2, 2), 200)

    assert effects.is_dirty()
    assert 100 + PROGRESS_DELAY_US == effects.progress_due_us


def test_progress_is_taken_once() -> None:
    """Progress of subscriptions and of followers shares one record."""
    effects = Effects()
    subscription, follower = subscription_at(1), follower_at(2, 9)
    effects.progress_of(subscription, 100).settle(1, 3)
    effects.note_followed(follower, 100)
    effects.acknowledged = True
    (made,) = effects.take_progress(500)

    assert {1: [(1, 3)], 2: [(2, 9)]} == {i: one.ranges for i, one in made.items()}
    assert (False, False, 500) == (
        effects.is_dirty(),
        effects.acknowledged,
        effects.progress_due_us,
    )
    assert [] == effects.take_progress(600)


def test_a_followers_progress_ends_before_the_first_unreceived_message() -> None:
    """The follower stays dirty until its transport has confirmed every message."""
    effects = Effects()
    follower = follower_at(2, 9)
    follower.peer = Peer()
    follower.unreceived.append(6)
    effects.note_followed(follower, 100)
    (made,) = effects.take_progress(500)

    assert [(2, 5)] == made[2].ranges
    assert {2: follower} == effects.dirty_followers


def test_progress_too_large_for_one_record_takes_several() -> None:
    """Each subscription's progress goes into one of them."""
    effects = Effects()
    for number in (1, 2, 3):
        made = effects.progress_of(subscription_at(number), 100)
        made.ranges = [(last - 1, last) for last in range(1, PROGRESS_BYTES // 32)]
    batches = effects.take_progress(500)

    assert [[1, 2], [3]] == [list(batch) for batch in batches]
