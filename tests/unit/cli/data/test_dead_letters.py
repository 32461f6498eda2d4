"""`braidmq dlq`, against the real HTTP API on a real socket."""

import asyncio
import io
import json

import pytest

from braidmq.broker.authorize import Principal
from braidmq.cli.data import dead_letters
from braidmq.cli.main import main
from tests.unit.admin.world import World
from tests.unit.cli.serving import url

ODD = [b'"\\ud800"', b'{"a": 1e999}', 5_000 * b"1"]
"""JSON that Python cannot represent, or UTF-8 cannot encode; the API passes it on."""


@pytest.fixture
def replays(world: World, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None]]:
    """Record the requested replays, by queue and count."""
    requested: list[tuple[str, int | None]] = []
    replay = world.status.replays.replay

    async def recording(queue: str, count: int | None, by: Principal) -> int:
        requested.append((queue, count))
        return await replay(queue, count, by)

    monkeypatch.setattr(world.status.replays, "replay", recording)
    return requested


def waiting(world: World, queue: str) -> int:
    return world.status.queues.facts(queue).waiting


def offsets(world: World, queue: str) -> list[int]:
    """Return the offsets of all waiting letters."""
    page = asyncio.run(world.status.letters.letters(queue, from_offset=1, limit=100))
    return [letter.offset for letter in page.letters]


def test_queues_of_dead_letters_are_listed(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the number that wait in each."""
    world.bury("a", b"1", b"2")

    assert 0 == main(["dlq", "list", "--url", url(port)])
    lines = ["queue\tmessageCount\tinFlight\tsubscriberCount", "dlq.a\t2\t0\t0"]
    assert lines == capsys.readouterr().out.splitlines()


def test_the_letters_of_one_queue_are_listed(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line each in a pipe; with --json the headers too."""
    world.bury("a/ ?", b'{"n": 1}')
    assert 0 == main(["dlq", "list", "dlq.a/ ?", "--url", url(port)])
    columns = "offset\tid\treason\tdeathQueue\tattempts\ttimestamp\tsize"
    row = '2\tid-{"n": 1}\trejected\ta/ ?\t1\t2027-01-15T08:00:00Z\t8'
    assert [columns, row] == capsys.readouterr().out.splitlines()
    assert 0 == main(["dlq", "list", "dlq.a/ ?", "--json", "--url", url(port)])

    assert [{"trace": "t"}] == [row["headers"] for row in json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize(
    ("flags", "expected"), [([], 100), (["--count", "3"], 3), (["--count", "450"], 450)]
)
def test_no_more_letters_are_listed_than_requested(
    world: World,
    port: int,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    expected: int,
) -> None:
    """From as many pages as it takes."""
    world.bury("a", *500 * [b"x"])  # at the offsets from 2 on, after their queue

    assert 0 == main(["dlq", "list", "dlq.a", "--json", *flags, "--url", url(port)])
    rows = json.loads(capsys.readouterr().out)
    assert list(range(2, expected + 2)) == [row["offset"] for row in rows]


def test_letters_are_sent_back(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """All, the oldest of them, or one."""
    world.bury("a", *6 * [b"x"])
    assert [2, 3, 4, 5, 6, 7] == offsets(world, "dlq.a")

    assert 0 == main(["dlq", "replay", "dlq.a", "--offset", "6", "--url", url(port)])
    assert [2, 3, 4, 5, 7] == offsets(world, "dlq.a")
    assert 0 == main(["dlq", "replay", "dlq.a", "--count", "2", "--json", "--url", url(port)])
    assert [4, 5, 7] == offsets(world, "dlq.a")
    assert 0 == main(["dlq", "replay", "dlq.a", "--url", url(port)])
    assert [] == offsets(world, "dlq.a")
    one, some, everything = capsys.readouterr().out.splitlines()
    assert "sent 1 letter back from dlq.a" == one
    assert {"queue": "dlq.a", "replayed": 2} == json.loads(some)
    assert "sent 3 letters back from dlq.a" == everything


@pytest.mark.parametrize(
    "command", [["list"], ["replay"], ["replay", "--offset", "1"], ["purge"]]
)
@pytest.mark.parametrize(
    "case",
    [
        ("dlq.work", "error: work is not a dead-letter queue; did you mean dlq.work?\n"),
        ("dlq.other", "; `braidmq dlq list` lists the existing ones\n"),
    ],
)
def test_naming_the_queue_itself_gives_a_hint_to_its_letters(
    world: World,
    port: int,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    case: tuple[str, str],
) -> None:
    """If there are any."""
    letters_in, hint = case
    world.bury(letters_in.removeprefix("dlq."), b"1")

    assert 1 == main(["dlq", *command, "work", "--url", url(port)])
    line = capsys.readouterr().err
    assert line.endswith(hint)
    assert 1 == line.count("\n")


def test_the_hint_names_the_queue_that_holds_the_letters(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """It need not have the default name."""
    world.declare("lost")
    world.declare("work", dead_letter_name="lost")
    world.bury("work", b"1", letters="lost")

    assert 1 == main(["dlq", "list", "work", "--url", url(port)])
    hint = "error: work is not a dead-letter queue; did you mean lost?\n"
    assert hint == capsys.readouterr().err


@pytest.mark.parametrize("payload", ODD)
def test_a_letter_with_an_odd_payload_is_like_any_other(
    world: World,
    port: int,
    capsys: pytest.CaptureFixture[str],
    payload: bytes,
) -> None:
    """It is listed, shown unchanged with --json, sent back, and purged."""
    world.bury("a", payload, b"2")

    assert 0 == main(["dlq", "list", "dlq.a", "--url", url(port)])
    rows = capsys.readouterr().out.splitlines()[1:]
    assert ["2", "3"] == [row.partition("\t")[0] for row in rows]
    assert 0 == main(["dlq", "list", "dlq.a", "--json", "--url", url(port)])
    assert f'"payload": {payload.decode()}, ' in capsys.readouterr().out
    assert 0 == main(["dlq", "replay", "dlq.a", "--url", url(port)])
    assert 0 == main(["dlq", "purge", "dlq.a", "--yes", "--url", url(port)])
    assert 0 == waiting(world, "dlq.a")


def test_letters_may_be_nested_as_deeply_as_the_broker_reads(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its limit depends on its stack; that of the command is deeper."""
    for depth in range(900, 1_000):
        world.bury("a", depth * b"[" + b"1e999" + depth * b"]")

    assert 0 == main(["dlq", "list", "dlq.a", "--json", "--url", url(port)])
    assert 100 == capsys.readouterr().out.count("1e999")


@pytest.mark.parametrize(
    ("stuck", "flags", "requested"),
    [
        (0, [], [10, 10, 10, 10, 10, 10]),
        (0, ["--count", "12"], [10, 2]),
        (3, [], [10, 13, 13, 13, 13, 13]),
        (3, ["--count", "12"], [10, 5]),
        (30, [], [10, 20, 40, 50]),
        (60, [], [10, 20, 40, 60]),
    ],
)
def test_letters_are_sent_back_in_batches(
    *,
    world: World,
    replays: list[tuple[str, int | None]],
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stuck: int,
    flags: list[str],
    requested: list[int],
) -> None:
    """As many as requested, each once; those that cannot be sent do not hold up the others."""
    monkeypatch.setattr(dead_letters, "LETTERS_AT_ONCE", 10)
    world.bury("a")
    world.publish("dlq.a", *stuck * [b"x"])  # these do not name their queue
    world.bury("a", *(60 - stuck) * [b"x"])

    assert 0 == main(["dlq", "replay", "dlq.a", "--json", *flags, "--url", url(port)])
    wanted = int(flags[1]) if flags else 60
    assert {"queue": "dlq.a", "replayed": wanted - stuck} == json.loads(capsys.readouterr().out)
    assert [("dlq.a", count) for count in requested] == replays


def test_letters_are_chosen_by_count_or_by_offset(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both together are a usage error, exit 2."""
    world.bury("a", b"1")
    both = ["--count", "1", "--offset", "1"]

    assert 2 == main(["dlq", "replay", "dlq.a", *both, "--url", url(port)])
    assert "give one of count and offset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "typed", "code"),
    [(["--yes"], "", 0), ([], "dlq.a\n", 0), ([], "a\n", 2), ([], "", 2)],
)
def test_letters_are_purged_only_when_confirmed(
    *,
    world: World,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    typed: str,
    code: int,
) -> None:
    """The user types the name again, or nothing happens."""
    world.bury("a", b"1")
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))

    assert code == main(["dlq", "purge", "dlq.a", *flags, "--url", url(port)])
    assert (1 if code else 0) == waiting(world, "dlq.a")


@pytest.mark.parametrize("command", [["list"], ["replay"], ["purge", "--yes"]])
def test_a_queue_without_dead_letters_is_left_alone(
    world: World, port: int, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Exit 1, with the command that lists the queues of dead letters."""
    world.declare("a")
    world.publish("a", *5 * [b"x"])

    assert 1 == main(["dlq", *command, "a", "--url", url(port)])
    assert (
        f"error: 127.0.0.1:{port} answered 404: no such queue of dead letters; "
        "`braidmq dlq list` lists the existing ones\n" == capsys.readouterr().err
    )
    assert 5 == waiting(world, "a")
