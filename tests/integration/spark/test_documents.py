"""The Spark examples of the documentation work: their blocks run, in page order.

Scripts and pipelines run in the session that the tests share; see `terminals`.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import WITH_SPARK, Reader, followed
from tests.docs.test_snippets import (
    PIPELINES,
    SHELL,
    SPARK,
    TUTORIALS,
    Block,
    blocks,
    environment_of,
    here,
    script_of,
    serving,
)
from tests.integration.cli.brokers import Broker
from tests.integration.spark.terminals import Terminal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(600),
]

ALONE: Final = [block.document for block in SHELL.values() if SPARK in block.text]
IN_SESSION: Final = "braidmq.spark"
"""A script that contains this uses a session."""

READINGS: Final = """
import json, sys, time
import braidmq.sync

now_ms = time.time_ns() // 1_000_000
blip, vibe = sys.argv[1:]
with braidmq.sync.connect(blip) as client:
    for n in range(20):
        reading = {"sensor_id": f"s{n % 3}", "celsius": n, "timestamp_ms": now_ms + n}
        client.publish("sensors/temp", json.dumps(reading).encode())
with braidmq.sync.connect(vibe) as client:
    client.declare_queue("orders", max_size=1, overflow="RedirectToDlq")
    for n in range(3):
        client.publish("orders", b"%d" % n)
"""


@pytest.fixture
def place(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of the JVM, empty."""
    monkeypatch.chdir(directory)
    yield directory
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


class SparkReader(Reader):
    """Follows a page, pipelines included."""

    def __init__(self, directory: Path, tools: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self._terminal = Terminal(directory, tools, self.environment)

    def type(self, script: str, block: Block) -> None:
        """Run a block in a shell."""
        code, output = self._terminal.run(script)
        assert (0, False) == (code, "Traceback" in output), (block.name, output)


def uses_spark(block: Block) -> bool:
    return SPARK in block.text or IN_SESSION in block.text


def do(block: Block, broker: Broker, terminal: Terminal) -> None:
    """Run a block, and assert that it succeeds."""
    text = here(block.text, broker)
    if block.label == "sh":
        code, output = terminal.run(
            script_of(block, broker).replace("--api-key KEY", "--api-key dev-key")
        )
        assert (0, False) == (code, "Traceback" in output), (block.name, output)
    elif uses_spark(block):
        exec(compile(text, block.name, "exec"), {"__name__": "__main__"})  # noqa: S102 - our own pages
    else:
        subprocess.run([sys.executable, "-W", "error", "-c", text], check=True)


@pytest.mark.parametrize("document", WITH_SPARK)
def test_a_page_with_pipelines_can_be_followed(
    document: str, place: Path, tmp_path: Path
) -> None:
    """From its first block to its last, with the broker that it starts."""
    done = followed(document)
    with ExitStack() as stack:
        reader = SparkReader(place, tmp_path, stack)
        for block in done:
            reader.follow(block)

    assert any(SPARK in block.text for block in done)


@pytest.mark.parametrize("document", [*TUTORIALS, *ALONE])
def test_a_tutorial_can_be_followed(document: str, place: Path, tmp_path: Path) -> None:
    """Each block succeeds with the files that the earlier ones left."""
    steps = [b for b in blocks() if b.document == document and b.label in {"python", "sh"}]
    last = max(number for number, block in enumerate(steps) if uses_spark(block))
    with serving(place, "127.0.0.1:0") as broker:
        terminal = Terminal(place, tmp_path, environment_of(broker))
        for block in steps[: last + 1]:
            do(block, broker, terminal)


def test_the_pipelines_of_the_pages_run(place: Path, tmp_path: Path) -> None:
    """One after the other, on a log with readings, orders and dead letters."""
    steps = [block for page in PIPELINES for block in blocks("sh") if block.document == page]
    with serving(place, "127.0.0.1:0") as broker:
        urls = [f"{s}://dev-key@{broker.addresses[s]}" for s in ("blip", "vibe")]
        subprocess.run([sys.executable, "-c", READINGS, *urls], check=True)
        terminal = Terminal(place, tmp_path, environment_of(broker))
        for block in steps:
            do(block, broker, terminal)

    assert len(steps) >= 4
