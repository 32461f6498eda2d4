"""Recovery: the newest valid snapshot, and every record after it.

An invalid snapshot is passed over and reported: the one before it and more records give the
same state. Damaged records are another matter: with those the log refuses to open.
"""

from collections.abc import Callable
from dataclasses import dataclass

from braidmq.base.errors import LogPoisonedError
from braidmq.broker import records, state
from braidmq.broker.broker import Broker
from braidmq.broker.settings import US_PER_MS, US_PER_S, Settings
from braidmq.server.config.config import Config, VibeConfig, delivery_for
from braidmq.wal import snapshots
from braidmq.wal.disk import Files
from braidmq.wal.opening import Watch, unwatched
from braidmq.wal.options import WalOptions
from braidmq.wal.wal import Wal


@dataclass(frozen=True, slots=True)
class Recovered:
    """A broker, the log it was recovered from, and the files of invalid snapshots."""

    broker: Broker
    wal: Wal
    snapshots_rejected: list[str]


def settings_of(config: Config) -> Settings:
    """Return the delivery settings of a configuration."""
    delivery = delivery_for(config, "blip")
    return Settings(
        max_retries=delivery.max_retries,
        retry_backoff_us=delivery.retry_backoff_ms * US_PER_MS,
        retry_backoff_max_us=delivery.retry_backoff_max_ms * US_PER_MS,
        message_ttl_us=delivery.message_ttl_ms * US_PER_MS,
        window=delivery.window,
        window_bytes=delivery.window_bytes,
        dedup_window_us=int(delivery_for(config, "vibe").dedup_window_s * US_PER_S),
        lease_us=int(config.blip.subscription_lease_s * US_PER_S),
        lease_qos0_us=int(config.blip.subscription_lease_qos0_s * US_PER_S),
        memory_bytes=config.limits.max_memory_bytes,
        queue_ack_timeout_us=config.vibe.ack_timeout_ms * US_PER_MS,
        offline_us=int(config.qumbed.offline_s * US_PER_S),
        qumbed_route_all=config.qumbed.route == "all",
        qumbed_gateway_off=config.qumbed.gateway == "off",
        **_queue_defaults(config.vibe),
    )


def _queue_defaults(vibe: VibeConfig) -> dict[str, int]:
    # [delivery] is about Blip; queues have defaults of their own, which [vibe] overrides.
    given = {
        "queue_attempts_max": vibe.max_retries,
        "queue_backoff_us": _us(vibe.retry_backoff_ms),
        "queue_backoff_max_us": _us(vibe.retry_backoff_max_ms),
        "queue_ttl_us": _us(vibe.message_ttl_ms),
        "queue_window": vibe.window,
        "queue_window_bytes": vibe.window_bytes,
    }
    return {name: value for name, value in given.items() if value is not None}


def _us(ms: int | None) -> int | None:
    return None if ms is None else ms * US_PER_MS


def recover(
    files: Files,
    config: Config,
    *,
    now_us: int,
    clock: Callable[[], float],
    watch: Watch = unwatched,
) -> Recovered:
    """Return the broker as it was when its last record was committed.

    *watch* is called with the progress through the log.

    Raises:
        DamagedLogError: Accepted data cannot be read.
        LogPoisonedError: The disk failed.
    """
    broker = Broker(settings_of(config))
    rejected: list[str] = []
    try:
        snapshot = snapshots.load(files, rejected)
    except OSError as error:
        raise LogPoisonedError("reading the snapshots", str(error)) from error
    if snapshot is not None:
        state.restore(broker, snapshot.body)
    options = WalOptions(
        fsync=config.wal.fsync,
        segment_bytes=config.wal.segment_bytes,
        retention_hours=config.wal.retention_hours,
        retention_bytes=config.wal.retention_bytes,
        retention_force=config.wal.retention_force,
    )
    wal = Wal.open(
        files,
        options,
        records.describe,
        now_us=now_us,
        after_id=0 if snapshot is None else snapshot.last_id,
        visit=lambda record_id, body: state.replay(broker, record_id, body),
        clock=clock,
        watch=watch,
    )
    # The clock may have been set back since: time in the log must not go back with it.
    state.recovered(broker, wal.next_id, max(now_us, broker.latest_us))
    return Recovered(broker, wal, rejected)
