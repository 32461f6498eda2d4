"""The delivery settings."""

import pytest

from braidmq.broker.settings import Settings


def test_the_defaults_match_the_manual() -> None:
    """Five deliveries, five seconds to a minute, no time to live, a day's lease."""
    settings = Settings()

    assert 5 == settings.max_retries
    assert (5_000_000, 60_000_000) == (settings.retry_backoff_us, settings.retry_backoff_max_us)
    assert 0 == settings.message_ttl_us
    assert (1024, 16 * 1024 * 1024) == (settings.window, settings.window_bytes)
    assert 120_000_000 == settings.dedup_window_us
    assert (86_400_000_000, 300_000_000) == (settings.lease_us, settings.lease_qos0_us)
    assert 512 * 1024 * 1024 == settings.memory_bytes


def test_every_setting_can_be_given() -> None:
    """None is swapped with another."""
    settings = Settings(
        max_retries=1,
        retry_backoff_us=2,
        retry_backoff_max_us=3,
        message_ttl_us=4,
        window=5,
        window_bytes=6,
        dedup_window_us=7,
        lease_us=8,
        lease_qos0_us=9,
        memory_bytes=10,
    )

    assert list(range(1, 11)) == [
        settings.max_retries,
        settings.retry_backoff_us,
        settings.retry_backoff_max_us,
        settings.message_ttl_us,
        settings.window,
        settings.window_bytes,
        settings.dedup_window_us,
        settings.lease_us,
        settings.lease_qos0_us,
        settings.memory_bytes,
    ]


def test_invalid_settings_are_a_programming_error() -> None:
    """The configuration refuses them earlier."""
    with pytest.raises(AssertionError):
        Settings(max_retries=0)
    with pytest.raises(AssertionError):
        Settings(retry_backoff_us=0)
    with pytest.raises(AssertionError):
        Settings(retry_backoff_us=2, retry_backoff_max_us=1)
    with pytest.raises(AssertionError):
        Settings(window=0)
    with pytest.raises(AssertionError):
        Settings(window_bytes=0)


def test_followers_are_not_kept_offline_by_default() -> None:
    """Nor do they get messages for other keys; each of the three can be set."""
    plain = Settings()
    other = Settings(offline_us=1, qumbed_route_all=True, qumbed_gateway_off=True)

    assert (0, False, False) == (
        plain.offline_us,
        plain.qumbed_route_all,
        plain.qumbed_gateway_off,
    )
    assert (1, True, True) == (
        other.offline_us,
        other.qumbed_route_all,
        other.qumbed_gateway_off,
    )
