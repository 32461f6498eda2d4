"""SIGKILL of pipelines at random moments, again and again: the JVM, alone or with its driver.

In the suite's three lives four pipelines at once lose their JVM, four their driver and at once
its JVM, and a report its JVM; where the driver is killed, the archive is one in Delta's format.
The last life has all of them, and runs on a cluster of processes: an executor is killed, and a
Python worker, and it goes on by itself.

BRAIDMQ_SPARK_KILLS asks for more kills than the suite has time for, with two pipelines in each
life, so that each pipeline is hit at many moments; BRAIDMQ_CHAOS_SEED asks for other ones.
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

from tests.chaos.pipeline_life import AGAIN, BEGUN, ENDED
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
"""Messages of a micro-batch, and those replayed in a second: kills come before all is read."""

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
"""What a batch of a pipeline leaves behind itself, step by step."""

_OTHERS: Final = ("typed", "rollup", "replay", "report")
PIPELINES: Final = {"JVM": ("archive", *_OTHERS), "driver": ("delta", *_OTHERS)}
"""Those whose JVM is killed, and those whose driver is killed and at once its JVM."""

SHORT: Final = (
    ("JVM", ("archive", "typed", "rollup", "replay")),
    ("driver", ("delta", "typed", "rollup", "replay")),
    ("JVM", ("report", "archive")),
)
"""The lives of the suite: each pipeline loses its JVM once."""

ROUND_KILLS: Final = 6
"""After so many lives of two pipelines, each was in a life of each kind."""

LAST: Final = (("archive", "delta"), *([name] for name in _OTHERS))
"""The two archives one after the other: a machine of two cores has enough to start."""

PARTS: Final = ("executor", "worker")
"""What is killed in the last life, which does not end by it."""

TABLES: Final = ("archive", "delta", "typed", "rollup")
LAST_LIMIT: Final = KILLS * READINGS_PER_KILL // 4
"""Messages of a micro-batch of the last life: it has several, and is still short."""

STEPS_MAX: Final = 3 if KILLS <= 10 else 6
CHANGES_MAX: Final = 20
"""Of files, of one step: when a life is killed, and of any other, if it is not before."""

PATIENCE_S: Final = 300
LOOK_S: Final = 0.02
DELAY_S_MAX: Final = 0.4
CLUSTER: Final = "local-cluster[2,1,1024]"
ROOT: Final = Path(__file__).resolve().parents[2]


def deaths(rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Yield what is killed next, and the pipelines of that life.

    In lives of two, three of each kind are enough for all five: one is in two of them.
    """
    if KILLS < ROUND_KILLS:
        yield from ((victim, list(names)) for victim, names in SHORT)
    while True:
        rings = {victim: rng.sample(names, len(names)) for victim, names in PIPELINES.items()}
        for at in range(0, len(PIPELINES["JVM"]), 2):
            for victim, ring in rings.items():
                yield victim, [ring[at - 1], ring[at]]


class Rig:
    """A broker and its tables, and one life after the other that writes them."""

    def __init__(self, root: Path, broker: Serving, expected: list[Row]) -> None:
        self.rng = random.Random(SEED)
        self.root, self.out, self.broker = root, root / "out", broker
        self.expected = [row for row in expected if row["topic"] in TOPICS]
        self.typed = expected_typed(broker.path, TEMPERATURE)
        self.said = root / "life.log"
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
        given = {
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
        command = [sys.executable, "-m", "tests.chaos.pipeline_life", json.dumps(given)]
        with self.said.open("ab") as stderr:
            return subprocess.Popen(
                command, stderr=stderr, cwd=ROOT, env={**os.environ, **ON_LOOPBACK}
            )

    def a_moment(self, *pipelines: str) -> Callable[[], bool]:
        """Something to wait for: some step of some batch, or as much of anything else."""
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

    def has_said(self, line: str) -> bool:
        """Something to wait for as well."""
        return line in self.said.read_text().splitlines()

    def _files(self, pattern: str) -> set[tuple[Path, int]]:
        """Files, each with its time; what is gone again while it is looked for is left out."""
        found = set()
        with suppress(FileNotFoundError):
            for path in self.root.rglob(pattern):
                found.add((path, path.stat().st_mtime_ns))
        return found

    def live_and_die(self) -> None:
        """Start a life, and kill it a moment after some step of some batch."""
        victim, pipelines = next(self.deaths)
        self.said.write_bytes(b"")
        # A report is short, and leaves nothing behind before it is nearly done.
        in_report = victim == "JVM" and "report" in pipelines
        moment = self.a_moment(*pipelines)
        is_due = partial(self.has_said, BEGUN.format("report")) if in_report else moment
        life = self.start(*([name] for name in pipelines))
        try:
            self.watch(life, is_due)
            self.kill(life, victim)
            self.note_kill(victim, *pipelines)
        finally:
            life.kill()  # also when the test has failed
            life.wait()

    def live_on(self) -> None:
        """Start the last life and kill what it can do without, at two moments; let it end."""
        self.said.write_bytes(b"")
        life = self.start(*LAST, master=CLUSTER, limit=LAST_LIMIT, rate=NO_LIMIT)
        try:
            for victim in self.rng.sample(PARTS, len(PARTS)):
                self.kill_part(life, victim)
                self.note_kill(victim, *TABLES)
            assert 0 == life.wait(PATIENCE_S), self.said.read_text()
        finally:
            life.kill()
            life.wait()

    def watch(self, life: subprocess.Popen[bytes], is_due: Callable[[], bool]) -> None:
        """Wait until it is time for a kill, and then no longer or a moment."""
        give_up, pause = time.monotonic() + PATIENCE_S, Event()
        while life.poll() is None and not is_due():
            assert time.monotonic() < give_up, self.said.read_text()
            pause.wait(LOOK_S)
        pause.wait(self.rng.choice((0.0, self.rng.random() * DELAY_S_MAX)))
        assert life.poll() is None, f"it was not killed in time: {self.said.read_text()}"

    def note_kill(self, victim: str, *pipelines: str) -> None:
        """Remember what was killed, and which pipelines had not ended before."""
        said = self.said.read_text().splitlines()
        self.kills[victim] += 1
        self.hit |= {(victim, name) for name in pipelines if ENDED.format(name) not in said}

    def kill(self, life: subprocess.Popen[bytes], victim: str) -> None:
        """Kill the JVM, alone or with what drives it; wait until both are gone."""
        driver = psutil.Process(life.pid)
        (java,) = [member for name, member in family_of(driver) if name == "java"]
        for process in (driver, java) if victim == "driver" else (java,):
            process.kill()
        life.wait(PATIENCE_S)
        _, alive = psutil.wait_procs([java], PATIENCE_S)
        assert not alive

    def kill_part(self, life: subprocess.Popen[bytes], victim: str) -> None:
        """Kill an executor or a worker in the middle of a task; wait until it is gone."""
        step, driver = self.a_moment(*TABLES), psutil.Process(life.pid)
        # Whatever the step was to be: behind an archive there is still the other one.
        self.watch(life, lambda: step() or self.has_said(ENDED.format("archive")))
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
        """No row is there twice, and no file is broken; none is there that should not be."""
        for file in self.out.rglob("*.parquet"):
            pq.ParquetFile(file).read()
        for found in (archived(self.out / "archive"), in_delta(self.out / "delta")):
            assert [row for row in self.expected if row in found] == found
        tables = typed_rows(self.out / "typed", TEMPERATURE)
        for rows, right in zip(tables, self.typed, strict=True):
            assert [row for row in right if row in rows] == rows
        sent = replayed(self.broker, AGAIN)
        assert self.to_replay()[: len(sent)] == sent
        minutes = self.broker.values(rolled.TOPIC)
        assert len(set(minutes)) == len(minutes)
        page = self.out / "report" / "report.html"
        assert not page.exists() or page.read_text().rstrip().endswith("</html>")

    def to_replay(self) -> list[Row]:
        return [without_death(row) for row in self.expected]

    def check_complete(self, events: list[Reading]) -> None:
        """Everything is there."""
        assert self.expected == archived(self.out / "archive")
        assert self.expected == in_delta(self.out / "delta")
        assert self.typed == typed_rows(self.out / "typed", TEMPERATURE)
        assert self.to_replay() == replayed(self.broker, AGAIN)
        minutes = count(events, rolled.RULES.watermark_ms, close=True)
        rolled.check(self.out / "rollup", self.broker, minutes)
        counted = pq.read_table(self.out / "report" / "topics.parquet").to_pylist()
        assert Counter(row["topic"] for row in self.expected) == {
            row["topic"]: row["messages"] for row in counted
        }


@contextmanager
def rig_in(root: Path, events: list[Reading]) -> Iterator[Rig]:
    """Have a broker whose log has readings and then events, and nothing of it written yet."""
    path = root / "broker" / "data"
    path.parent.mkdir()
    bodies = [*readings(KILLS * READINGS_PER_KILL), *map(rolled.body, events)]
    write_log(path, bodies, segment_bytes=1 << 20)
    expected = plain_rows(path)
    with serving(path) as broker:
        yield Rig(root, broker, expected)


@pytest.mark.timeout(120 * KILLS + 600)
def test_whatever_is_killed_each_row_is_in_its_table_once(tmp_path: Path) -> None:
    """As plain pyarrow reads them, after every kill and at the end; so on the topics."""
    first = KILLS * READINGS_PER_KILL + 1
    events = rolled.events_of(SEED, KILLS * EVENTS_PER_KILL, first)
    with rig_in(tmp_path, events) as rig:
        for _ in range(KILLS):
            rig.live_and_die()
            rig.check()
        rig.live_on()
        rig.check()
        rig.check_complete(events)

        assert KILLS == rig.kills["JVM"] + rig.kills["driver"]
        assert {"executor", "worker"} <= {victim for victim, _ in rig.hit}
        if KILLS >= len(SHORT):
            assert {("JVM", name) for name in PIPELINES["JVM"]} <= rig.hit
            assert ("driver", "delta") in rig.hit
