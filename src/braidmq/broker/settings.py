"""The numbers that delivery obeys, in the units the broker computes with."""

from typing import Final, NamedTuple, final

US_PER_MS: Final = 1000
US_PER_S: Final = 1_000_000


class QueueSettings(NamedTuple):
    """The numbers of queues; those of messages are defaults, which a declaration overrides."""

    ack_timeout_us: int
    attempts_max: int
    backoff_us: int
    backoff_max_us: int
    ttl_us: int
    window: int
    window_bytes: int


@final
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
        queue_window: int = 0,  # 0: as `window`
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
        self.queues: QueueSettings = QueueSettings(
            ack_timeout_us=queue_ack_timeout_us,
            attempts_max=queue_attempts_max,
            backoff_us=queue_backoff_us,
            backoff_max_us=queue_backoff_max_us,
            ttl_us=queue_ttl_us,
            window=queue_window or window,
            window_bytes=queue_window_bytes or window_bytes,
        )
        self.lease_us: int = lease_us
        self.lease_qos0_us: int = lease_qos0_us
        self.memory_bytes: int = memory_bytes
        # Followers: how long one that is away is kept, and which messages go to them.
        self.offline_us: int = offline_us
        self.qumbed_route_all: bool = qumbed_route_all
        self.qumbed_gateway_off: bool = qumbed_gateway_off
