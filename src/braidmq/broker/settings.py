"""The numbers that delivery obeys, in the units the broker computes with."""

from typing import Final

US_PER_MS: Final = 1000
US_PER_S: Final = 1_000_000


class Settings:
    """How long, how often and how much; times are microseconds, sizes bytes."""

    def __init__(
        self,
        *,
        max_retries: int = 5,
        retry_backoff_us: int = 5_000 * US_PER_MS,
        retry_backoff_max_us: int = 60_000 * US_PER_MS,
        message_ttl_us: int = 0,
        window: int = 1024,
        window_bytes: int = 16 * 1024 * 1024,
        dedup_window_us: int = 120 * US_PER_S,
        queue_ack_timeout_us: int = 30 * US_PER_S,
        queue_attempts_max: int = 3,
        queue_backoff_us: int = 2 * US_PER_S,
        queue_backoff_max_us: int = 120 * US_PER_S,
        queue_ttl_us: int = 0,
        queue_window: int = 0,  # 0: as others
        queue_window_bytes: int = 0,
        lease_us: int = 86_400 * US_PER_S,
        lease_qos0_us: int = 300 * US_PER_S,
        memory_bytes: int = 512 * 1024 * 1024,
        offline_us: int = 0,  # 0: off
        qumbed_route_all: bool = False,
        qumbed_gateway_off: bool = False,
    ) -> None:
        assert max_retries >= 1
        assert 0 < retry_backoff_us <= retry_backoff_max_us
        assert window >= 1
        assert window_bytes >= 1
        self.max_retries: int = max_retries
        self.retry_backoff_us: int = retry_backoff_us
        self.retry_backoff_max_us: int = retry_backoff_max_us
        self.message_ttl_us: int = message_ttl_us
        self.window: int = window
        self.window_bytes: int = window_bytes
        self.dedup_window_us: int = dedup_window_us
        self.queue_ack_timeout_us: int = queue_ack_timeout_us
        self.queue_attempts_max: int = queue_attempts_max
        self.queue_backoff_us: int = queue_backoff_us
        self.queue_backoff_max_us: int = queue_backoff_max_us
        self.queue_ttl_us: int = queue_ttl_us
        self.queue_window: int = queue_window or window
        self.queue_window_bytes: int = queue_window_bytes or window_bytes
        self.lease_us: int = lease_us
        self.lease_qos0_us: int = lease_qos0_us
        self.memory_bytes: int = memory_bytes
        # Of followers: how long one that is away is kept, and what is for them.
        self.offline_us: int = offline_us
        self.qumbed_route_all: bool = qumbed_route_all
        self.qumbed_gateway_off: bool = qumbed_gateway_off
