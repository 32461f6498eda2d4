"""The ledger and its checker: it finds each broken promise, and no fault if there is none."""

from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.testing import ledger as books
from braidmq.testing.ledger import Ledger, Summary, check, summarize

A, B, C = b"first", b"second", b"third"
SUBSCRIPTION, OTHER, LETTERS = 1, 2, 3


def published() -> Ledger:
    """Two subscriptions and one to dead letters; a publisher with two confirmed messages."""
    ledger = Ledger()
    ledger.subscribe(SUBSCRIPTION, "orders")
    ledger.subscribe(OTHER, "orders")
    ledger.subscribe(LETTERS, "dlq.orders")
    ledger.connect("c1")
    ledger.attempt("p1", 1, "orders", A)
    ledger.attempt("p1", 2, "orders", B)
    ledger.confirm("p1", 2)
    return ledger


def take(ledger: Ledger, subscription: int, tag: int, payload: bytes, who: str = "c1") -> None:
    ledger.deliver(subscription, who, tag, "orders", payload)
    ledger.acknowledge(subscription, tag)
    ledger.settle(subscription, who, tag)


def all_taken() -> Ledger:
    ledger = published()
    for subscription in (SUBSCRIPTION, OTHER):
        take(ledger, subscription, 4, A)
        take(ledger, subscription, 5, B)
        ledger.drained(subscription)
    return ledger


def dead_letter(tag: int) -> Callable[[Ledger], None]:
    return lambda ledger: ledger.deliver(LETTERS, "c1", tag, "dlq.orders", A)


def lose(ledger: Ledger) -> None:
    ledger.attempt("p1", 3, "orders", C)
    ledger.confirm("p1", 3)
    take(ledger, SUBSCRIPTION, 6, C)


def lose_unacknowledged(ledger: Ledger) -> None:
    ledger.attempt("p1", 3, "orders", C)
    ledger.confirm("p1", 3)
    take(ledger, SUBSCRIPTION, 6, C)
    ledger.deliver(OTHER, "c1", 6, "orders", C)


def tear(ledger: Ledger) -> None:
    ledger.deliver(SUBSCRIPTION, "c1", 6, "orders", A[:3])


def misdirect(ledger: Ledger) -> None:
    ledger.deliver(SUBSCRIPTION, "c1", 6, "events", A)


def double(ledger: Ledger) -> None:
    ledger.deliver(SUBSCRIPTION, "c1", 6, "orders", B)


def return_after_settling(ledger: Ledger) -> None:
    ledger.connect("c2")
    ledger.deliver(SUBSCRIPTION, "c2", 4, "orders", A)


def return_as_a_dead_letter(ledger: Ledger) -> None:
    dead_letter(6)(ledger)


def deliver_after_unsubscribing(ledger: Ledger) -> None:
    ledger.subscribe(7, "orders")
    ledger.unsubscribe(7)
    ledger.ended(7)
    ledger.deliver(7, "c1", 4, "orders", A)


def overtake(ledger: Ledger) -> None:
    ledger.subscribe(7, "orders")
    ledger.deliver(7, "c1", 5, "orders", B)
    ledger.deliver(7, "c1", 4, "orders", A)


def reuse_a_delivery_id(ledger: Ledger) -> None:
    ledger.attempt("p2", 1, "orders", C)
    ledger.deliver(SUBSCRIPTION, "a competitor", 5, "orders", C)


def reuse_a_delivery_id_for_a_subscription(ledger: Ledger) -> None:
    ledger.subscribe(5, "events")


def forget_a_subscription(ledger: Ledger) -> None:
    ledger.missing(OTHER)


PLANTED = {
    lose: books.LOST,
    lose_unacknowledged: books.LOST,
    tear: books.INVENTED,
    misdirect: books.INVENTED,
    double: books.DOUBLED,
    return_after_settling: books.RESURRECTED,
    return_as_a_dead_letter: books.RESURRECTED,
    deliver_after_unsubscribing: books.RESURRECTED,
    overtake: books.OUT_OF_ORDER,
    reuse_a_delivery_id: books.REUSED_ID,
    reuse_a_delivery_id_for_a_subscription: books.REUSED_ID,
    forget_a_subscription: books.LOST_SUBSCRIPTION,
}


@pytest.mark.parametrize(("plant", "kind"), PLANTED.items())
def test_each_broken_promise_is_found(plant: Callable[[Ledger], None], kind: str) -> None:
    """In a history with one planted violation, the checker reports that one only."""
    ledger = all_taken()
    plant(ledger)

    assert [kind] == [violation.kind for violation in check(ledger)]


def test_every_kind_of_violation_is_planted() -> None:
    """Otherwise the checker might never report some kind at all."""
    kinds = {books.LOST, books.LOST_SUBSCRIPTION, books.INVENTED, books.DOUBLED}
    kinds |= {books.RESURRECTED, books.OUT_OF_ORDER, books.REUSED_ID}

    assert kinds == set(PLANTED.values())


def test_a_correct_history_has_no_violations() -> None:
    """Every confirmed message arrived in order and stayed settled."""
    assert [] == check(all_taken())


def test_nothing_is_owed_before_the_drain() -> None:
    """Until then, missing messages may still arrive."""
    assert [] == check(published())


def test_an_unknown_outcome_is_legal_either_way() -> None:
    """An unconfirmed or refused message may arrive or not."""
    for arrives in (False, True):
        ledger = published()
        ledger.attempt("p1", 3, "orders", C)
        ledger.refuse("p1", 3)
        ledger.attempt("p1", 4, "orders", b"unanswered")
        ledger.confirm("p1", 3)
        for subscription in (SUBSCRIPTION, OTHER):
            take(ledger, subscription, 4, A)
            take(ledger, subscription, 5, B)
            if arrives:
                take(ledger, subscription, 6, C)
            ledger.drained(subscription)

        assert [] == check(ledger)


def test_a_dead_letter_counts_for_one_subscription() -> None:
    """Each subscription that gives up on a message needs its own dead letter."""
    for letters, expected in (([6], [books.LOST]), ([6, 7], [])):
        ledger = published()
        for subscription in (SUBSCRIPTION, OTHER):
            ledger.deliver(subscription, "c1", 4, "orders", A)
            take(ledger, subscription, 5, B)
            ledger.drained(subscription)
        for tag in letters:
            dead_letter(tag)(ledger)

        assert expected == [violation.kind for violation in check(ledger)]


def test_concurrent_connections_have_no_order() -> None:
    """A delivery in flight to another consumer may arrive after the acknowledgement."""
    ledger = published()
    ledger.connect("c2")
    take(ledger, SUBSCRIPTION, 4, A)
    ledger.deliver(SUBSCRIPTION, "c2", 4, "orders", A)

    assert [] == check(ledger)


def test_order_is_not_checked_for_competing_consumers() -> None:
    """Only a subscription with one consumer at a time has an observable order."""
    ledger = published()
    ledger.subscribe(7, "orders", ordered=False)
    ledger.deliver(7, "c1", 5, "orders", B)
    ledger.deliver(7, "c2", 4, "orders", A)

    assert [] == check(ledger)


def test_duplicates_are_counted() -> None:
    """Redeliveries are legal, and appear in the summary."""
    ledger = all_taken()
    ledger.attempt("p1", 3, "orders", C)
    ledger.attempt("p1", 4, "orders", b"in memory", qos=0)
    ledger.deliver(OTHER, "c1", 6, "orders", C)
    ledger.deliver(OTHER, "c1", 6, "orders", C)

    assert Summary(
        attempted=3,
        confirmed=2,
        refused=0,
        unknown=1,
        deliveries=6,
        duplicates=1,
        settled=4,
        dead_letters=0,
    ) == summarize(ledger)


def test_a_file_holds_the_whole_ledger(tmp_path: Path) -> None:
    """Even before it is closed, it reads back line by line as it was written."""
    kept = Ledger(tmp_path / "ledger.jsonl")
    for event in all_taken().events:
        kept.record(event)
    loaded = Ledger.load(tmp_path / "ledger.jsonl")
    kept.close()

    assert all_taken().events == loaded.events


def test_a_fork_is_independent() -> None:
    """Its events are not added to the original ledger."""
    ledger = published()
    fork = ledger.fork()
    fork.attempt("p2", 1, "orders", C)

    assert len(ledger.events) + 1 == len(fork.events)


def test_a_repeat_may_arrive_out_of_order() -> None:
    """If the first publish was lost, the repeat is stored behind later messages."""
    ledger = published()
    ledger.subscribe(7, "orders")
    ledger.attempt("p1", 3, "orders", C)
    ledger.repeat(A)
    ledger.deliver(7, "c1", 6, "orders", C)
    ledger.deliver(7, "c1", 8, "orders", A)

    assert [] == check(ledger)


def test_a_confirmed_repeat_confirms_the_message() -> None:
    """The answer to a repeat says that the message is stored, whichever publish stored it."""
    ledger = Ledger()
    ledger.attempt("p1", 1, "orders", A)
    ledger.repeat(A)
    assert 0 == summarize(ledger).confirmed
    ledger.repeated(A)

    assert 1 == summarize(ledger).confirmed


def test_events_of_queues_are_ignored() -> None:
    """Another checker judges them."""
    ledger = all_taken()
    ledger.declared("orders", "RoundRobin", "dlq.orders")
    ledger.push("orders", "c1", b"unpublished", 1)

    assert [] == check(ledger)
