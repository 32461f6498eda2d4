"""The demo's tables: what is counted, and what is a disagreement."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from braidmq.cli.demo.count import Line
from braidmq.cli.demo.spark import AGAIN, ROLLUP, _read, count
from braidmq.cli.own_broker import DemoError

READINGS, COMMANDS = TOPICS = ("readings", "commands")
MINUTES_MS = (60_000, 120_000)

Tables = dict[str, pa.Table]
Board = list[tuple[str, int]]


def log() -> pa.Table:
    topics = [READINGS, COMMANDS, READINGS, READINGS, COMMANDS, ROLLUP, ROLLUP, AGAIN, AGAIN]
    values = [b"{}", b'{"number": 1}', b"{}", b"{}", b'{"number": 2}', b"{}", b"{}"]
    values += [values[1], values[4]]
    offsets = [1, 2, 4, 5, 6, 7, 8, 9, 10]
    return pa.table({"offset": offsets, "topic": topics, "value": values})


def tables() -> Tables:
    minutes = [datetime.fromtimestamp(ms / 1000, UTC) for ms in MINUTES_MS]
    return {
        "archive": pa.table({"offset": [10, 9, 8, 7, 6, 5, 4, 2, 1]}),
        "typed": pa.table({"offset": [4, 1]}),
        "quarantine": pa.table({"offset": [5]}),
        "rollup": pa.table({"sensor_id": ["a", "a"], "minute": minutes, "count": [1, 1]}),
    }


def board() -> Board:
    return [("a", ms) for ms in reversed(MINUTES_MS)]


def disagreeing(lines: list[Line]) -> list[str]:
    return [line.what.strip() for line in lines if not line.agrees]


def test_tables_that_are_complete_agree() -> None:
    """Each message is in a file once, each reading in one of two tables, each minute shown."""
    lines = count(log(), tables(), TOPICS, board())

    assert [] == disagreeing(lines)
    assert ["in files", "1 in quarantine", "", "", "", ""] == [line.note for line in lines]


def shorter(name: str) -> Callable[[Tables, Board], None]:
    def change(tables: Tables, _board: Board) -> None:
        tables[name] = tables[name].slice(1)

    return change


def twice(name: str) -> Callable[[Tables, Board], None]:
    def change(tables: Tables, _board: Board) -> None:
        tables[name] = pa.concat_tables([tables[name], tables[name].slice(0, 1)])

    return change


ARCHIVE, READ = "messages in Spark's archive", "readings in Spark's tables"
SUMMED, SENT, SHOWN = (
    "aggregated by minute",
    "minutes on the topic",
    "board, on Blip, each once",
)
CHANGES = {
    "a message is in no file": (shorter("archive"), [ARCHIVE]),
    "a message is in two files": (twice("archive"), [ARCHIVE]),
    "a reading is in no table": (shorter("typed"), [READ, SUMMED]),
    "an invalid reading is in no table": (shorter("quarantine"), [READ]),
    "a reading is in two tables": (twice("typed"), [READ, SUMMED]),
    "a minute is in no table": (shorter("rollup"), [SUMMED, SENT, SHOWN]),
    "a minute was not shown": (lambda _tables, board: board.pop(), [SHOWN]),
    "a minute was shown twice": (lambda _tables, board: board.append(board[0]), [SHOWN]),
    "a minute was made up": (lambda _tables, board: board.append(("b", 1)), [SHOWN]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_missing_and_extra_rows_are_a_disagreement(change: str) -> None:
    """Wherever it is, the line that counts it says so."""
    apply, expected = CHANGES[change]
    changed, shown = tables(), board()
    apply(changed, shown)

    assert expected == disagreeing(count(log(), changed, TOPICS, shown))


REPLAYED = "commands replayed, in order"
REPLAYS = {
    "a command was not replayed": [b'{"number": 1}', b'{"number": 1}'],
    "commands were replayed in another order": [b'{"number": 2}', b'{"number": 1}'],
}


@pytest.mark.parametrize("case", REPLAYS)
def test_a_replay_of_other_commands_is_a_disagreement(case: str) -> None:
    """The numbers in the payloads must be the same, in the same order."""
    values = log()["value"].to_pylist()[:-2] + REPLAYS[case]
    changed = log().set_column(2, "value", [values])

    assert [REPLAYED] == disagreeing(count(changed, tables(), TOPICS, board()))


def test_hidden_directories_are_not_part_of_a_table(tmp_path: Path) -> None:
    """As for every reader of Parquet: names that begin with `_` are skipped."""
    for directory, offset in (("date=2026-11-16", 1), ("_table/staging", 2)):
        (tmp_path / directory).mkdir(parents=True)
        pq.write_table(pa.table({"offset": [offset]}), tmp_path / directory / "a.parquet")

    assert [1] == _read(tmp_path)["offset"].to_pylist()


def test_a_missing_table_is_reported(tmp_path: Path) -> None:
    """In one line, with its path."""
    with pytest.raises(DemoError, match=f"no table found in {tmp_path}"):
        _read(tmp_path)
