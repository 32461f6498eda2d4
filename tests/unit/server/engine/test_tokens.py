"""A token bucket: a burst, then one token for each part of a second."""

from braidmq.server.engine.tokens import TokenBucket


def test_tokens_are_earned_with_time() -> None:
    """As many as the rate at once, then one for each of its parts of a second."""
    tokens = TokenBucket(2)
    at_once = [tokens.take(1_000_000) for _ in range(3)]
    later = [tokens.take(now_us) for now_us in (1_400_000, 1_500_000, 1_500_000)]
    much_later = [tokens.take(9_000_000) for _ in range(3)]

    assert [True, True, False] == at_once
    assert [False, True, False] == later
    assert [True, True, False] == much_later


def test_what_is_missing_is_there_after_that_time() -> None:
    """A microsecond more than exact, so that the timer does not come too early."""
    tokens = TokenBucket(4)
    for _ in range(4):
        tokens.take(1_000_000)
    assert not tokens.take(1_100_000)
    missing_us = tokens.missing_us()

    assert 150_000 <= missing_us <= 150_001
    assert tokens.take(1_100_000 + missing_us)
