"""The judgement on queues: each broken promise is seen, an honest history is not blamed."""

from collections.abc import Callable

import pytest

from braidmq.testing import ledger as kinds
from braidmq.testing import queue_books
from braidmq.testing.ledger import Ledger
from braidmq.testing.queue_books import check_queues

A, B, C, D = b"first", b"second", b"third", b"fourth"
QUEUE, LETTERS = "work", "dlq.work"


def published(mode: str = "RoundRobin") -> Ledger:
    """A queue with a consumer, and a publisher whose first two are confirmed."""
    ledger = Ledger()
    ledger.declared(QUEUE, mode, LETTERS)
    ledger.connect("c1")
    ledger.attempt("p1", 1, QUEUE, A)
    ledger.attempt("p1", 2, QUEUE, B)
    ledger.confirm("p1", 2)
    return ledger


def take(ledger: Ledger, payload: bytes, who: str = "c1", attempts: int = 1) -> None:
    ledger.push(QUEUE, who, payload, attempts)
    ledger.take(QUEUE, who, payload)
    ledger.taken(QUEUE, who, payload)


def all_taken(mode: str = "RoundRobin") -> Ledger:
    ledger = published(mode)
    take(ledger, A)
    take(ledger, B)
    ledger.note(kinds.QUEUE_DRAINED, QUEUE)
    return ledger


def publish(ledger: Ledger, number: int, payload: bytes, priority: int = 1) -> None:
    ledger.attempt("p1", number, QUEUE, payload, priority=priority)
    ledger.confirm("p1", number)


def lose(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    ledger.push(QUEUE, "c1", C, 1)


def lose_a_letter(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    ledger.push(LETTERS, "c1", C, 1)


def invent(ledger: Ledger) -> None:
    ledger.push(QUEUE, "c1", b"nobody's", 1)


def misdirect(ledger: Ledger) -> None:
    ledger.push("elsewhere", "c1", A, 1)


def come_back(ledger: Ledger) -> None:
    ledger.connect("c2")
    ledger.push(QUEUE, "c2", A, 2)


def come_back_to_the_same(ledger: Ledger) -> None:
    ledger.push(QUEUE, "c1", A, 2)


def come_back_behind_its_letter(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    ledger.push(LETTERS, "c1", C, 1)
    ledger.connect("c2")
    take(ledger, C, "c2")


def outlive_the_queue(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    ledger.note(kinds.DELETING, QUEUE)
    ledger.note(kinds.DELETED, QUEUE)
    ledger.declared(QUEUE, "RoundRobin", LETTERS)
    ledger.connect("c2")
    ledger.push(QUEUE, "c2", C, 1)


def outlive_a_purge(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    ledger.note(kinds.PURGING, QUEUE)
    ledger.note(kinds.PURGED, QUEUE)
    ledger.connect("c2")
    ledger.push(QUEUE, "c2", C, 1)


def overtake(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    publish(ledger, 4, D)
    take(ledger, D)
    take(ledger, C)


def forget_an_attempt(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    ledger.push(QUEUE, "c1", C, 1)
    publish(ledger, 4, D)
    ledger.note(kinds.RESTART)
    ledger.connect("c2")
    take(ledger, C, "c2", attempts=1)
    take(ledger, D, "c2")


def invent_an_attempt(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    take(ledger, C, attempts=2)


def forget_the_queue(ledger: Ledger) -> None:
    ledger.undeclared(QUEUE, len(ledger.events))


PLANTED = {
    lose: kinds.LOST,
    lose_a_letter: kinds.LOST,
    invent: kinds.INVENTED,
    misdirect: kinds.INVENTED,
    come_back: kinds.RESURRECTED,
    come_back_to_the_same: kinds.RESURRECTED,
    come_back_behind_its_letter: kinds.RESURRECTED,
    outlive_the_queue: kinds.RESURRECTED,
    outlive_a_purge: kinds.RESURRECTED,
    overtake: kinds.OUT_OF_ORDER,
    forget_an_attempt: queue_books.FORGOTTEN_ATTEMPT,
    invent_an_attempt: queue_books.INVENTED_ATTEMPT,
    forget_the_queue: queue_books.LOST_QUEUE,
}


@pytest.mark.parametrize(("plant", "kind"), PLANTED.items())
def test_each_broken_promise_is_seen(plant: Callable[[Ledger], None], kind: str) -> None:
    """A history with one planted breach is blamed for that and nothing else."""
    ledger = all_taken()
    plant(ledger)

    assert [kind] == [violation.kind for violation in check_queues(ledger, lossless=True)]


@pytest.mark.parametrize("mode", ["RoundRobin", "FanOutWithAck", "PriorityBased"])
def test_an_honest_history_is_not_blamed(mode: str) -> None:
    """All that was confirmed came, in order, and stayed taken."""
    assert [] == check_queues(all_taken(mode), lossless=True)


def test_nothing_is_owed_before_it_is_drained() -> None:
    """What was not taken may still come, until somebody says that nothing comes any more."""
    assert [] == check_queues(published())


def test_a_letter_that_was_taken_stands_for_its_message() -> None:
    """What is given up on is owed as a dead letter, and by that queue."""
    ledger = all_taken()
    publish(ledger, 3, C)
    ledger.push(LETTERS, "c1", C, 1)
    ledger.take(LETTERS, "c1", C)

    assert [] == check_queues(ledger)


def test_what_was_published_before_a_purge_or_a_deletion_is_not_owed() -> None:
    """An end that was asked for takes with it what was there, confirmed or not."""
    for kind in (kinds.PURGING, kinds.DELETING):
        ledger = all_taken()
        publish(ledger, 3, C)
        ledger.note(kind, QUEUE)
        if kind == kinds.DELETING:
            ledger.declared(QUEUE, "RoundRobin", LETTERS)

        assert [] == check_queues(ledger)


def test_priorities_have_an_order_each() -> None:
    """In a queue by priority a later message of a higher one may come first."""
    ledger = all_taken("PriorityBased")
    publish(ledger, 3, C, priority=0)
    publish(ledger, 4, D, priority=3)
    take(ledger, D)
    take(ledger, C)

    assert [] == check_queues(ledger)


def test_each_subscriber_of_a_fan_out_has_its_own_copy() -> None:
    """One that was there before is still owed what another has taken; a later one is not."""
    ledger = published("FanOutWithAck")
    ledger.connect("c2")
    take(ledger, A)
    take(ledger, B)
    take(ledger, A, "c2")
    assert [] == check_queues(ledger)
    ledger.connect("c3")
    ledger.push(QUEUE, "c3", A, 1)

    assert [kinds.RESURRECTED] == [violation.kind for violation in check_queues(ledger)]


def test_a_replay_lets_letters_come_again() -> None:
    """What was sent back is a new message, out of the old order, and may die once more."""
    ledger = all_taken()
    publish(ledger, 3, C)
    publish(ledger, 4, D)
    ledger.push(LETTERS, "c1", C, 1)
    take(ledger, D)
    ledger.note(kinds.REPLAYING, LETTERS)
    ledger.connect("c2")
    take(ledger, C, "c2")

    assert [] == check_queues(ledger, lossless=True)


def test_a_consumer_that_leaves_uncounts_what_it_held() -> None:
    """An Unsubscribe is no attempt, nor is what came before its answer."""
    ledger = all_taken()
    publish(ledger, 3, C)
    ledger.push(QUEUE, "c1", C, 1)
    ledger.give_back(QUEUE, "c1")
    publish(ledger, 4, D)
    ledger.push(QUEUE, "c1", D, 1)
    ledger.give_back(QUEUE, "c1")
    ledger.connect("c2")
    take(ledger, C, "c2")
    take(ledger, D, "c2")

    assert [] == check_queues(ledger, lossless=True)


def test_while_somebody_leaves_sockets_hide_the_order() -> None:
    """What was given back uncounted looks like a first delivery to whoever is heard first."""
    ledger = all_taken()
    ledger.connect("c2")
    publish(ledger, 3, C)
    publish(ledger, 4, D)
    ledger.give_back(QUEUE, "c2")
    take(ledger, D)
    take(ledger, C)
    ledger.push(QUEUE, "c2", C, 1)
    ledger.give_back(QUEUE, "c2")

    assert [] == check_queues(ledger)


def test_an_attempt_that_no_commit_covers_may_be_forgotten() -> None:
    """A restart may count one delivery less when nothing behind it was confirmed."""
    ledger = all_taken()
    publish(ledger, 3, C)
    ledger.push(QUEUE, "c1", C, 1)
    ledger.note(kinds.RESTART)
    ledger.connect("c2")
    take(ledger, C, "c2")

    assert [] == check_queues(ledger, lossless=True)


def test_after_a_failure_of_the_log_no_outcome_is_known() -> None:
    """What is delivered before the end says nothing about what a restart finds."""
    ledger = all_taken()
    publish(ledger, 3, C)
    ledger.push(LETTERS, "c1", C, 1)
    ledger.note(kinds.FAILED)
    ledger.push(LETTERS, "c1", C, 2)
    ledger.note(kinds.RESTART)
    ledger.connect("c2")
    take(ledger, C, "c2")

    assert [] == check_queues(ledger, lossless=True)


def test_a_repeat_confirms_its_first_and_may_come_late() -> None:
    """The first may have been lost; then the repeat is stored, and owed, behind later ones."""
    ledger = all_taken()
    ledger.attempt("p1", 3, QUEUE, C)
    ledger.repeat(C)
    ledger.repeated(C)
    assert [kinds.LOST] == [violation.kind for violation in check_queues(ledger)]
    ledger.attempt("p1", 4, QUEUE, D)
    take(ledger, D)
    take(ledger, C)

    assert [] == check_queues(ledger)
