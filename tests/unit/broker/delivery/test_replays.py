"""Dead letters on their way back to where they came from."""

import pytest

from braidmq.broker import dead_letters
from braidmq.broker.delivery.replays import REPLAY_BYTES_MAX
from braidmq.broker.policy import FAN_OUT_WITH_ACK, PRIORITY_BASED, Policy
from braidmq.broker.settings import Settings
from braidmq.broker.topics import decode_headers
from tests.unit.broker.buried import buried, replay
from tests.unit.broker.drive import Drive, S


def test_letters_go_back_as_they_were() -> None:
    """The oldest first, with payload and headers, and nothing of their death."""
    drive = Drive()
    letters = buried(drive, 3)
    replay(drive, letters, 2)
    deliveries = drive.pushed(drive.join(drive.queue("q")))

    assert [b"0", b"1"] == [delivery.message.payload for delivery in deliveries]
    assert [{"": "m0", "k": "v"}, {"": "m1", "k": "v"}] == [
        decode_headers(delivery.message.headers) for delivery in deliveries
    ]
    assert (1, 0) == (letters.waiting(), letters.replaying)
    assert 3 == drive.broker.stats.dead_lettered


def test_a_letter_is_never_in_both_places_nor_in_neither() -> None:
    """One record moves it: a crash before the commit leaves it, one after it does not."""
    drive = Drive()
    letters = buried(drive, 2)
    drive.broker.queues.replays.replay(letters, 2, drive.now_us)
    drive.serve_reads()
    drive.restart()
    before = drive.queue("dlq.q").waiting(), drive.queue("q").waiting()
    replay(drive, drive.queue("dlq.q"), 2)
    drive.restart()

    assert (2, 0) == before
    assert (0, 2) == (drive.queue("dlq.q").waiting(), drive.queue("q").waiting())


def test_what_the_log_refused_is_a_letter_again() -> None:
    """The replay ends there; nothing is lost, and nothing counts as a new death."""
    drive = Drive()
    letters = buried(drive, 2)
    drive.broker.queues.replays.replay(letters, 2, drive.now_us)
    drive.serve_reads()
    drive.refuse()
    drive.broker.queues.replays.replay(letters, 2, drive.now_us)

    assert (2, 0) == (letters.waiting(), letters.replaying)
    assert 2 == drive.broker.stats.dead_lettered
    assert 0 == drive.queue("q").pending


@pytest.mark.parametrize("window", [1, 1024])
def test_the_log_is_given_a_few_bytes_at_a_time(window: int) -> None:
    """The rest goes when those are committed, until as many went as were asked for."""
    drive = Drive(Settings(window=window))
    letters = buried(drive, 12, size=REPLAY_BYTES_MAX // 4)
    drive.broker.queues.replays.replay(letters, 11, drive.now_us)
    drive.serve_reads()
    at_once = len(drive.broker.outgoing.pending())
    for _ in range(12):
        drive.commit()

    assert at_once <= 4
    assert (1, 11) == (letters.waiting(), drive.queue("q").waiting())
    assert [] == drive.broker.dispatch.queues.replays.running


def test_letters_that_say_nothing_stay_and_keep_nobody_waiting() -> None:
    """Somebody published to the queue of dead letters: where would it go back to?"""
    drive = Drive()
    letters = buried(drive, 1)
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


def test_letters_that_say_nothing_can_be_consumed_after_the_replay() -> None:
    """They were set aside for it only."""
    drive = Drive()
    letters = buried(drive, 1)
    strange = drive.publish_many("dlq.q", 1)
    replay(drive, letters, 2)

    assert strange == drive.ack_all(drive.join(letters))
    assert 0 == letters.waiting()


def test_a_letter_that_was_purged_while_set_aside_does_not_come_back() -> None:
    """The replay waits for the log; an operator does not."""
    drive = Drive()
    drive.declare("dlq.q")
    drive.publish_many("dlq.q", 1)
    letters = buried(drive, 2, size=REPLAY_BYTES_MAX)
    drive.broker.queues.replays.replay(letters, 3, drive.now_us)
    drive.serve_reads()
    aside = len(letters.unsendable)
    drive.broker.queues.purge(letters, drive.now_us)
    drive.commit()

    assert 1 == aside

    assert (0, 0) == (letters.waiting(), letters.replaying)
    assert [] == drive.pushed_ids(drive.join(letters))


def test_deleting_ends_a_replay() -> None:
    """Nothing is left to go back."""
    drive = Drive()
    letters = buried(drive, 5, size=REPLAY_BYTES_MAX)
    drive.broker.queues.replays.replay(letters, 5, drive.now_us)
    drive.serve_reads()
    drive.broker.queues.delete(letters)
    drive.commit()

    assert 0 == letters.replaying
    assert [] == drive.broker.dispatch.queues.replays.running
    assert 1 == drive.queue("q").waiting()


def test_two_replays_of_one_queue_are_one() -> None:
    """The larger count counts."""
    drive = Drive()
    letters = buried(drive, 5, size=REPLAY_BYTES_MAX)
    for count in (2, 4, 3):
        drive.broker.queues.replays.replay(letters, count, drive.now_us)
    listed = len(drive.broker.dispatch.queues.replays.running)
    drive.serve_reads()
    drive.commit()

    assert (1, 1) == (listed, letters.waiting())


def test_what_has_come_back_from_a_consumer_goes_too() -> None:
    """It waits, as the others do."""
    drive = Drive()
    letters = buried(drive, 2)
    consumer = drive.join(letters, 1)
    drive.leave(consumer)
    replay(drive, letters, 2)

    assert (0, 2) == (letters.waiting(), drive.queue("q").waiting())


def test_letters_may_wait_by_priority() -> None:
    """A queue that others bury in may be of any mode: the most urgent go first."""
    drive = Drive()
    grave = Policy()
    grave.mode = PRIORITY_BASED
    letters = drive.declare("grave", grave)
    buried(drive, 3, dead_letter_name="grave")
    replay(drive, letters, 3)

    assert (0, 3) == (letters.waiting(), drive.queue("q").waiting())


def test_a_fan_out_sends_nothing_back() -> None:
    """Its letters are its subscribers' business."""
    drive = Drive()
    grave = Policy()
    grave.mode = FAN_OUT_WITH_ACK
    letters = drive.declare("grave", grave)
    buried(drive, 2, dead_letter_name="grave")
    drive.restart()
    letters = drive.queue("grave")
    replay(drive, letters, 2)

    assert (2, 0) == (letters.waiting(), letters.replaying)
    assert 2 == len(drive.pushed(drive.join(letters)))


def test_letters_go_back_to_a_topic_whose_queue_is_gone() -> None:
    """They are messages of it again, whoever wants them."""
    drive = Drive()
    letters = buried(drive, 1)
    drive.broker.queues.delete(drive.queue("q"))
    subscriber = drive.subscribe("q")
    replay(drive, letters, 1)
    delivery = drive.poll(subscriber)

    assert delivery is not None
    assert (b"0", 0) == (delivery.message.payload, letters.waiting())


def test_a_letter_that_goes_back_has_its_time_again() -> None:
    """It died of old age: it would at once do so again."""
    drive = Drive()
    letters = buried(drive, 1, ttl_us=5 * S)
    drive.advance(60 * S)
    replay(drive, letters, 1)
    (delivery,) = drive.pushed(drive.join(drive.queue("q")))

    assert drive.now_us + 5 * S == delivery.message.expires_us
