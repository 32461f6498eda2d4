"""The checker of queues: it finds each broken promise, and no fault in a correct history."""

from collections.abc import Callable

import pytest

from braidmq.testing import ledger as kinds
from braidmq.testing import queue_books
from braidmq.testing.ledger import Ledger
from braidmq.testing.queue_books import check_queues

A, B, C, D = b"first", b"second", b"third", b"fourth"
QUEUE, LETTERS = "work", "dlq.work"


def published(mode: str = "RoundRobin") -> Ledger:
    """A queue with a consumer, and a publisher with two confirmed messages."""
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


def lose_a_dead_letter(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    ledger.push(LETTERS, "c1", C, 1)


def invent(ledger: Ledger) -> None:
    ledger.push(QUEUE, "c1", b"unpublished", 1)


def misdirect(ledger: Ledger) -> None:
    ledger.push("elsewhere", "c1", A, 1)


def return_to_another_consumer(ledger: Ledger) -> None:
    ledger.connect("c2")
    ledger.push(QUEUE, "c2", A, 2)


def return_to_the_same_consumer(ledger: Ledger) -> None:
    ledger.push(QUEUE, "c1", A, 2)


def return_after_its_dead_letter(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    ledger.push(LETTERS, "c1", C, 1)
    ledger.connect("c2")
    take(ledger, C, "c2")


def survive_the_deletion(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    ledger.note(kinds.DELETING, QUEUE)
    ledger.note(kinds.DELETED, QUEUE)
    ledger.declared(QUEUE, "RoundRobin", LETTERS)
    ledger.connect("c2")
    ledger.push(QUEUE, "c2", C, 1)


def survive_a_purge(ledger: Ledger) -> None:
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
    lose_a_dead_letter: kinds.LOST,
    invent: kinds.INVENTED,
    misdirect: kinds.INVENTED,
    return_to_another_consumer: kinds.RESURRECTED,
    return_to_the_same_consumer: kinds.RESURRECTED,
    return_after_its_dead_letter: kinds.RESURRECTED,
    survive_the_deletion: kinds.RESURRECTED,
    survive_a_purge: kinds.RESURRECTED,
    overtake: kinds.OUT_OF_ORDER,
    forget_an_attempt: queue_books.FORGOTTEN_ATTEMPT,
    invent_an_attempt: queue_books.INVENTED_ATTEMPT,
    forget_the_queue: queue_books.LOST_QUEUE,
}


@pytest.mark.parametrize(("plant", "kind"), PLANTED.items())
def test_each_broken_promise_is_found(plant: Callable[[Ledger], None], kind: str) -> None:
    """In a history with one planted violation, the checker reports that one only."""
    ledger = all_taken()
    plant(ledger)

    assert [kind] == [violation.kind for violation in check_queues(ledger, lossless=True)]


@pytest.mark.parametrize("mode", ["RoundRobin", "FanOutWithAck", "PriorityBased"])
def test_a_correct_history_has_no_violations(mode: str) -> None:
    """Every confirmed message arrived in order and stayed taken."""
    assert [] == check_queues(all_taken(mode), lossless=True)


def test_nothing_is_owed_before_the_drain() -> None:
    """Until then, missing messages may still arrive."""
    assert [] == check_queues(published())


def test_a_taken_dead_letter_counts_for_its_message() -> None:
    """A message that the queue gives up on is owed as a dead letter of that queue."""
    ledger = all_taken()
    publish(ledger, 3, C)
    ledger.push(LETTERS, "c1", C, 1)
    ledger.take(LETTERS, "c1", C)

    assert [] == check_queues(ledger)


def test_messages_from_before_a_purge_or_a_deletion_are_not_owed() -> None:
    """The request removes them, whether it was confirmed or not."""
    for kind in (kinds.PURGING, kinds.DELETING):
        ledger = all_taken()
        publish(ledger, 3, C)
        ledger.note(kind, QUEUE)
        if kind == kinds.DELETING:
            ledger.declared(QUEUE, "RoundRobin", LETTERS)

        assert [] == check_queues(ledger)


def test_each_priority_has_its_own_order() -> None:
    """In a priority queue, a later message of higher priority may overtake."""
    ledger = all_taken("PriorityBased")
    publish(ledger, 3, C, priority=0)
    publish(ledger, 4, D, priority=3)
    take(ledger, D)
    take(ledger, C)

    assert [] == check_queues(ledger)


def test_each_subscriber_of_a_fan_out_has_its_own_copy() -> None:
    """An earlier subscriber is owed what another has taken; a later one must not get it."""
    ledger = published("FanOutWithAck")
    ledger.connect("c2")
    take(ledger, A)
    take(ledger, B)
    take(ledger, A, "c2")
    assert [] == check_queues(ledger)
    ledger.connect("c3")
    ledger.push(QUEUE, "c3", A, 1)

    assert [kinds.RESURRECTED] == [violation.kind for violation in check_queues(ledger)]


def test_replayed_dead_letters_may_be_delivered_again() -> None:
    """A replayed message is new: out of the old order, and may be dead-lettered again."""
    ledger = all_taken()
    publish(ledger, 3, C)
    publish(ledger, 4, D)
    ledger.push(LETTERS, "c1", C, 1)
    take(ledger, D)
    ledger.note(kinds.REPLAYING, LETTERS)
    ledger.connect("c2")
    take(ledger, C, "c2")

    assert [] == check_queues(ledger, lossless=True)


def test_unsubscribing_does_not_count_as_an_attempt() -> None:
    """For messages that the consumer held, and for those pushed before the answer."""
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


def test_order_is_not_checked_while_a_consumer_leaves() -> None:
    """A requeued message without a counted attempt looks like a first delivery."""
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


def test_an_uncommitted_attempt_may_be_forgotten() -> None:
    """After a restart one attempt may be missing if nothing after it was confirmed."""
    ledger = all_taken()
    publish(ledger, 3, C)
    ledger.push(QUEUE, "c1", C, 1)
    ledger.note(kinds.RESTART)
    ledger.connect("c2")
    take(ledger, C, "c2")

    assert [] == check_queues(ledger, lossless=True)


def test_after_a_failure_of_the_log_no_outcome_is_known() -> None:
    """Deliveries after the failure do not tell what a restart will find."""
    ledger = all_taken()
    publish(ledger, 3, C)
    ledger.push(LETTERS, "c1", C, 1)
    ledger.note(kinds.FAILED)
    ledger.push(LETTERS, "c1", C, 2)
    ledger.note(kinds.RESTART)
    ledger.connect("c2")
    take(ledger, C, "c2")

    assert [] == check_queues(ledger, lossless=True)


def test_a_repeat_confirms_the_message_and_may_arrive_late() -> None:
    """If the first publish was lost, the repeat is stored and owed behind later messages."""
    ledger = all_taken()
    ledger.attempt("p1", 3, QUEUE, C)
    ledger.repeat(C)
    ledger.repeated(C)
    assert [kinds.LOST] == [violation.kind for violation in check_queues(ledger)]
    ledger.attempt("p1", 4, QUEUE, D)
    take(ledger, D)
    take(ledger, C)

    assert [] == check_queues(ledger)
