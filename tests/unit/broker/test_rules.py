"""Retry rules: when a message is redelivered, and when it is out of attempts."""

import pytest

from braidmq.broker.policy import NO_BOUND, Policy, Rules, for_dead_letters, of_policy
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import S


def queue_rules(*, max_attempts: int = 3) -> Rules:
    declared = Policy()
    declared.max_attempts = max_attempts
    return of_policy(declared, Settings())


def letter_rules() -> Rules:
    rules = Rules(Settings())
    rules.lift_limits()
    return rules


@pytest.mark.parametrize(
    ("attempt", "expected"), [(1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (6, 60), (10_000, 60)]
)
def test_the_retry_delay_doubles_up_to_its_maximum(attempt: int, expected: int) -> None:
    """It is min(backoff · 2^(n-1), maximum) after delivery n."""
    rules = Rules(Settings(retry_backoff_us=5, retry_backoff_max_us=60))

    assert expected == rules.delay_us(attempt)


def test_there_is_no_delay_before_the_first_delivery() -> None:
    """Deliveries are counted from 1."""
    with pytest.raises(AssertionError):
        Rules(Settings()).delay_us(0)


@pytest.mark.parametrize(
    ("attempts", "max_retries", "exhausted", "last"),
    [
        (0, 5, False, False),
        (3, 5, False, False),
        (4, 5, False, True),
        (5, 5, True, False),
        (6, 5, True, False),
        (0, 1, False, False),  # a first delivery is not alone, even if it is the only one
        (1, 1, True, False),
        (1, 2, False, True),
    ],
)
def test_deliveries_are_counted_in_total(
    attempts: int, max_retries: int, *, exhausted: bool, last: bool
) -> None:
    """`max_retries` is the number of all deliveries, the first included."""
    rules = Rules(Settings(max_retries=max_retries))

    assert exhausted == rules.is_exhausted(attempts)
    assert last == rules.is_last(attempts)


def test_a_queue_redelivers_after_the_timeout_and_a_doubling_backoff() -> None:
    """30 s, plus 2 s that double up to 2 min."""
    rules = queue_rules()
    delays = [rules.delay_us(attempt) // S for attempt in range(1, 9)]

    assert [32, 34, 38, 46, 62, 94, 150, 150] == delays


def test_a_subscription_redelivers_after_the_backoff_alone() -> None:
    """Blip has no separate acknowledgement timeout."""
    rules = Rules(Settings(retry_backoff_us=5 * S, retry_backoff_max_us=60 * S))

    assert [5, 10, 20, 40, 60, 60] == [rules.delay_us(n) // S for n in range(1, 7)]


@pytest.mark.parametrize(("attempts", "expected"), [(0, False), (2, False), (3, True)])
def test_a_message_is_exhausted_after_its_last_allowed_delivery(
    attempts: int, *, expected: bool
) -> None:
    """Every delivery counts as an attempt."""
    assert expected == queue_rules().is_exhausted(attempts)


@pytest.mark.parametrize(("attempts", "expected"), [(0, False), (1, False), (2, True)])
def test_the_last_allowed_delivery_is_known_in_advance(
    attempts: int, *, expected: bool
) -> None:
    """The broker delivers it alone, so it must know before it delivers."""
    assert expected == queue_rules().is_last(attempts)


def test_with_one_attempt_the_first_delivery_goes_alone() -> None:
    """No earlier delivery can announce it, so a flag does."""
    assert queue_rules(max_attempts=1).first_goes_alone
    assert not queue_rules(max_attempts=2).first_goes_alone


def test_dead_letters_are_never_exhausted() -> None:
    """However often they are delivered, no delivery is the last."""
    for rules in (
        of_policy(for_dead_letters(), Settings()),
        letter_rules(),
    ):
        assert not rules.is_exhausted(1_000_000)
        assert not rules.is_last(1_000_000)


def test_a_queues_rules_follow_its_policy() -> None:
    """They say whether there are dead letters, and that expired messages become some."""
    declared = Policy()
    declared.dead_letters = False
    rules = of_policy(declared, Settings())

    assert (False, True, NO_BOUND) == (
        rules.dead_letters,
        rules.expired_are_letters,
        rules.in_flight_max,
    )


def test_a_subscriptions_rules_follow_the_settings() -> None:
    """Expired messages are dropped, and the window bounds the messages in flight."""
    rules = Rules(Settings(max_retries=7, window=12))

    assert (7, 12, True, False, False) == (
        rules.attempts_max,
        rules.in_flight_max,
        rules.dead_letters,
        rules.expired_are_letters,
        rules.first_goes_alone,
    )


def test_a_dead_letter_queue_has_no_attempt_limit() -> None:
    """Dead letters wait for a consumer, and are never dead-lettered again."""
    rules = queue_rules(max_attempts=1)
    rules.lift_limits()

    assert not rules.is_exhausted(1_000_000)
    assert not rules.first_goes_alone
    assert not rules.dead_letters
