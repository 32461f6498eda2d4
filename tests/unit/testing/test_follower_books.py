"""The checker of followers: it finds each broken promise, and no fault in a correct history."""

from collections.abc import Callable

import pytest

from braidmq.testing import ledger as kinds
from braidmq.testing.follower_books import (
    AGAIN_WITHIN,
    FORGOTTEN_PROGRESS,
    MISDIRECTED,
    FollowerSummary,
    check_followers,
    summarize_followers,
)
from braidmq.testing.ledger import Ledger, check

A, B, C, D = b"first", b"second", b"third", b"fourth"
KEY, OTHER, TOPIC = "aa", "bb", "work"


def follow(ledger: Ledger) -> None:
    ledger.follower(kinds.FOLLOWING, KEY, TOPIC)
    ledger.follower(kinds.FOLLOWED, KEY, TOPIC)


def unfollow(ledger: Ledger) -> None:
    ledger.follower(kinds.UNFOLLOWING, KEY, TOPIC)
    ledger.follower(kinds.UNFOLLOWED, KEY, TOPIC)


def publish(ledger: Ledger, number: int, payload: bytes, key: str = "") -> None:
    ledger.attempt("p1", number, TOPIC, payload, key=key)
    ledger.confirm("p1", number)


def hand(ledger: Ledger, number: int, payload: bytes, who: str = "c1") -> None:
    ledger.hand(KEY, who, number, TOPIC, payload)


def drained(ledger: Ledger) -> None:
    ledger.follower(kinds.FOLLOWER_DRAINED, KEY, TOPIC)


def correct_history() -> Ledger:
    """A follower that was handed both messages; a Blip subscription got one of them as well."""
    ledger = Ledger()
    follow(ledger)
    publish(ledger, 1, A)
    publish(ledger, 2, B)
    ledger.connect("c2")
    ledger.subscribe(7, TOPIC)
    ledger.deliver(7, "c2", 11, TOPIC, A)
    hand(ledger, 11, A)
    hand(ledger, 12, B)
    drained(ledger)
    return ledger


def lose(ledger: Ledger) -> None:
    publish(ledger, 3, C)


def lose_an_addressed_message(ledger: Ledger) -> None:
    publish(ledger, 3, C, key=KEY)


def invent(ledger: Ledger) -> None:
    hand(ledger, 13, b"unpublished")


def hand_over_from_another_topic(ledger: Ledger) -> None:
    ledger.attempt("p1", 3, "elsewhere", C)
    hand(ledger, 13, C)


def hand_over_what_is_not_in_the_log(ledger: Ledger) -> None:
    ledger.attempt("p1", 3, TOPIC, C, qos=0)
    hand(ledger, 13, C)


def misdirect(ledger: Ledger) -> None:
    publish(ledger, 3, C, key=OTHER)
    hand(ledger, 13, C)


def hand_over_twice_on_one_connection(ledger: Ledger) -> None:
    hand(ledger, 12, B)


def overtake(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    publish(ledger, 4, D)
    hand(ledger, 14, D)
    hand(ledger, 13, C, who="c3")


def overtake_a_publisher(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    publish(ledger, 4, D)
    hand(ledger, 13, D)
    hand(ledger, 14, C)


def give_a_second_id(ledger: Ledger) -> None:
    hand(ledger, 13, B, who="c3")


def give_another_id_than_blip(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    ledger.deliver(7, "c2", 13, TOPIC, C)
    hand(ledger, 14, C)


def use_an_id_twice(ledger: Ledger) -> None:
    publish(ledger, 3, C)
    hand(ledger, 12, C, who="c3")


def deliver_after_the_end(ledger: Ledger) -> None:
    unfollow(ledger)
    publish(ledger, 3, C)
    hand(ledger, 13, C)


def keep_messages_of_an_ended_follower(ledger: Ledger) -> None:
    unfollow(ledger)
    publish(ledger, 3, C)
    follow(ledger)
    hand(ledger, 13, C)


def forget_progress(ledger: Ledger) -> None:
    for number in range(3, 3 + AGAIN_WITHIN):
        publish(ledger, number, b"%d" % number)
        hand(ledger, 10 + number, b"%d" % number)
    hand(ledger, 12, B, who="c3")


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lose, kinds.LOST),
        (lose_an_addressed_message, kinds.LOST),
        (invent, kinds.INVENTED),
        (hand_over_from_another_topic, kinds.INVENTED),
        (hand_over_what_is_not_in_the_log, kinds.INVENTED),
        (misdirect, MISDIRECTED),
        (hand_over_twice_on_one_connection, kinds.OUT_OF_ORDER),
        (overtake, kinds.OUT_OF_ORDER),
        (overtake_a_publisher, kinds.OUT_OF_ORDER),
        (give_a_second_id, kinds.DOUBLED),
        (give_another_id_than_blip, kinds.DOUBLED),
        (use_an_id_twice, kinds.REUSED_ID),
        (deliver_after_the_end, kinds.RESURRECTED),
        (keep_messages_of_an_ended_follower, kinds.RESURRECTED),
        (forget_progress, FORGOTTEN_PROGRESS),
    ],
)
def test_each_broken_promise_is_found(plant: Callable[[Ledger], None], kind: str) -> None:
    """One bad event in a correct history is reported with its kind."""
    ledger = correct_history()
    assert [] == check_followers(ledger)
    plant(ledger)

    assert {kind} == {violation.kind for violation in check_followers(ledger)}


def test_followers_are_not_checked_as_subscriptions() -> None:
    """Followers do not acknowledge, and the checker of subscriptions does not expect it."""
    assert [] == check(correct_history())
    assert FollowerSummary(handed=2, again=0) == summarize_followers(correct_history())


def test_a_returning_follower_may_get_the_last_messages_again() -> None:
    """After a restart or a broken connection: repeats in order, then new messages."""
    ledger = correct_history()
    publish(ledger, 3, C)
    ledger.note(kinds.RESTART)
    for number, payload in ((11, A), (12, B), (13, C)):
        hand(ledger, number, payload, who="c3")
    hand(ledger, 12, B, who="c4")

    assert [] == check_followers(ledger)
    assert FollowerSummary(handed=3, again=3) == summarize_followers(ledger)


def test_only_confirmed_messages_for_the_follower_are_owed() -> None:
    """Not those for other keys, unconfirmed, from before the subscription, or off topic."""
    ledger = Ledger()
    publish(ledger, 1, A)
    follow(ledger)
    publish(ledger, 2, B, key=OTHER)
    ledger.attempt("p2", 1, TOPIC, C)
    ledger.attempt("p3", 1, "elsewhere", D)
    ledger.confirm("p3", 1)
    drained(ledger)

    assert [] == check_followers(ledger)


def test_nothing_is_owed_before_the_drain() -> None:
    """Until then any message may still arrive."""
    ledger = Ledger()
    follow(ledger)
    publish(ledger, 1, A)

    assert [] == check_followers(ledger)


def test_unsubscribing_forgives_messages_in_flight() -> None:
    """Nothing is owed from then until a new subscription is confirmed."""
    ledger = Ledger()
    follow(ledger)
    publish(ledger, 1, A)
    ledger.follower(kinds.UNFOLLOWING, KEY, TOPIC)
    publish(ledger, 2, B)
    hand(ledger, 12, B)  # the unsubscribe was not confirmed: it may have been lost
    follow(ledger)
    drained(ledger)
    assert [] == check_followers(ledger)
    publish(ledger, 3, C)

    assert [kinds.LOST] == [violation.kind for violation in check_followers(ledger)]


def test_a_repeat_may_arrive_late() -> None:
    """The first publish may be lost and the repeat stored in its place; ids still rise."""
    ledger = Ledger()
    follow(ledger)
    ledger.attempt("p1", 1, TOPIC, A)
    publish(ledger, 2, B)
    hand(ledger, 12, B)
    ledger.repeat(A)
    ledger.repeated(A)
    hand(ledger, 13, A)
    drained(ledger)

    assert [] == check_followers(ledger)
