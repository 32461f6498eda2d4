"""Recovery: the newest valid snapshot, and every record after it.

An invalid snapshot is passed over and reported: the one before it and more records give the
same state. Damaged records are another matter: with those the log refuses to open.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from braidmq.base.ids import FIRST_ID
from braidmq.broker import records, state
from braidmq.broker.broker import Broker
from braidmq.broker.delivery import recounts
from braidmq.broker.settings import US_PER_MS, US_PER_S, Settings
from braidmq.broker.times import Start
from braidmq.server.config.config import Config, VibeConfig, delivery_for
from braidmq.server.engine.counting import Counting
from braidmq.wal import snapshots
from braidmq.wal.disk import Files
from braidmq.wal.failures import failure_of
from braidmq.wal.opening import Watch, unwatched
from braidmq.wal.options import WalOptions
from braidmq.wal.segment import damage
from braidmq.wal.wal import Wal

_NO_TOPIC: Final = b"\xff"
"""The name of no topic: a read of it finds nothing but the gaps that a repair left."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A broker, its log, the files of invalid snapshots, and the time at the start."""

    broker: Broker
    wal: Wal
    snapshots_rejected: list[str]
    start: Start


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

    *now_us* is the system's time, which may be wrong: see `braidmq.broker.times`. *watch* is
    called with the progress through the log.

    Raises:
        DamagedLogError: Accepted data is not what was written, or is missing.
        LogScarceError: There is no descriptor or memory for it now: try again.
        LogFullError: The disk has no room for a new log, or to set a torn tail aside.
        LogPoisonedError: The disk failed.
    """
    broker = Broker(settings_of(config))
    rejected: list[str] = []
    try:
        snapshot = snapshots.load(files, rejected)
        is_newest = _is_newest(files, snapshot)
    except OSError as error:
        raise failure_of("reading the snapshots", error) from error
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
    broker.topics.floor_id = wal.first_id
    start = broker.times.judge(now_us, int(config.limits.downtime_max_s * US_PER_S))
    state.recovered(broker, wal.next_id, start.now_us)
    _check_places(broker, wal, is_newest=is_newest)
    _recount(broker, wal)
    if start.step_us:
        broker.times.step(start.step_us, start.now_us)
        broker.dedup.move(start.step_us)
    wal.steps = broker.times
    return Recovered(broker, wal, rejected, start)


def readers_place(broker: Broker) -> int:
    """Return the lowest id that a subscription, a queue or a follower still needs.

    A cursor may be opened at any offset, also at one that the log does not hold any more; its
    reader is told. The others begin at the end of the log.
    """
    committed_id = broker.committed_id
    return min(
        broker.subscriptions.needed_id(committed_id),
        broker.queues.needed_id(committed_id),
        broker.followers.needed_id(committed_id),
    )


def _is_newest(files: Files, snapshot: snapshots.Snapshot | None) -> bool:
    """Return whether no newer snapshot than this was set aside, by this start or another."""
    set_aside = snapshots.list_quarantined(files)
    return max(set_aside, default=0) <= (0 if snapshot is None else snapshot.last_id)


def _check_places(broker: Broker, wal: Wal, *, is_newest: bool) -> None:
    """Refuse a log that begins behind what its readers still need, unless that was forced.

    Retention waits for them, or writes down in the floor that it did not; so something else
    took the segments, before there was a floor, or with it. Not if the newest snapshot was
    invalid: an older one knows less of how far its readers had come.
    """
    if not is_newest or wal.floor.forced_id >= wal.first_id - 1:
        return
    place = readers_place(broker)
    if place < wal.first_id:
        reason = "missing segment: a subscription or a queue has not passed it"
        raise damage(place, (place, wal.first_id - 1), reason)


def _recount(broker: Broker, wal: Wal) -> None:
    """Correct the counts of queues after forced retention, or a repair."""
    lost = [(0, wal.first_id - 1)] if wal.first_id > FIRST_ID else []
    if wal.recovered.has_gaps:
        found = wal.read(
            wal.first_id - 1, topic=_NO_TOPIC, up_to=wal.committed_id, count_max=1, bytes_max=1
        )
        lost += found.gaps
    wanted = recounts.Survey(broker.queues, lost)
    while not wanted.go_on():
        pass
    counting = Counting(wal, wanted.found)
    while not counting.go_on():
        pass
    for recount, count in counting.counts():
        recount.apply(count)
