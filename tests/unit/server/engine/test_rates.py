"""Rates: tokens for messages."""

from braidmq.server.engine.rates import TokenBucket


def test_tokens_are_earned_with_time() -> None:
    """A second's worth at once, then one at a time, at the rate."""
    tokens = TokenBucket(2)
    at_once = [tokens.take(1_000_000) for _ in range(3)]
    later = [tokens.take(now_us) for now_us in (1_400_000, 1_500_000, 1_500_000)]
    much_later = [tokens.take(9_000_000) for _ in range(3)]

    assert [True, True, False] == at_once
    assert [False, True, False] == later
    assert [True, True, False] == much_later


def test_a_missing_token_is_there_after_the_stated_time() -> None:
    """The time is rounded up, so that the timer does not fire too early."""
    tokens = TokenBucket(4)
    for _ in range(4):
        tokens.take(1_000_000)
    assert not tokens.take(1_100_000)
    missing_us = tokens.missing_us()

    assert 150_000 <= missing_us <= 150_001
    assert tokens.take(1_100_000 + missing_us)
