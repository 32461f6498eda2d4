"""The demo's data pipeline: the log as tables, through Spark, and back to a topic.

the log --+--> typed:   readings as a table; malformed ones in quarantine
          +--> rollup:  each sensor's minutes, as a table and as messages --> board, on Blip
          +--> replay:  the commands again, on a topic of their own
          +--> archive: all messages, including those of rollup and replay, in files
          +--> report:  a page about all of it

Each is a command as users type it; all run in one process, so that Spark starts only once.
Then the files are read without Spark, and counted.
"""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from braidmq.cli.demo.count import Line
from braidmq.cli.own_broker import LOOK_S, BrokerProcess, DemoError, environment

if TYPE_CHECKING:  # none of it is needed to print --help, or without Spark
    import pyarrow as pa

    from braidmq.client import Client, Subscription

SCHEMA: Final = "sensor.Temperature"
ROLLUP: Final = f"rollup.{SCHEMA}"
AGAIN: Final = "demo.again"
BOARD_S_MAX: Final = 30.0
NEEDED: Final = ("pyspark", "pyarrow")
_PROGRAM: Final = (
    sys.executable,
    "-c",
    f"import sys; from {__name__} import run_commands; sys.exit(run_commands(sys.argv[1]))",
)


def can_run() -> bool:
    """Return whether Spark is installed."""
    return all(find_spec(name) is not None for name in NEEDED)


def run_commands(commands: str) -> int:
    """Run commands in sequence; return the first exit code other than 0."""
    from braidmq.cli.main import main

    return next((code for words in json.loads(commands) if (code := main(words))), 0)


class Tables:
    """The pipelines over a broker's log; they write to *directory*."""

    def __init__(
        self,
        broker: BrokerProcess,
        directory: Path,
        topics: tuple[str, str],  # of readings, and of commands
        say: Callable[[str, str], None],
    ) -> None:
        self.directory = directory
        self.board: list[tuple[str, int]] = []  # sensor and minute, as they were shown
        self._broker = broker
        self._readings, self._commands = topics
        self._say = say

    async def run(self, blip: "Client") -> None:
        """Run every pipeline once over the log.

        Raises:
            DemoError: One of them failed.
        """
        of_readings = f"{self._readings}={SCHEMA}"
        chosen = ("--subscribe", self._readings, "--schema-id", SCHEMA)
        again = ("replay", "--name", "demo")
        async with blip.subscribe(ROLLUP) as messages:
            self._say("board", f"listens on {ROLLUP}, on Blip")
            await self._pipelines(
                ("typed", "--typed", of_readings),
                ("rollup", *chosen, "--close"),
                (*again, "--subscribe", self._commands, "--to-topic", AGAIN),
                ("archive",),  # after those that write to topics
                ("report", "--typed", of_readings),
            )
            await self._watch(messages, len(_read(self.directory / "rollup" / SCHEMA)))
        self._say("board", f"shows {len(self.board)} sensor minutes")

    async def _pipelines(self, *commands: tuple[str, ...]) -> None:
        from braidmq.spark.runtime.java import LIGHT

        whole = []
        for name, *words in commands:
            self._say("operator", f"$ braidmq pipeline {' '.join((name, *words))} ...")
            places = ("--path", str(self._broker.data_dir), "--out", str(self.directory / name))
            light = ("--conf", f"spark.driver.extraJavaOptions={LIGHT}")
            whole.append(("pipeline", name, *words, *places, *light))
        process = await asyncio.create_subprocess_exec(
            *(*_PROGRAM, json.dumps(whole)),
            stdout=PIPE,
            stderr=STDOUT,
            env={**environment(), "BRAIDMQ_API_KEY": "dev-key"},
        )
        said = ""
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                said = line.decode("utf-8", "replace").rstrip()
                self._say("Spark", said)
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code != 0:
            raise DemoError(f"braidmq pipeline: {said}")

    async def _watch(self, messages: "Subscription", count: int) -> None:
        deadline = time.monotonic() + BOARD_S_MAX
        while len(self.board) < count and time.monotonic() < deadline:
            for message in await messages.fetch(timeout=LOOK_S):
                shown = json.loads(message.payload)
                self.board.append((shown["sensor_id"], shown["minute_ms"]))
                await message.ack()

    def lines(self, data_dir: Path) -> list[Line]:
        """Return the lines of the summary, from the log and the tables as Arrow reads them.

        Raises:
            DemoError: A table cannot be read.
        """
        from braidmq import columnar

        log = columnar.read(data_dir, columns=["offset", "topic", "value"])
        return count(
            log,
            {
                name: _read(self.directory / place)
                for name, place in (
                    ("archive", "archive"),
                    ("typed", f"typed/{SCHEMA}"),
                    ("quarantine", "typed/quarantine"),
                    ("rollup", f"rollup/{SCHEMA}"),
                )
            },
            (self._readings, self._commands),
            self.board,
        )


def count(
    log: "pa.Table",
    tables: Mapping[str, "pa.Table"],
    of: tuple[str, str],
    board: list[tuple[str, int]],
) -> list[Line]:
    """Return the lines of the summary: messages by their offsets, minutes by their places.

    *of* are the topics of readings and of commands; commands are identified by their payloads.
    """
    topics, offsets = log["topic"].to_pylist(), log["offset"].to_pylist()
    of_readings = [
        offset for topic, offset in zip(topics, offsets, strict=True) if topic == of[0]
    ]
    of_rollup = topics.count(ROLLUP)
    typed, apart = (_offsets(tables[name]) for name in ("typed", "quarantine"))
    rollup = tables["rollup"]
    minutes = sorted(zip(*(_keys(rollup)), strict=True))
    places = {key: place for place, key in enumerate(minutes)}
    shown = sorted(places.get(key, -1) for key in board)
    summed = sum(rollup["count"].to_pylist())
    return [
        Line("messages in Spark's archive", offsets, _offsets(tables["archive"]), "in files"),
        Line(
            "readings in Spark's tables",
            of_readings,
            sorted(typed + apart),
            f"{len(apart)} in quarantine",
        ),
        Line("  aggregated by minute", list(range(len(typed))), list(range(summed))),
        Line("minutes on the topic", list(range(len(minutes))), list(range(of_rollup))),
        Line("  board, on Blip, each once", list(range(len(minutes))), shown),
        Line("commands replayed, in order", _numbers(log, of[1]), _numbers(log, AGAIN)),
    ]


def _read(directory: Path) -> "pa.Table":
    import pyarrow.parquet as pq

    files = sorted(directory.rglob("*.parquet"))
    visible = [
        file
        for file in files
        if not any(part.startswith(("_", ".")) for part in file.relative_to(directory).parts)
    ]
    if not visible:
        raise DemoError(f"no table found in {directory}")
    import pyarrow as pa

    return pa.concat_tables([pq.ParquetFile(file).read() for file in visible])


def _offsets(table: "pa.Table") -> list[int]:
    return sorted(table["offset"].to_pylist())


def _numbers(log: "pa.Table", topic: str) -> list[int]:
    """Return the numbers in a topic's payloads, in log order."""
    rows = zip(log["topic"].to_pylist(), log["value"].to_pylist(), strict=True)
    return [json.loads(value)["number"] for name, value in rows if name == topic]


def _keys(rollup: "pa.Table") -> tuple[list[str], list[int]]:
    minutes = [int(start.timestamp() * 1000) for start in rollup["minute"].to_pylist()]
    return rollup["sensor_id"].to_pylist(), minutes
