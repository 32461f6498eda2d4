"""`braidmq dlq`, against the real HTTP side on a real socket."""

import io
import json
from dataclasses import replace

import pytest

from braidmq.cli.data import dead_letters
from braidmq.cli.main import main
from tests.unit.admin.sources import FakeLetters, FakeSource, facts
from tests.unit.cli.serving import serving, url

ODD = [b'"\\ud800"', b'{"a": 1e999}', 5_000 * b"1"]
"""JSON that has no value in Python, or none that UTF-8 can say; HTTP passes it on."""


@pytest.fixture
def letters(source: FakeSource) -> FakeLetters:
    return source.letters


def test_queues_of_dead_letters_are_listed(
    letters: FakeLetters, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With how many wait in each."""
    letters.add("dlq.a", 1)
    letters.add("dlq.a", 2)

    assert 0 == main(["dlq", "list", "--url", url(port)])
    lines = ["queue\tmessageCount\tinFlight\tsubscriberCount", "dlq.a\t2\t2\t1"]
    assert lines == capsys.readouterr().out.splitlines()


def test_the_letters_of_one_are_listed(
    letters: FakeLetters, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line each in a pipe; the headers, too, with --json."""
    letters.add("dlq.a/ ?", 7)
    assert 0 == main(["dlq", "list", "dlq.a/ ?", "--url", url(port)])
    columns = "offset\tid\treason\tdeathQueue\tattempts\ttimestamp\tsize"
    row = "7\tm7\trejected\ta/ ?\t3\t1970-01-01T00:00:02Z\t8"
    assert [columns, row] == capsys.readouterr().out.splitlines()
    assert 0 == main(["dlq", "list", "dlq.a/ ?", "--json", "--url", url(port)])

    assert [{"trace": "t"}] == [row["headers"] for row in json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize(
    ("flags", "expected"), [([], 100), (["--count", "3"], 3), (["--count", "450"], 450)]
)
def test_no_more_letters_are_listed_than_wanted(
    letters: FakeLetters,
    port: int,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    expected: int,
) -> None:
    """As many pages as it takes."""
    for offset in range(1, 501):
        letters.add("dlq.a", offset)

    assert 0 == main(["dlq", "list", "dlq.a", "--json", *flags, "--url", url(port)])
    rows = json.loads(capsys.readouterr().out)
    assert list(range(1, expected + 1)) == [row["offset"] for row in rows]


def test_letters_are_sent_back(
    letters: FakeLetters, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """All, the oldest of them, or one."""
    for offset in (1, 2, 3):
        letters.add("dlq.a", offset)

    assert 0 == main(["dlq", "replay", "dlq.a", "--url", url(port)])
    assert 0 == main(["dlq", "replay", "dlq.a", "--count", "2", "--json", "--url", url(port)])
    assert 0 == main(["dlq", "replay", "dlq.a", "--offset", "3", "--url", url(port)])
    everything, some, one = capsys.readouterr().out.splitlines()
    assert "sent 3 letters back from dlq.a" == everything
    assert {"queue": "dlq.a", "replayed": 2} == json.loads(some)
    assert "sent 1 letter back from dlq.a" == one
    assert [("dlq.a", 3), ("dlq.a", 2)] == letters.replays
    assert [("dlq.a", 3)] == letters.replayed_alone


@pytest.mark.parametrize(
    "command", [["list"], ["replay"], ["replay", "--offset", "1"], ["purge"]]
)
@pytest.mark.parametrize(
    "case",
    [
        ("dlq.work", "error: work is no queue of dead letters; did you mean dlq.work?\n"),
        ("dlq.other", "; `braidmq dlq list` names those there are\n"),
    ],
)
def test_whoever_names_the_queue_is_told_where_its_letters_are(
    letters: FakeLetters,
    port: int,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    case: tuple[str, str],
) -> None:
    """If there are any."""
    letters_in, told = case
    letters.add(letters_in, 1)

    assert 1 == main(["dlq", *command, "work", "--url", url(port)])
    line = capsys.readouterr().err
    assert line.endswith(told)
    assert 1 == line.count("\n")


def test_the_name_that_a_queue_has_for_its_letters_is_told(
    source: FakeSource, letters: FakeLetters, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """It need not be the usual one."""
    letters.add("lost", 1)
    source.queues.rows["work"] = replace(facts("work"), dead_letter_name="lost")

    assert 1 == main(["dlq", "list", "work", "--url", url(port)])
    told = "error: work is no queue of dead letters; did you mean lost?\n"
    assert told == capsys.readouterr().err


@pytest.mark.parametrize("payload", ODD)
def test_an_odd_letter_is_a_letter(
    source: FakeSource,
    letters: FakeLetters,
    port: int,
    capsys: pytest.CaptureFixture[str],
    payload: bytes,
) -> None:
    """It is listed, shown to the letter with --json, sent back, and let go."""
    letters.add("dlq.a", 1, payload)
    letters.add("dlq.a", 2)

    assert 0 == main(["dlq", "list", "dlq.a", "--url", url(port)])
    rows = capsys.readouterr().out.splitlines()[1:]
    assert ["1", "2"] == [row.partition("\t")[0] for row in rows]
    assert 0 == main(["dlq", "list", "dlq.a", "--json", "--url", url(port)])
    assert f'"payload": {payload.decode()}, ' in capsys.readouterr().out
    assert 0 == main(["dlq", "replay", "dlq.a", "--url", url(port)])
    assert 0 == main(["dlq", "purge", "dlq.a", "--yes", "--url", url(port)])
    assert 0 == source.queues.rows["dlq.a"].waiting


def test_letters_may_be_as_deep_as_the_broker_reads(
    letters: FakeLetters, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where that ends depends on its stack; ours is another, and goes deeper."""
    for depth in range(900, 1_000):
        letters.add("dlq.a", depth, depth * b"[" + b"1e999" + depth * b"]")

    assert 0 == main(["dlq", "list", "dlq.a", "--json", "--url", url(port)])
    assert 100 == capsys.readouterr().out.count("1e999")


class StuckLetters(FakeLetters):
    """As the broker has them: those that do not say where they came from are met first."""

    stuck = 0

    async def replay(self, queue: str, count: int | None) -> int:
        kept = self._of(queue)
        went = max(await super().replay(queue, count) - self.stuck, 0)
        self.kept[queue] = kept[: self.stuck] + kept[self.stuck + went :]
        return went


@pytest.mark.parametrize(
    ("stuck", "flags", "asked"),
    [
        (0, [], [10, 10, 10, 10, 10, 10]),
        (0, ["--count", "12"], [10, 2]),
        (3, [], [10, 13, 13, 13, 13, 13]),
        (3, ["--count", "12"], [10, 5]),
        (30, [], [10, 20, 40, 50]),
        (60, [], [10, 20, 40, 60]),
    ],
)
def test_letters_are_sent_back_in_parts(
    *,
    source: FakeSource,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stuck: int,
    flags: list[str],
    asked: list[int],
) -> None:
    """As many as are wanted, each once; those that cannot go do not hold up the others."""
    monkeypatch.setattr(dead_letters, "LETTERS_AT_ONCE", 10)
    source.letters = letters = StuckLetters(source.queues)
    letters.stuck = stuck
    for offset in range(1, 61):
        letters.add("dlq.a", offset)

    with serving(source) as port:
        command = ["dlq", "replay", "dlq.a", "--json", *flags, "--url", url(port)]
        assert 0 == main(command)
    wanted = int(flags[1]) if flags else 60
    assert {"queue": "dlq.a", "replayed": wanted - stuck} == json.loads(capsys.readouterr().out)
    assert [("dlq.a", count) for count in asked] == letters.replays


def test_a_letter_is_wanted_by_count_or_by_offset(
    letters: FakeLetters, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2: both at once are the command's usage."""
    letters.add("dlq.a", 1)
    both = ["--count", "1", "--offset", "1"]

    assert 2 == main(["dlq", "replay", "dlq.a", *both, "--url", url(port)])
    assert "give one of count and offset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "typed", "code"),
    [(["--yes"], "", 0), ([], "dlq.a\n", 0), ([], "a\n", 2), ([], "", 2)],
)
def test_letters_are_purged_when_that_is_confirmed(
    *,
    source: FakeSource,
    letters: FakeLetters,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    typed: str,
    code: int,
) -> None:
    """The name is typed once more, or nothing happens."""
    letters.add("dlq.a", 1)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))

    assert code == main(["dlq", "purge", "dlq.a", *flags, "--url", url(port)])
    assert (1 if code else 0) == source.queues.rows["dlq.a"].waiting


@pytest.mark.parametrize("command", [["list"], ["replay"], ["purge", "--yes"]])
def test_a_queue_of_living_messages_is_left_alone(
    source: FakeSource, port: int, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Exit 1, and the command that lists those of dead letters."""
    source.queues.rows = {"a": facts("a", waiting=5)}

    assert 1 == main(["dlq", *command, "a", "--url", url(port)])
    assert (
        f"error: 127.0.0.1:{port} answers 404: no such queue of dead letters; "
        "`braidmq dlq list` names those there are\n" == capsys.readouterr().err
    )
    assert 5 == source.queues.rows["a"].waiting
