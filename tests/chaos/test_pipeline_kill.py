"""SIGKILL of pipelines at random moments, again and again: of the JVM, or of what drives it.

The archive and the typed tables are written in one life, so that a kill hits both; the last
life runs on a cluster of processes. BRAIDMQ_SPARK_KILLS asks for more kills than the suite has
time for, BRAIDMQ_CHAOS_SEED for others.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Final

import psutil
import pyarrow.parquet as pq
import pytest

from tests.integration.spark.conftest import QUICK
from tests.integration.spark.outputs import (
    SCHEMAS,
    TEMPERATURE,
    archived,
    expected_typed,
    readings,
    typed_rows,
)
from tests.unit.columnar.logs import plain_rows, write_log

pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.xdist_group("spark")]

KILLS: Final = int(os.environ.get("BRAIDMQ_SPARK_KILLS", "5"))
SEED: Final = int(os.environ.get("BRAIDMQ_CHAOS_SEED", "1"))
MESSAGES_PER_KILL: Final = 120
LIMIT: Final = 12
"""Messages of a micro-batch: kills come before all is read."""

NO_LIMIT: Final = 1_000_000

STEPS: Final = ("*.staged", "*.intent", "batch-*.parquet", "*.done", "offsets/[0-9]*")
"""What a batch leaves behind itself, step by step."""

PATIENCE_S: Final = 300
LOOK_S: Final = 0.001
DELAY_S_MAX: Final = 0.4
CLUSTER: Final = "local-cluster[2,1,1024]"

_LIFE: Final = """
import sys
from pathlib import Path
from threading import Thread
from braidmq.spark.pipelines.archive import archive
from braidmq.spark.pipelines.runs import Plan, Run
from braidmq.spark.pipelines.typed import typed, wishes

log, out, master, limit, conf, *pairs = sys.argv[1:]
source = {"path": log, "maxOffsetsPerTrigger": limit}
config = dict(text.split("=", 1) for text in conf.split(";"))
plan = lambda name: Plan(source, Path(out, name), master=master, config=config)
tell = lambda line: print(line, file=sys.stderr, flush=True)
failed = []

def life(pipeline, *arguments):
    try:
        pipeline(*arguments, tell)
    except Exception as error:
        tell(f"{type(error).__name__}: {error}")
        failed.append(error)

assert Run("both", plan("archive"), tell).spark
threads = [
    Thread(target=life, args=(archive, plan("archive"))),
    Thread(target=life, args=(typed, plan("typed"), wishes(pairs))),
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(len(failed))
"""


class Rig:
    """A log and its tables, and one life after the other that writes them."""

    def __init__(self, root: Path) -> None:
        self.rng = random.Random(SEED)
        self.log, self.out = root / "log", root / "out"
        write_log(self.log, readings(KILLS * MESSAGES_PER_KILL))
        self.said = root / "life.log"

    def start(self, master: str = "local[2,4]", limit: int = LIMIT) -> subprocess.Popen[bytes]:
        conf = ";".join(f"{name}={value}" for name, value in QUICK.items())
        pairs = [f"{topic}={s}" for topic, s in SCHEMAS.items() if s == TEMPERATURE]
        arguments = [str(self.log), str(self.out), master, str(limit), conf, *pairs]
        with self.said.open("ab") as stderr:
            return subprocess.Popen([sys.executable, "-c", _LIFE, *arguments], stderr=stderr)

    def a_moment(self) -> Callable[[], bool]:
        """Something to wait for: some step of some batch that is still to come."""
        pattern = self.rng.choice(STEPS)
        seen = set(self._paths(pattern))
        enough = len(seen) + self.rng.randint(1, 6)

        def is_due() -> bool:
            seen.update(self._paths(pattern))
            return len(seen) >= enough

        return is_due

    def _paths(self, pattern: str) -> list[Path]:
        with suppress(FileNotFoundError):  # what is gone again while it is looked for
            return list(self.out.rglob(pattern))
        return []

    def live_and_die(self) -> None:
        """Start a life, and kill it a moment after some step of some batch."""
        is_due = self.a_moment()
        life = self.start()
        give_up, pause = time.monotonic() + PATIENCE_S, Event()
        while life.poll() is None and not is_due():
            assert time.monotonic() < give_up, self.said.read_text()
            pause.wait(LOOK_S)
        pause.wait(self.rng.choice((0.0, self.rng.random() * DELAY_S_MAX)))
        self.kill(life, whole=self.rng.random() < 0.5)

    @staticmethod
    def kill(life: subprocess.Popen[bytes], *, whole: bool) -> None:
        """Kill the JVM, or what drives it, when it goes by itself; wait until all are gone."""
        if life.poll() is not None:
            return
        family = psutil.Process(life.pid).children(recursive=True)
        java = [child for child in family if child.name() == "java"]
        for victim in [psutil.Process(life.pid)] if whole else java:
            victim.kill()
        life.wait(PATIENCE_S)
        _, alive = psutil.wait_procs(java, PATIENCE_S)
        assert not alive

    def check(self, *, complete: bool) -> None:
        """No row is there twice, and no file is broken; at the end none is missing."""
        for file in self._paths("*.parquet"):
            pq.ParquetFile(file).read()
        expected = plain_rows(self.log)
        found = archived(self.out / "archive")
        assert len(found) == len({row["offset"] for row in found})
        assert [row for row in expected if row in found] == found
        if complete:
            assert expected == found
        tables = typed_rows(self.out / "typed", TEMPERATURE)
        for rows, right in zip(tables, expected_typed(self.log, TEMPERATURE), strict=True):
            assert [row for row in right if row in rows] == rows
            assert not complete or right == rows


@pytest.mark.timeout(120 * KILLS + 600)
def test_whatever_is_killed_each_row_is_in_its_table_once(tmp_path: Path) -> None:
    """As plain pyarrow reads them, after every kill and at the end."""
    rig = Rig(tmp_path)
    for _ in range(KILLS):
        rig.live_and_die()
        rig.check(complete=False)
    life = rig.start(CLUSTER, NO_LIMIT)
    assert 0 == life.wait(PATIENCE_S), rig.said.read_text()
    rig.check(complete=True)
