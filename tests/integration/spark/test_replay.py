"""The replay in a real session: it publishes each row once, in order.

Kills are in `tests/chaos/test_pipeline_kill.py`.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Final

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from braidmq import columnar
from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.replay.chunks import Chunk
from braidmq.spark.pipelines.replay.replay import Replay, ReplayOptions, replay
from braidmq.spark.pipelines.runs.runs import Plan, Run
from tests.integration.spark.replays import replayed, without_death
from tests.integration.spark.serving import Serving, serving
from tests.unit.columnar.logs import Row, dead_letter, message, write_log
from tests.unit.spark.running import KEY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(600),
]

ROWS: Final = 120
NOON: Final = datetime(2026, 11, 16, 12, tzinfo=UTC)
NOON_US: Final = int(NOON.timestamp() * 1_000_000)


def bodies() -> Iterator[bytes]:
    """Yield a message per second from noon on: two topics, and dead letters from one."""
    for number in range(ROWS):
        moment_us = NOON_US + number * 1_000_000
        kept = {"key": f"k{number}", "größe": "ü"} if number % 3 else {}
        payload = b"%d" % number * (number % 4)
        if number % 10 == 9:
            death = {"deathReason": "expired", "deathQueue": "a", "deathAttempts": "3"}
            yield dead_letter("dlq.a", payload, moment_us, {**kept, **death})
        else:
            topic, priority = ("b" if number % 2 else "a"), number % 4
            yield message(topic, payload, moment_us, priority=priority, kept=kept)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = write_log(
        tmp_path_factory.mktemp("broker") / "data", bodies(), segment_bytes=1 << 20
    )
    with serving(path) as found:
        yield found


@pytest.fixture(scope="module")
def log(broker: Serving) -> list[Row]:
    """The rows of the log before any replay."""
    return broker.rows()


def plan_of(broker: Serving, out: Path, **source: str) -> Plan:
    return Plan({"path": str(broker.path), **source}, out)


def sink_of(broker: Serving) -> dict[str, str]:
    return {"endpoint": broker.address, "apiKey": KEY}


class CrashError(Exception):
    """Raised by a test to crash a chunk."""


def test_a_replay_that_crashes_resumes_where_it_was(
    spark: SparkSession,
    broker: Serving,
    log: list[Row],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Crashes before and after a chunk is sent, with another rate each time, then none."""
    plan = plan_of(broker, tmp_path, endingOffsets=str(log[-1]["offset"] + 1))
    lines: list[str] = []
    run = Run("replay", plan, lines.append)
    send, rates = Replay._send, iter([13.0, 8.0, 20.0, 11.0])  # noqa: SLF001 - the test makes it crash

    def crashing(self: Replay, spark: SparkSession, chunk: Chunk, *, after: bool) -> None:
        if chunk.number >= 2 and after:
            send(self, spark, chunk)
        if chunk.number >= 2:
            raise CrashError
        send(self, spark, chunk)

    for after in (False, True, False):
        with monkeypatch.context() as patch:
            patch.setattr(run.stopping, "wait", lambda _seconds: False)
            patch.setattr(
                Replay,
                "_send",
                lambda self, s, c, after=after: crashing(self, s, c, after=after),
            )
            with pytest.raises(CrashError):
                Replay(
                    run, ReplayOptions("crashes", sink_of(broker), None, "c", next(rates))
                ).go()
    replay(plan, ReplayOptions("crashes", sink_of(broker), None, "c"), lines.append)
    once = replayed(broker, "c")
    replay(plan, ReplayOptions("crashes", sink_of(broker), None, "c"), lines.append)

    assert list(map(without_death, log)) == once == replayed(broker, "c")
    assert "replay: 'crashes' is done; nothing is left of it" == lines[-1]
    with pytest.raises(ConfigError, match=r"--checkpoint: .*'crashes', not 'other'"):
        replay(plan, ReplayOptions("other", sink_of(broker), None, "c"), lines.append)


def test_a_time_range_of_the_log_is_replayed_to_its_topics(
    spark: SparkSession, broker: Serving, log: list[Row], tmp_path: Path
) -> None:
    """Over the network; dead letters return to their queue; the range excludes its end."""
    first, behind = log[40]["timestamp"], log[80]["timestamp"]
    times = {"startingTimestamp": first, "endingTimestamp": behind}
    source = {name: str(int(moment.timestamp() * 1000)) for name, moment in times.items()}
    plan = Plan({**sink_of(broker), "subscribePattern": "a|dlq[.]a", **source}, tmp_path)
    wanted = [r for r in log[40:80] if r["topic"] != "b"]
    rate = (len(wanted) - 1) / 2
    begun = monotonic()
    lines: list[str] = []
    replay(plan, ReplayOptions("times", sink_of(broker), rate=rate), lines.append)
    took = monotonic() - begun

    assert 20 < len(wanted)
    assert list(map(without_death, wanted)) == replayed(broker, "a")
    assert [] == replayed(broker, "dlq.a") == replayed(broker, "b")
    assert took > (len(wanted) - 1) / rate
    assert any("batch 2, 1 row in" in line for line in lines)


def test_a_table_is_replayed_in_the_order_of_its_topics(
    spark: SparkSession, broker: Serving, log: list[Row], tmp_path: Path
) -> None:
    """From files in any order, without reading the log."""
    table = columnar.read(broker.path, headers=True, end=log[-1]["offset"] + 1)
    for number, topic in enumerate(("b", "a", "dlq.a")):
        place = tmp_path / "table" / f"date=2026-11-16/topic_dir={number}"
        place.mkdir(parents=True)
        rows = table.filter([row["topic"] == topic for row in log])
        pq.write_table(rows.slice(20), place / "0.parquet", row_group_size=7)
        pq.write_table(rows.slice(0, 20), place / "1.parquet", row_group_size=7)
    plan = plan_of(broker, tmp_path / "out")
    options = ReplayOptions("table", sink_of(broker), tmp_path / "table", rate=10_000)
    before = {topic: len(replayed(broker, topic)) for topic in ("a", "b")}
    replay(plan, options, lambda _: None)
    replay(plan, options, lambda _: None)

    assert (
        list(map(without_death, (r for r in log if r["topic"] == "b")))
        == (replayed(broker, "b")[before["b"] :])
    )
    found = replayed(broker, "a")[before["a"] :]
    for topic in ("a", "dlq.a"):
        expected = [without_death(r) for r in log if r["topic"] == topic]
        assert expected == [row for row in found if row in expected]
    assert len(found) == sum(row["topic"] != "b" for row in log)
