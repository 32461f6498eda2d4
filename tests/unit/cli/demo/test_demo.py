"""`braidmq demo`: what it counts, and how it ends."""

import sys
import tempfile
from pathlib import Path

import pytest

from braidmq.cli import own_broker as demo_broker
from braidmq.cli.demo import demo
from braidmq.cli.demo import meters as demo_meters
from braidmq.cli.demo.count import Account, Line
from braidmq.cli.demo.demo import Story, count
from braidmq.cli.main import main
from braidmq.cli.own_broker import BrokerProcess

READINGS = 8
POISON = 3
COMMANDS = set(range(1, demo.COMMANDS_COUNT + 1))


async def successful_story() -> Story:
    """Return a story in which everything went well."""
    story = Story(BrokerProcess(Path("unused")), READINGS)
    numbers = set(range(1, READINGS + 1))
    story.confirmed = set(numbers)
    story.archive = Account("archive", set(numbers), READINGS + 2)
    story.pair = (Account("one", {1, 2, 3, 4, 5}, 5), Account("two", {5, 6, 7, 8}, 4))
    story.commands = set(COMMANDS)
    story.machine = Account("machine", set(COMMANDS), len(COMMANDS) + 1)
    story.robot = [number for rest in (3, 2, 1, 0) for number in in_class(rest)]
    story.replayed = {POISON}
    everything = Account("screen", set(numbers), READINGS)
    story.meters.screen_readings = everything
    story.meters.screen_commands = Account("screen", set(COMMANDS), len(COMMANDS))
    bills = set(range(1, demo_meters.BILLS_COUNT + 1))
    story.meters.bills = set(bills)
    story.meters.alarms = set(bills)
    for account in (story.meters.office, story.meters.siren, story.meters.guard):
        account.handled = set(bills)
    story.meters.vault_boxes = {bytes([number]) for number in bills}
    assert POISON == story.poison
    return story


def in_class(priority: int) -> list[int]:
    return [number for number in sorted(COMMANDS) if number % demo.PRIORITIES == priority]


def log() -> dict[str, list[int]]:
    return {
        demo.READINGS: [*range(1, READINGS + 1), POISON, POISON],
        demo.COMMANDS: sorted(COMMANDS),
        demo.DEAD_READINGS: [POISON],
    }


def disagreeing(lines: list[Line]) -> list[str]:
    return [line.what.strip() for line in lines if not line.agrees]


@pytest.mark.asyncio
async def test_duplicates_are_reported_and_are_not_a_loss() -> None:
    """Delivery is at least once: duplicates are counted separately, and all lines agree."""
    lines = count(await successful_story(), READINGS, log())

    assert [] == disagreeing(lines)
    assert ["1 duplicate", "2 redelivered", "5 and 4; 1 redelivered"] == [
        line.note for line in lines[1:4]
    ]


LOSSES = {
    "an unconfirmed reading": ("readings confirmed, on Blip", "confirmed"),
    "the archive": ("archive, on Blip", "archive"),
    "an unconfirmed command": ("commands confirmed, on Vibe", "commands"),
    "the machine": ("machine, on Blip", "machine"),
    "the robot": ("robot, on Vibe, by priority", "robot"),
    "the dead letter": ("handled after the replay", "replayed"),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.asyncio
async def test_one_missing_message_is_a_disagreement(loss: str) -> None:
    """Wherever it is missing, the line that counts it says so."""
    what, attribute = LOSSES[loss]
    story = await successful_story()
    counted = getattr(story, attribute)
    (counted.handled if isinstance(counted, Account) else counted).pop()

    assert what in disagreeing(count(story, READINGS, log()))


@pytest.mark.asyncio
async def test_a_message_that_neither_worker_has_is_a_disagreement() -> None:
    """One of the two is enough."""
    story = await successful_story()
    story.pair[0].handled.discard(5)
    assert [] == disagreeing(count(story, READINGS, log()))

    story.pair[1].handled.discard(5)
    assert ["two workers, on Vibe"] == disagreeing(count(story, READINGS, log()))


@pytest.mark.asyncio
async def test_commands_out_of_priority_order_are_a_disagreement() -> None:
    """All are there, but in the order in which they were published."""
    story = await successful_story()
    story.robot.sort()
    (line,) = [line for line in count(story, READINGS, log()) if not line.agrees]

    assert ("robot, on Vibe, by priority", "NO: out of order") == (
        line.what.strip(),
        line.verdict,
    )


@pytest.mark.asyncio
async def test_messages_left_in_a_queue_are_a_disagreement() -> None:
    """A message that was acknowledged no longer waits."""
    story = await successful_story()
    story.left = 2

    assert ["left in the queues"] == disagreeing(count(story, READINGS, log()))


LOGGED = {
    demo.READINGS: "in the log",
    demo.COMMANDS: "in the log, each once",
    demo.DEAD_READINGS: "dead letters in the log",
}


@pytest.mark.parametrize("topic", LOGGED)
@pytest.mark.asyncio
async def test_the_log_is_compared_with_what_was_published(topic: str) -> None:
    """A record that is missing, or was never published, is found."""
    for change in (lambda stored: stored[1:], lambda stored: [*stored, 4711]):
        stored = log()
        stored[topic] = change(stored[topic])

        assert [LOGGED[topic]] == disagreeing(count(await successful_story(), READINGS, stored))


@pytest.mark.asyncio
async def test_a_command_that_is_stored_twice_is_a_disagreement() -> None:
    """It was sent with a dedupId: sending it again must not store it again."""
    stored = log()
    stored[demo.COMMANDS].append(7)

    assert ["in the log, each once"] == disagreeing(
        count(await successful_story(), READINGS, stored)
    )


def test_a_broker_that_does_not_start_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the last line that it printed; exit 1, and nothing is left behind."""
    program = "import sys; print('error: no luck', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(demo_broker, "PROGRAM", (sys.executable, "-c", program))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert 1 == main(["demo"])
    assert "error: the broker did not start: error: no luck\n" == capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


def test_counts_that_disagree_are_exit_1_and_keep_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The user needs the files to find out why."""

    async def run(_directory: Path, _readings: int, _tables: Path) -> list[Line]:
        return [Line("bad", {1}, set())]

    monkeypatch.setattr(demo, "_run", run)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert 1 == main(["demo"])
    (kept,) = tmp_path.iterdir()
    assert capsys.readouterr().out.endswith(f"The log is kept in {kept}\n")


@pytest.mark.parametrize(
    ("called", "path", "typed"),
    [
        ("bin/braidmq", "", "bin/braidmq"),  # as `make demo` does, on a clone
        ("{here}/bin/braidmq", "bin", "braidmq"),  # as a shell does once it has found it
        ("{here}/bin/braidmq", "other", "{here}/bin/braidmq"),  # the path has another one
        ("-c", "", "braidmq"),
    ],
)
def test_the_demo_ends_with_commands_to_try_next(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    *,
    called: str,
    path: str,
    typed: str,
) -> None:
    """The program is named as it was called, unless its name alone is enough."""

    async def run(_directory: Path, _readings: int, _tables: Path) -> list[Line]:
        return [Line("good", {1}, {1})]

    for directory in ("bin", "other"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "braidmq").touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_run", run)
    monkeypatch.setenv("PATH", str(tmp_path / path) if path else "")
    monkeypatch.setattr(sys, "argv", [called.format(here=tmp_path), "demo"])
    code = main(["demo"])
    shown = typed.format(here=tmp_path)
    lines = capsys.readouterr().out.splitlines()

    assert 0 == code
    assert [
        "Where to go from here:",
        f"  your own broker, with a dashboard          {shown} serve --dev",
        "                                             http://127.0.0.1:9100",
        "  the documentation                          README.md, docs/start.md",
    ] == lines[-4:]


def test_tables_are_never_written_into_an_existing_directory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is refused before anything runs."""
    assert 2 == main(["demo", "--tables", str(tmp_path)])
    assert "error: --tables: " in capsys.readouterr().err
