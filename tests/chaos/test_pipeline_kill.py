"""SIGKILL of pipelines at random moments, repeatedly: the JVM, alone or with its driver.

The suite's first three runs kill the JVM of four pipelines, the driver and the JVM of four, and
the JVM of a report; where the driver is killed, the archive is in Delta format. The last run
has all pipelines, on a cluster of processes: an executor and a Python worker are killed, and
the run continues by itself.

BRAIDMQ_SPARK_KILLS sets the number of kills; from six on, each run has two pipelines, so that
every pipeline is killed at many moments. BRAIDMQ_CHAOS_SEED sets the seed.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final

import psutil
import pyarrow.parquet as pq
import pytest

from tests.chaos.pipeline_life import BEGUN, ENDED, REPLAY_TOPIC
from tests.integration.spark import rolled
from tests.integration.spark.conftest import ON_LOOPBACK, QUICK
from tests.integration.spark.families import Tasks, family_of
from tests.integration.spark.outputs import (
    TEMPERATURE,
    TOPICS,
    archived,
    expected_typed,
    in_delta,
    readings,
    typed_rows,
)
from tests.integration.spark.replays import replayed, without_death
from tests.integration.spark.serving import Serving, serving, until
from tests.unit.columnar.logs import Row, plain_rows, write_log
from tests.unit.spark.pipelines.minutes import Event as Reading
from tests.unit.spark.pipelines.minutes import count
from tests.unit.spark.running import KEY

pytestmark = pytest.mark.slow

KILLS: Final = int(os.environ.get("BRAIDMQ_SPARK_KILLS", "3"))
SEED: Final = int(os.environ.get("BRAIDMQ_CHAOS_SEED", "1"))
READINGS_PER_KILL: Final = 40
EVENTS_PER_KILL: Final = 24
LIMIT: Final = 6
RATE: Final = 8
"""Messages per micro-batch, and replayed per second: low, so that kills come in the middle."""

NO_LIMIT: Final = 1_000_000

_TABLE: Final = ("*.staged", "*.intent", "batch-*.parquet", "*.done", "offsets/[0-9]*")
STEPS: Final = {
    "archive": _TABLE,
    "delta": ("*.staged", "batch-*.parquet", "_delta_log/*.json", "offsets/[0-9]*"),
    "typed": _TABLE,
    "rollup": ("windows/*/*", "stages/*", "batch-*.parquet", "offsets/[0-9]*"),
    "replay": ("stages/*", "replay/_checkpoint/*"),
    "report": ("report/*.parquet",),
}
"""The files that a batch of each pipeline writes, step by step."""

_OTHERS: Final = ("typed", "rollup", "replay", "report")
PIPELINES: Final = {"JVM": ("archive", *_OTHERS), "driver": ("delta", *_OTHERS)}
"""Pipelines whose JVM is killed, and those whose driver is killed together with its JVM."""

SHORT: Final = (
    ("JVM", ("archive", "typed", "rollup", "replay")),
    ("driver", ("delta", "typed", "rollup", "replay")),
    ("JVM", ("report", "archive")),
)
"""The suite's runs: each pipeline loses its JVM once."""

ROUND_KILLS: Final = 6
"""After this many runs of two pipelines, each was in a run of each kind."""

LAST: Final = (("archive", "delta"), *([name] for name in _OTHERS))
"""The two archives run one after the other: a machine with two cores is busy enough."""

PARTS: Final = ("executor", "worker")
"""What is killed in the last run, which survives it."""

TABLES: Final = ("archive", "delta", "typed", "rollup")
LAST_LIMIT: Final = KILLS * READINGS_PER_KILL // 4
"""Messages per micro-batch of the last run: it has several batches, and is still short."""

STEPS_MAX: Final = 3 if KILLS <= 10 else 6
CHANGES_MAX: Final = 20
"""Changed files before a kill: of the chosen step, or of any other if that comes first."""

PATIENCE_S: Final = 300
LOOK_S: Final = 0.02
DELAY_S_MAX: Final = 0.4
CLUSTER: Final = "local-cluster[2,1,1024]"
ROOT: Final = Path(__file__).resolve().parents[2]


def deaths(rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Yield what is killed next, and the pipelines of that run.

    With two pipelines each, three runs of a kind cover all five: one is in two of them.
    """
    if KILLS < ROUND_KILLS:
        yield from ((victim, list(names)) for victim, names in SHORT)
    while True:
        rings = {victim: rng.sample(names, len(names)) for victim, names in PIPELINES.items()}
        for at in range(0, len(PIPELINES["JVM"]), 2):
            for victim, ring in rings.items():
                yield victim, [ring[at - 1], ring[at]]


class Rig:
    """A broker, the tables, and one process after the other that writes them."""

    def __init__(self, root: Path, broker: Serving, expected: list[Row]) -> None:
        self.rng = random.Random(SEED)
        self.root, self.out, self.broker = root, root / "out", broker
        self.expected = [row for row in expected if row["topic"] in TOPICS]
        self.typed = expected_typed(broker.path, TEMPERATURE)
        self.log_file = root / "life.log"
        self.deaths = deaths(self.rng)
        self.kills: Counter[str] = Counter()
        self.hit: set[tuple[str, str]] = set()

    def start(
        self,
        *pipelines: Sequence[str],
        master: str = "local[2,4]",
        limit: int = LIMIT,
        rate: int = RATE,
    ) -> subprocess.Popen[bytes]:
        arguments = {
            "pipelines": pipelines,
            "log": str(self.broker.path),
            "out": str(self.out),
            "end": str(self.expected[-1]["offset"] + 1),
            "sink": {"endpoint": self.broker.address, "apiKey": KEY},
            "config": QUICK,
            "master": master,
            "limit": limit,
            "rate": rate,
        }
        command = [sys.executable, "-m", "tests.chaos.pipeline_life", json.dumps(arguments)]
        with self.log_file.open("ab") as stderr:
            return subprocess.Popen(
                command, stderr=stderr, cwd=ROOT, env={**os.environ, **ON_LOOPBACK}
            )

    def pick_moment(self, *pipelines: str) -> Callable[[], bool]:
        """Return a condition that holds after some random step of some batch."""
        patterns = [pattern for name in pipelines for pattern in STEPS[name]]
        enough = {self.rng.choice(patterns): self.rng.randint(1, STEPS_MAX)}
        seen = {pattern: self._files(pattern) for pattern in patterns}
        before = {pattern: len(files) for pattern, files in seen.items()}

        def is_due() -> bool:
            for pattern, files in seen.items():
                files.update(self._files(pattern))
                if len(files) - before[pattern] >= enough.get(pattern, CHANGES_MAX):
                    return True
            return False

        return is_due

    def has_logged(self, line: str) -> bool:
        """Say whether the current run has logged this line."""
        return line in self.log_file.read_text().splitlines()

    def _files(self, pattern: str) -> set[tuple[Path, int]]:
        """Return the files with their times, without those deleted in the meantime."""
        found = set()
        with suppress(FileNotFoundError):
            for path in self.root.rglob(pattern):
                found.add((path, path.stat().st_mtime_ns))
        return found

    def run_and_kill(self) -> None:
        """Start a run, and kill it shortly after some step of some batch."""
        victim, pipelines = next(self.deaths)
        self.log_file.write_bytes(b"")
        # A report is short, and writes no file before it is nearly done.
        in_report = victim == "JVM" and "report" in pipelines
        moment = self.pick_moment(*pipelines)
        is_due = partial(self.has_logged, BEGUN.format("report")) if in_report else moment
        child = self.start(*([name] for name in pipelines))
        try:
            self.watch(child, is_due)
            self.kill(child, victim)
            self.note_kill(victim, *pipelines)
        finally:
            child.kill()  # even if the test has failed
            child.wait()

    def run_last(self) -> None:
        """Start the last run, kill an executor and a worker at two moments, and let it end."""
        self.log_file.write_bytes(b"")
        child = self.start(*LAST, master=CLUSTER, limit=LAST_LIMIT, rate=NO_LIMIT)
        try:
            for victim in self.rng.sample(PARTS, len(PARTS)):
                self.kill_part(child, victim)
                self.note_kill(victim, *TABLES)
            assert 0 == child.wait(PATIENCE_S), self.log_file.read_text()
        finally:
            child.kill()
            child.wait()

    def watch(self, child: subprocess.Popen[bytes], is_due: Callable[[], bool]) -> None:
        """Wait until it is time for a kill, and then perhaps a moment longer."""
        give_up, pause = time.monotonic() + PATIENCE_S, Event()
        while child.poll() is None and not is_due():
            assert time.monotonic() < give_up, self.log_file.read_text()
            pause.wait(LOOK_S)
        pause.wait(self.rng.choice((0.0, self.rng.random() * DELAY_S_MAX)))
        assert child.poll() is None, (
            f"the run ended before the kill: {self.log_file.read_text()}"
        )

    def note_kill(self, victim: str, *pipelines: str) -> None:
        """Record what was killed, and which pipelines were still running."""
        lines = self.log_file.read_text().splitlines()
        self.kills[victim] += 1
        self.hit |= {(victim, name) for name in pipelines if ENDED.format(name) not in lines}

    def kill(self, child: subprocess.Popen[bytes], victim: str) -> None:
        """Kill the JVM, alone or with its driver; wait until both are gone."""
        driver = psutil.Process(child.pid)
        (java,) = [member for name, member in family_of(driver) if name == "java"]
        for process in (driver, java) if victim == "driver" else (java,):
            process.kill()
        child.wait(PATIENCE_S)
        _, alive = psutil.wait_procs([java], PATIENCE_S)
        assert not alive

    def kill_part(self, child: subprocess.Popen[bytes], victim: str) -> None:
        """Kill an executor or a worker in the middle of a task; wait until it is gone."""
        step, driver = self.pick_moment(*TABLES), psutil.Process(child.pid)
        # Do not wait beyond the first archive: the second one still runs then.
        self.watch(child, lambda: step() or self.has_logged(ENDED.format("archive")))
        tasks = Tasks(driver)
        found: list[tuple[psutil.Process, psutil.Process]] = []

        def is_caught() -> bool:
            found[:] = tasks.busy()
            return bool(found)

        until(is_caught)
        process = self.rng.choice(found)[PARTS.index(victim)]
        process.kill()
        _, alive = psutil.wait_procs([process], PATIENCE_S)
        assert not alive

    def check(self) -> None:
        """Check that no row is duplicated or unexpected, and that no file is broken."""
        for file in self.out.rglob("*.parquet"):
            pq.ParquetFile(file).read()
        for found in (archived(self.out / "archive"), in_delta(self.out / "delta")):
            assert [row for row in self.expected if row in found] == found
        tables = typed_rows(self.out / "typed", TEMPERATURE)
        for rows, right in zip(tables, self.typed, strict=True):
            assert [row for row in right if row in rows] == rows
        sent = replayed(self.broker, REPLAY_TOPIC)
        assert self.to_replay()[: len(sent)] == sent
        minutes = self.broker.values(rolled.TOPIC)
        assert len(set(minutes)) == len(minutes)
        page = self.out / "report" / "report.html"
        assert not page.exists() or page.read_text().rstrip().endswith("</html>")

    def to_replay(self) -> list[Row]:
        return [without_death(row) for row in self.expected]

    def check_complete(self, events: list[Reading]) -> None:
        """Check that nothing is missing."""
        assert self.expected == archived(self.out / "archive")
        assert self.expected == in_delta(self.out / "delta")
        assert self.typed == typed_rows(self.out / "typed", TEMPERATURE)
        assert self.to_replay() == replayed(self.broker, REPLAY_TOPIC)
        minutes = count(events, rolled.RULES.watermark_ms, close=True)
        rolled.check(self.out / "rollup", self.broker, minutes)
        counted = pq.read_table(self.out / "report" / "topics.parquet").to_pylist()
        assert Counter(row["topic"] for row in self.expected) == {
            row["topic"]: row["messages"] for row in counted
        }


@contextmanager
def rig_in(root: Path, events: list[Reading]) -> Iterator[Rig]:
    """Serve a log of readings and then events, of which no pipeline has written anything."""
    path = root / "broker" / "data"
    path.parent.mkdir()
    bodies = [*readings(KILLS * READINGS_PER_KILL), *map(rolled.body, events)]
    write_log(path, bodies, segment_bytes=1 << 20)
    expected = plain_rows(path)
    with serving(path) as broker:
        yield Rig(root, broker, expected)


@pytest.mark.timeout(120 * KILLS + 600)
def test_each_row_is_in_its_table_once_whatever_is_killed(tmp_path: Path) -> None:
    """Plain pyarrow reads the tables after every kill and at the end; topics likewise."""
    first = KILLS * READINGS_PER_KILL + 1
    events = rolled.events_of(SEED, KILLS * EVENTS_PER_KILL, first)
    with rig_in(tmp_path, events) as rig:
        for _ in range(KILLS):
            rig.run_and_kill()
            rig.check()
        rig.run_last()
        rig.check()
        rig.check_complete(events)

        assert KILLS == rig.kills["JVM"] + rig.kills["driver"]
        assert {"executor", "worker"} <= {victim for victim, _ in rig.hit}
        if KILLS >= len(SHORT):
            assert {("JVM", name) for name in PIPELINES["JVM"]} <= rig.hit
            assert ("driver", "delta") in rig.hit
