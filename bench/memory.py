"""A subscription far behind: its cost in memory, and the time to restart.

One broker, one durable subscription that never reads, and a long log. The broker is killed and
restarted, then stopped and restarted: the first start replays the log since the last snapshot,
if there is one; the second finds everything in its snapshot.
"""

import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import blip, vibe
from bench.servers import Broker
from bench.streams import BrokenRunError

HTTP_S_MAX: Final = 10.0
_RECOVERY_METRIC: Final = "braidmq_recovery_seconds "
_PUBLISHED_METRIC: Final = "braidmq_wal_committed_id "


@dataclass(frozen=True)
class Restart:
    """Duration of a start: until the ready file, and the broker's own figure for recovery."""

    ready_s: float
    recovery_s: float


@dataclass(frozen=True)
class Backlog:
    """The figures of a broker with a subscription far behind."""

    messages: int
    grown_bytes: int
    after_kill: Restart
    after_stop: Restart


def backlog(directory: Path, messages: int) -> Backlog:
    """Publish *messages* without consuming them; measure memory and two restarts."""
    with Broker(directory) as broker, blip.open_connection(broker) as connection:
        blip.subscribe(connection, 1)
        before = broker.rss_bytes
        blip.publish_all(connection, messages)
        grown = broker.rss_bytes - before
        broker.kill()
    after_kill = _restart(directory, messages)
    after_stop = _restart(directory, messages)
    return Backlog(messages, grown, after_kill, after_stop)


def queues(directory: Path, count: int) -> int:
    """Publish one message to each of *count* queues; return the growth of memory."""
    with Broker(directory) as broker:
        before = broker.rss_bytes
        vibe.fill_queues(broker, count)
        return broker.rss_bytes - before


def _restart(directory: Path, messages: int) -> Restart:
    with Broker(directory) as broker:
        if _metric(broker, _PUBLISHED_METRIC) < messages:
            raise BrokenRunError("messages are missing after a restart")
        return Restart(broker.ready_s, _metric(broker, _RECOVERY_METRIC))


def _metric(broker: Broker, name: str) -> float:
    address = f"http://{broker.http}/metrics"
    with urllib.request.urlopen(address, timeout=HTTP_S_MAX) as page:
        lines = page.read().decode().splitlines()
    for line in lines:
        if line.startswith(name):
            return float(line.removeprefix(name))
    raise BrokenRunError(f"{address} has no {name}")
