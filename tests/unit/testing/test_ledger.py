"""The ledger and its checker: each broken promise is seen, an honest history is not blamed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.testing import ledger as books
from braidmq.testing.ledger import Ledger, Summary, check, summarize

A, B, C = b"first", b"second", b"third"
SUBSCRIPTION, OTHER, LETTERS = 1, 2, 3


def published() -> Ledger:
    """Two subscriptions and one of dead letters; a publisher whose first two are confirmed."""
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


def buried(tag: int) -> Callable[[Ledger], None]:
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


def come_back(ledger: Ledger) -> None:
    ledger.connect("c2")
    ledger.deliver(SUBSCRIPTION, "c2", 4, "orders", A)


def come_back_as_a_letter(ledger: Ledger) -> None:
    buried(6)(ledger)


def outlive_the_end(ledger: Ledger) -> None:
    ledger.subscribe(7, "orders")
    ledger.unsubscribe(7)
    ledger.ended(7)
    ledger.deliver(7, "c1", 4, "orders", A)


def overtake(ledger: Ledger) -> None:
    ledger.subscribe(7, "orders")
    ledger.deliver(7, "c1", 5, "orders", B)
    ledger.deliver(7, "c1", 4, "orders", A)


def reuse(ledger: Ledger) -> None:
    ledger.attempt("p2", 1, "orders", C)
    ledger.deliver(SUBSCRIPTION, "a competitor", 5, "orders", C)


def reuse_for_a_subscription(ledger: Ledger) -> None:
    ledger.subscribe(5, "events")


def forget_a_subscription(ledger: Ledger) -> None:
    ledger.missing(OTHER)


PLANTED = {
    lose: books.LOST,
    lose_unacknowledged: books.LOST,
    tear: books.INVENTED,
    misdirect: books.INVENTED,
    double: books.DOUBLED,
    come_back: books.RESURRECTED,
    come_back_as_a_letter: books.RESURRECTED,
    outlive_the_end: books.RESURRECTED,
    overtake: books.OUT_OF_ORDER,
    reuse: books.REUSED_ID,
    reuse_for_a_subscription: books.REUSED_ID,
    forget_a_subscription: books.LOST_SUBSCRIPTION,
}


@pytest.mark.parametrize(("plant", "kind"), PLANTED.items())
def test_each_broken_promise_is_seen(plant: Callable[[Ledger], None], kind: str) -> None:
    """A history with one planted breach is blamed for that and nothing else."""
    ledger = all_taken()
    plant(ledger)

    assert [kind] == [violation.kind for violation in check(ledger)]


def test_every_kind_of_violation_is_planted() -> None:
    """A kind that no planted history shows might never be seen at all."""
    kinds = {books.LOST, books.LOST_SUBSCRIPTION, books.INVENTED, books.DOUBLED}
    kinds |= {books.RESURRECTED, books.OUT_OF_ORDER, books.REUSED_ID}

    assert kinds == set(PLANTED.values())


def test_an_honest_history_is_not_blamed() -> None:
    """All that was confirmed came, in order, and stayed settled."""
    assert [] == check(all_taken())


def test_nothing_is_owed_before_it_is_drained() -> None:
    """What was not taken may still come, until somebody says that nothing comes any more."""
    assert [] == check(published())


def test_an_unknown_outcome_is_legal_either_way() -> None:
    """A publish that was not confirmed, or refused, may come or not."""
    for comes in (False, True):
        ledger = published()
        ledger.attempt("p1", 3, "orders", C)
        ledger.refuse("p1", 3)
        ledger.attempt("p1", 4, "orders", b"unanswered")
        ledger.confirm("p1", 3)
        for subscription in (SUBSCRIPTION, OTHER):
            take(ledger, subscription, 4, A)
            take(ledger, subscription, 5, B)
            if comes:
                take(ledger, subscription, 6, C)
            ledger.drained(subscription)

        assert [] == check(ledger)


def test_a_dead_letter_stands_for_one_subscription() -> None:
    """Each subscription that gave up needs a letter of its own."""
    for letters, verdict in (([6], [books.LOST]), ([6, 7], [])):
        ledger = published()
        for subscription in (SUBSCRIPTION, OTHER):
            ledger.deliver(subscription, "c1", 4, "orders", A)
            take(ledger, subscription, 5, B)
            ledger.drained(subscription)
        for tag in letters:
            buried(tag)(ledger)

        assert verdict == [violation.kind for violation in check(ledger)]


def test_connections_of_the_same_time_have_no_order() -> None:
    """What was on its way to a competitor when the acknowledgement came may arrive later."""
    ledger = published()
    ledger.connect("c2")
    take(ledger, SUBSCRIPTION, 4, A)
    ledger.deliver(SUBSCRIPTION, "c2", 4, "orders", A)

    assert [] == check(ledger)


def test_competing_consumers_are_not_asked_for_order() -> None:
    """Only a subscription with one consumer at a time has an order that can be seen."""
    ledger = published()
    ledger.subscribe(7, "orders", ordered=False)
    ledger.deliver(7, "c1", 5, "orders", B)
    ledger.deliver(7, "c2", 4, "orders", A)

    assert [] == check(ledger)


def test_duplicates_are_counted() -> None:
    """Redeliveries are legal, and told in the summary with everything else."""
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
    """What was written line by line is read back as it was, even if nobody closed it."""
    kept = Ledger(tmp_path / "ledger.jsonl")
    for event in all_taken().events:
        kept.record(event)
    loaded = Ledger.load(tmp_path / "ledger.jsonl")
    kept.close()

    assert all_taken().events == loaded.events


def test_a_fork_goes_on_by_itself() -> None:
    """What a fork adds is not in the ledger that it came from."""
    ledger = published()
    fork = ledger.fork()
    fork.attempt("p2", 1, "orders", C)

    assert len(ledger.events) + 1 == len(fork.events)


def test_a_repeat_may_come_out_of_order() -> None:
    """The first may be lost, and then the repeat is what was stored, behind later ones."""
    ledger = published()
    ledger.subscribe(7, "orders")
    ledger.attempt("p1", 3, "orders", C)
    ledger.repeat(A)
    ledger.deliver(7, "c1", 6, "orders", C)
    ledger.deliver(7, "c1", 8, "orders", A)

    assert [] == check(ledger)


def test_a_repeat_confirms_its_first() -> None:
    """An answer to a repeat says that the message is there, whoever brought it."""
    ledger = Ledger()
    ledger.attempt("p1", 1, "orders", A)
    ledger.repeat(A)
    assert 0 == summarize(ledger).confirmed
    ledger.repeated(A)

    assert 1 == summarize(ledger).confirmed


def test_what_queues_do_is_no_business_of_subscriptions() -> None:
    """Lines about queues are judged elsewhere, and change nothing here."""
    ledger = all_taken()
    ledger.declared("orders", "RoundRobin", "dlq.orders")
    ledger.push("orders", "c1", b"nobody's", 1)

    assert [] == check(ledger)
