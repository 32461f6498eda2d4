"""`braidmq demo`: what it counts, and the whole of it once, with a real kill."""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from braidmq.cli import demo
from braidmq.cli.demo import POISON, Account, BrokerProcess, Line, Story, count, summarize
from braidmq.cli.main import main
from tests.unit.cli.brokers import BRAIDMQ

READINGS = 8
ALARMS = set(range(1, demo.ALARMS_COUNT + 1))


async def made() -> Story:
    """Return a story in which everything went well."""
    story = Story(BrokerProcess(Path("unused")), READINGS)
    numbers = set(range(1, READINGS + 1))
    story.confirmed = set(numbers)
    story.archive = Account("archive", set(numbers), READINGS + 2)
    story.pair = (Account("one", {1, 2, 3, 4, 5}, 5), Account("two", {5, 6, 7, 8}, 4))
    story.poller = Account("poller", set(numbers), READINGS)
    story.alarms = set(ALARMS)
    story.siren = Account("siren", ALARMS - {POISON}, len(ALARMS) - 1)
    story.letters = Account("letters", {POISON}, 1)
    return story


def log() -> dict[str, list[int]]:
    return {
        demo.READINGS: [*range(1, READINGS + 1), 3, 3],
        demo.ALARMS: sorted(ALARMS),
        demo.DEAD_ALARMS: [POISON],
    }


def disagreeing(lines: list[Line]) -> list[str]:
    return [line.what.strip() for line in lines if not line.agrees]


@pytest.mark.asyncio
async def test_duplicates_are_told_and_no_loss() -> None:
    """At least once: what came twice is counted beside, and all lines agree."""
    lines = count(await made(), READINGS, log())

    assert [] == disagreeing(lines)
    assert [
        "1 twice",
        "2 delivered again",
        "5 and 4; 1 delivered again",
        "0 delivered again",
    ] == [line.note for line in lines[1:5]]


LOSSES = {
    "an unconfirmed reading": ("readings published, and confirmed", "confirmed"),
    "the archive": ("archive, iterating", "archive"),
    "the poller": ("poller, fetching", "poller"),
    "an alarm": ("handled, or dead letters", "siren"),
    "the dead letter": ("dead letters, only the poisoned", "letters"),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.asyncio
async def test_one_missing_message_is_a_disagreement(loss: str) -> None:
    """Wherever it is missing, the line that counts it says so."""
    what, attribute = LOSSES[loss]
    story = await made()
    place = getattr(story, attribute)
    (place.handled if isinstance(place, Account) else place).pop()

    assert what in disagreeing(count(story, READINGS, log()))


@pytest.mark.parametrize("topic", [demo.READINGS, demo.ALARMS, demo.DEAD_ALARMS])
@pytest.mark.asyncio
async def test_the_log_is_held_against_what_was_told(topic: str) -> None:
    """A record that is missing or that nobody published is found."""
    for change in (lambda stored: stored[1:], lambda stored: [*stored, 4711]):
        stored = log()
        stored[topic] = change(stored[topic])

        assert ["in the log"] == disagreeing(count(await made(), READINGS, stored))


def test_the_verdict_is_that_of_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    """One disagreement is enough, and it is told by numbers."""
    good = Line("good", {1, 2}, {1, 2}, "a note")
    bad = Line("bad", {1, 2, 3}, {3, 4})

    assert summarize([good])
    assert "The counts agree" in capsys.readouterr().out
    assert not summarize([good, bad])
    out = capsys.readouterr().out
    assert "NO: 2 missing, 1 too many" in out
    assert "THE COUNTS DO NOT AGREE." in out


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipe there are none, and NO_COLOR is honoured."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    summarize([Line("good", {1}, {1})])
    assert "\x1b[" in terminal.getvalue()

    terminal.truncate(0)
    monkeypatch.setenv("NO_COLOR", "1")
    summarize([Line("good", {1}, {1})])
    assert "\x1b[" not in terminal.getvalue()


def test_a_broker_that_does_not_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With its last words, exit 1, and nothing left behind."""
    words = "import sys; print('error: no luck', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(demo, "SERVE", (sys.executable, "-c", words))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert 1 == main(["demo"])
    assert "error: the broker did not start: error: no luck\n" == capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


def test_counts_that_disagree_are_exit_1_and_keep_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whoever wants to know why needs the files."""

    async def run(_directory: Path, _readings: int) -> list[Line]:
        return [Line("bad", {1}, set())]

    monkeypatch.setattr(demo, "_run", run)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert 1 == main(["demo"])
    (kept,) = tmp_path.iterdir()
    assert capsys.readouterr().out.endswith(f"The log is kept: {kept}\n")


@pytest.mark.slow
def test_the_demo_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    """Publish, kill, restart, resume, bury, count: exit 0, plain text, an empty directory."""
    done = subprocess.run(
        [*BRAIDMQ, "demo", "--readings", "600"],
        capture_output=True,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path), "BRAIDMQ_DELIVERY__MAX_RETRIES": "1"},
        text=True,
        timeout=110,
    )

    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert "KILL -9" in done.stdout
    assert f"gave up on alarm {POISON}" in done.stdout
    assert "The counts agree: nothing that was confirmed is missing.\n" in done.stdout
    assert "\x1b" not in done.stdout
    assert [] == list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_whoever_ends_the_demo_ends_its_broker(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """In the middle of it: no traceback, no process, no directory is left."""
    process = subprocess.Popen(
        [*BRAIDMQ, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "so far" in line:
            break
    (directory,) = tmp_path.iterdir()
    pid = json.loads((directory / "ready.json").read_text("utf-8"))["pid"]
    process.send_signal(number)
    _, said = process.communicate(timeout=60)

    assert (code, "") == (process.returncode, said)
    assert not psutil.pid_exists(pid)
    assert [] == list(tmp_path.iterdir())
