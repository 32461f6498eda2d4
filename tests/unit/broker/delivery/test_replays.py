"""Replays: dead letters sent back to their queue."""

import pytest

from braidmq.broker import dead_letters
from braidmq.broker.delivery.replays import REPLAY_BYTES_MAX
from braidmq.broker.policy import FAN_OUT_WITH_ACK, PRIORITY_BASED
from braidmq.broker.settings import Settings
from braidmq.broker.topics import decode_headers
from tests.unit.broker.buried import make_dead_letters, replay
from tests.unit.broker.drive import Drive, S, policy_of


def test_replayed_letters_are_as_they_were() -> None:
    """The oldest first, with payload and headers, and without the death headers."""
    drive = Drive()
    letters = make_dead_letters(drive, 3)
    replay(drive, letters, 2)
    deliveries = drive.pushed(drive.join(drive.queue("q")))

    assert [b"0", b"1"] == [delivery.message.payload for delivery in deliveries]
    assert [{"": "m0", "k": "v"}, {"": "m1", "k": "v"}] == [
        decode_headers(delivery.message.headers) for delivery in deliveries
    ]
    assert (1, 0) == (letters.waiting(), letters.replaying)
    assert 3 == drive.broker.stats.dead_lettered


def test_a_replayed_letter_is_in_exactly_one_queue() -> None:
    """One record moves it, so a crash before the commit leaves it where it was."""
    drive = Drive()
    letters = make_dead_letters(drive, 2)
    drive.broker.queues.replays.replay(letters, 2, drive.now_us)
    drive.serve_reads()
    drive.restart()
    before = drive.queue("dlq.q").waiting(), drive.queue("q").waiting()
    replay(drive, drive.queue("dlq.q"), 2)
    drive.restart()

    assert (2, 0) == before
    assert (0, 2) == (drive.queue("dlq.q").waiting(), drive.queue("q").waiting())


def test_a_refused_replay_leaves_the_letters() -> None:
    """The replay ends; nothing is lost, and nothing counts as a new dead letter."""
    drive = Drive()
    letters = make_dead_letters(drive, 2)
    drive.broker.queues.replays.replay(letters, 2, drive.now_us)
    drive.serve_reads()
    drive.refuse()
    drive.broker.queues.replays.replay(letters, 2, drive.now_us)

    assert (2, 0) == (letters.waiting(), letters.replaying)
    assert 2 == drive.broker.stats.dead_lettered
    assert 0 == drive.queue("q").pending


@pytest.mark.parametrize("window", [1, 1024])
def test_a_replay_writes_a_limited_number_of_bytes_at_a_time(window: int) -> None:
    """It continues after each commit until the requested count is reached."""
    drive = Drive(Settings(window=window))
    letters = make_dead_letters(drive, 12, size=REPLAY_BYTES_MAX // 4)
    drive.broker.queues.replays.replay(letters, 11, drive.now_us)
    drive.serve_reads()
    at_once = len(drive.broker.outgoing.pending())
    for _ in range(12):
        drive.commit()

    assert at_once <= 4
    assert (1, 11) == (letters.waiting(), drive.queue("q").waiting())
    assert [] == drive.broker.dispatch.queues.replays.running


def test_letters_of_unknown_origin_stay_and_do_not_block_others() -> None:
    """A message published directly to the dead-letter queue has no queue to return to."""
    drive = Drive()
    letters = make_dead_letters(drive, 1)
    strange = drive.publish_many("dlq.q", 2)
    again = drive.join(drive.queue("q"))
    drive.publish_many("q", 1)
    (entry,) = drive.taken(again)
    drive.broker.queues.reject(entry, dead_letters.REJECTED, drive.now_us)
    drive.leave(again)
    drive.commit()
    replay(drive, letters, 4)
    drive.restart()

    assert (2, 2) == (drive.queue("dlq.q").waiting(), drive.queue("q").waiting())
    assert strange == drive.pushed_ids(drive.join(drive.queue("dlq.q")))


def test_letters_of_unknown_origin_can_be_consumed_after_the_replay() -> None:
    """They are set aside only during the replay."""
    drive = Drive()
    letters = make_dead_letters(drive, 1)
    strange = drive.publish_many("dlq.q", 1)
    replay(drive, letters, 2)

    assert strange == drive.ack_all(drive.join(letters))
    assert 0 == letters.waiting()


def test_a_letter_purged_while_set_aside_does_not_come_back() -> None:
    """An operator purges the queue while the replay waits for the log."""
    drive = Drive()
    drive.declare("dlq.q")
    drive.publish_many("dlq.q", 1)
    letters = make_dead_letters(drive, 2, size=REPLAY_BYTES_MAX)
    drive.broker.queues.replays.replay(letters, 3, drive.now_us)
    drive.serve_reads()
    aside = len(letters.unsendable)
    drive.broker.queues.purge(letters, drive.now_us)
    drive.commit()

    assert 1 == aside

    assert (0, 0) == (letters.waiting(), letters.replaying)
    assert [] == drive.pushed_ids(drive.join(letters))


def test_deleting_the_queue_ends_its_replay() -> None:
    """Only what had been written already is replayed."""
    drive = Drive()
    letters = make_dead_letters(drive, 5, size=REPLAY_BYTES_MAX)
    drive.broker.queues.replays.replay(letters, 5, drive.now_us)
    drive.serve_reads()
    drive.broker.queues.delete(letters)
    drive.commit()

    assert 0 == letters.replaying
    assert [] == drive.broker.dispatch.queues.replays.running
    assert 1 == drive.queue("q").waiting()


def test_replays_of_the_same_queue_are_merged() -> None:
    """The largest count applies."""
    drive = Drive()
    letters = make_dead_letters(drive, 5, size=REPLAY_BYTES_MAX)
    for count in (2, 4, 3):
        drive.broker.queues.replays.replay(letters, count, drive.now_us)
    listed = len(drive.broker.dispatch.queues.replays.running)
    drive.serve_reads()
    drive.commit()

    assert (1, 1) == (listed, letters.waiting())


def test_letters_returned_by_a_consumer_are_replayed_too() -> None:
    """They wait like the others."""
    drive = Drive()
    letters = make_dead_letters(drive, 2)
    consumer = drive.join(letters, 1)
    drive.leave(consumer)
    replay(drive, letters, 2)

    assert (0, 2) == (letters.waiting(), drive.queue("q").waiting())


def test_a_priority_queue_of_dead_letters_can_be_replayed() -> None:
    """A declared dead-letter queue may have any mode."""
    drive = Drive()
    letters = drive.declare("grave", policy_of(mode=PRIORITY_BASED))
    make_dead_letters(drive, 3, dead_letter_name="grave")
    replay(drive, letters, 3)

    assert (0, 3) == (letters.waiting(), drive.queue("q").waiting())


def test_a_fan_out_is_not_replayed() -> None:
    """Its letters are for its subscribers."""
    drive = Drive()
    letters = drive.declare("grave", policy_of(mode=FAN_OUT_WITH_ACK))
    make_dead_letters(drive, 2, dead_letter_name="grave")
    drive.restart()
    letters = drive.queue("grave")
    replay(drive, letters, 2)

    assert (2, 0) == (letters.waiting(), letters.replaying)
    assert 2 == len(drive.pushed(drive.join(letters)))


def test_letters_are_replayed_to_the_topic_of_a_deleted_queue() -> None:
    """A subscriber of the topic gets them."""
    drive = Drive()
    letters = make_dead_letters(drive, 1)
    drive.broker.queues.delete(drive.queue("q"))
    subscriber = drive.subscribe("q")
    replay(drive, letters, 1)
    delivery = drive.poll(subscriber)

    assert delivery is not None
    assert (b"0", 0) == (delivery.message.payload, letters.waiting())


def test_a_replayed_letter_gets_a_new_time_to_live() -> None:
    """If it had expired, it would otherwise expire again at once."""
    drive = Drive()
    letters = make_dead_letters(drive, 1, ttl_us=5 * S)
    drive.advance(60 * S)
    replay(drive, letters, 1)
    (delivery,) = drive.pushed(drive.join(drive.queue("q")))

    assert drive.now_us + 5 * S == delivery.message.expires_us
