"""Progress of commands on a real terminal."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli import terminals
from tests.integration.cli.brokers import BRAIDMQ, running
from tests.integration.cli.terminals import on_terminal

BAR = "━"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a killed broker: 8 MiB, all of which recovery must read."""
    directory = tmp_path_factory.mktemp("log")
    with running(directory) as broker:
        subprocess.run(
            [*BRAIDMQ, "publish", "t", "-", "--count", "80", "--url", broker.url()],
            input=bytes(100_000),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        broker.process.kill()
        broker.process.communicate()
    return directory / "data"


@pytest.mark.parametrize("command", ["verify", "repair", "dump"])
def test_wal_commands_show_a_progress_bar(command: str, log: Path) -> None:
    """The bar disappears once the result is printed."""
    words = ["wal", command, "--data-dir", str(log)]
    code, written = on_terminal(words)

    assert (0, True) == (code, BAR in written)
    assert BAR not in written.rstrip().splitlines()[-1]


@pytest.mark.parametrize("command", ["verify", "repair", "dump"])
def test_in_a_pipe_there_is_no_bar(command: str, log: Path) -> None:
    """Neither on stdout nor on stderr."""
    done = subprocess.run(
        [*BRAIDMQ, "wal", command, "--data-dir", str(log)], capture_output=True, check=True
    )

    assert b"" == done.stderr
    assert BAR.encode() not in done.stdout


def test_a_start_shows_the_progress_of_recovery(log: Path) -> None:
    """Until the log is read; after that there are only log lines."""
    listeners = [f"--{name}=off" for name in ("vibe", "qumbed", "flight", "http")]
    words = ["serve", "--dev", "--blip=127.0.0.1:0", "--data-dir", str(log), *listeners]
    code, written = on_terminal(words, until=lambda output: "ready" in output)

    assert (0, True) == (code, "reading the log" in written)
    assert BAR not in written[written.index("recovered") :]


def test_no_color_turns_colours_off(log: Path) -> None:
    """Without NO_COLOR a terminal gets colours."""
    words = ["doctor", "--data-dir", str(log)]
    _, coloured = on_terminal(words)
    _, plain = on_terminal(words, environment={"NO_COLOR": "1"})

    assert "\x1b[3" in coloured
    assert "\x1b[3" not in plain


PIPELINE = """
from pathlib import Path
from braidmq.cli.progress import telling
from braidmq.spark.pipelines.runs.progress import BatchLine
with telling(Path("tables/archive")) as tell:
    tell("archive: [red]begins")
    tell(BatchLine("archive: batch 0", name="archive", rows=30, lag=70))
    tell(BatchLine("archive: batch 1", name="archive", rows=70, lag=0))
"""


def test_a_pipeline_on_a_terminal_has_a_bar_below_its_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bar shows processed and remaining rows; lines are not parsed as markup."""
    monkeypatch.setattr(terminals, "BRAIDMQ", [sys.executable, "-c", PIPELINE])
    code, written = on_terminal([])

    assert 0 == code
    assert "working" in written[: written.index("begins")], "no sign of life"
    assert not re.search(r"\D0/\d", written), "an empty bar"
    assert BAR not in written[: written.index("begins")]
    for text in ("archive: [red]begins", "archive: batch 0", "archive: batch 1", BAR, "30/100"):
        assert text in written, text
    first, last = written.index("starting Spark"), written.index("see tables/archive")
    assert first < written.index("begins") < written.index("batch 1") < last


STARTING = """
import os
from braidmq.cli.progress import telling
with telling() as tell:
    kept = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # as a run does while Java starts
    tell("archive: still visible")
    os.dup2(kept, 2)
"""


def test_progress_reaches_the_terminal_while_spark_has_stderr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it would end up in Spark's log."""
    monkeypatch.setattr(terminals, "BRAIDMQ", [sys.executable, "-c", STARTING])
    code, written = on_terminal([])

    assert (0, True) == (code, "archive: still visible" in written)
