"""The result of `braidmq bench`: rates and percentiles, as a table or as JSON."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from braidmq.base.counts import counted
from braidmq.base.errors import ConfigError
from braidmq.base.printable import printable
from braidmq.cli.bench.load import Load, Measured

PERCENTILES: Final = "50,90,99,99.9"
PERCENTILES_MAX: Final = 20
_MS: Final = 1000
_MEGA: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Figures:
    """The result of a run; latencies are milliseconds by percentile."""

    strand: str
    topic: str
    qos: int
    size: int
    publishers: int
    subscribers: int
    asked_rate: float | None
    published: int
    refused: int
    delivered: int
    repeated: int
    lost: int
    queue_stays: bool
    topic_stays: bool
    interrupted: bool
    publish_seconds: float
    publish_rate: float
    publish_mb_per_s: float
    deliver_seconds: float
    deliver_rate: float
    deliver_mb_per_s: float
    latency_ms: dict[str, float] = field(default_factory=dict)
    confirmation_ms: dict[str, float] = field(default_factory=dict)


def parse_percentiles(text: str) -> tuple[float, ...]:
    """Parse percentiles separated by commas.

    Raises:
        ConfigError: One of them is not between 0 and 100.
    """
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or len(found) > PERCENTILES_MAX or not all(0 < p <= 100 for p in found):  # noqa: PLR2004 - a hundred per cent
        problem = (
            f"must be 1 to {PERCENTILES_MAX} numbers above 0 and up to 100, as in {PERCENTILES}"
        )
        raise ConfigError("--percentiles", problem)
    return found


def percentile(ordered: Sequence[float], wanted: float) -> float:
    """Return the smallest value that *wanted* percent of the values do not exceed."""
    # 99.9% of 1,000 is 999.0000000000001 in floating point: without rounding, ceil gives
    # the next rank.
    rank = math.ceil(round(len(ordered) * wanted / 100, 6))
    return ordered[max(rank, 1) - 1]


def figures(load: Load, measured: Measured, percentiles: Sequence[float]) -> Figures:
    """Return the figures of a run."""
    published, delivered = measured.published, measured.delivered
    return Figures(
        strand=load.strand,
        topic=load.topic,
        qos=load.qos,
        size=load.size,
        publishers=load.publishers,
        subscribers=load.subscribers,
        asked_rate=load.rate or None,
        published=published,
        refused=measured.refused,
        delivered=delivered,
        repeated=measured.repeated,
        lost=measured.lost,
        queue_stays=measured.queue_stays,
        topic_stays=measured.topic_stays,
        interrupted=measured.interrupted,
        publish_seconds=round(measured.publish_s, 3),
        publish_rate=_rate(published, measured.publish_s),
        publish_mb_per_s=_rate(published * load.size / _MEGA, measured.publish_s),
        deliver_seconds=round(measured.deliver_s, 3),
        deliver_rate=_rate(delivered, measured.deliver_s),
        deliver_mb_per_s=_rate(delivered * load.size / _MEGA, measured.deliver_s),
        latency_ms=_percentiles_ms(measured.latencies, percentiles),
        confirmation_ms=_percentiles_ms(measured.confirmations, percentiles),
    )


def _rate(count: float, seconds: float) -> float:
    return round(count / seconds, 2) if seconds > 0 else 0.0


def _percentiles_ms(values: "array[float]", wanted: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    return {f"p{p:g}": round(percentile(ordered, p) * _MS, 3) for p in wanted}


def rows(found: Figures) -> list[dict[str, object]]:
    """Return the rows of the table."""
    published = (found.published, found.publish_rate, found.publish_mb_per_s)
    told = [_row("published", *published, found.confirmation_ms)]
    if found.subscribers:
        delivered = (found.delivered, found.deliver_rate, found.deliver_mb_per_s)
        told.append(_row("delivered", *delivered, found.latency_ms))
    return told


def _row(
    what: str, count: int, rate: float, mb_per_s: float, percentiles: dict[str, float]
) -> dict[str, object]:
    return {
        "what": what,
        "messages": f"{count:,}",
        "messages/s": f"{rate:,.0f}",
        "MB/s": f"{mb_per_s:,.2f}",
        **{f"{name} ms": f"{value:,.2f}" for name, value in percentiles.items()},
    }


def columns(found: Figures) -> tuple[str, ...]:
    """Return the column names of the table."""
    percentiles = [f"{name} ms" for name in found.confirmation_ms or found.latency_ms]
    return ("what", "messages", "messages/s", "MB/s", *percentiles)


def notes(found: Figures) -> list[str]:
    """Return notes on how to read the table."""
    done = "confirm" if found.qos else "send"
    told = [f"published: time to {done} a batch; delivered: from due time to handler"]
    if found.asked_rate is None and found.subscribers:
        told.append("without --rate the broker is saturated, and latency is mostly queueing")
    return told


def troubles(found: Figures) -> list[str]:
    """Return what went wrong."""
    told = []
    if found.interrupted:
        told.append(f"interrupted: these are the figures of {found.publish_seconds:g} s")
    for name in ("refused", "repeated", "lost"):
        count = getattr(found, name)
        if count:
            told.append(f"{name}: {count:,}")
    return told


def remains(found: Figures) -> str:
    """Return what the run leaves at an existing broker; "" if nothing."""
    told = ""
    if found.topic_stays:
        messages = counted(found.published, "message")
        told = f"topic {printable(found.topic)} stays, with {messages}: "
        told += "`braidmq topic delete` removes it"
    if found.queue_stays:
        queue = f"queue {printable(found.topic)} stays: `braidmq queue delete` removes it"
        told = f"{told}; {queue}" if told else queue
    return told
