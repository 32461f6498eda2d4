"""The rows of the Spark benchmark, from fixed figures, without a JVM."""

from dataclasses import asdict
from typing import Any, Final

import pytest

from bench.report import Row, table
from bench.spark import CONTESTANTS, MIB, Contestants, _spark_rows
from bench.streams import Sample

MESSAGES: Final = 1_000
FAST: Final = {
    "source": 1.0,
    "parquet": 0.75,
    "topic": 0.05,
    "nothing": 0.125,
    "typed": 1.0,
    "json": 4.0,
    "parquet_json": 2.0,
    "archive": 2.0,
    "copy": 1.5,
}
"""Seconds of each contestant with which every bar is met, the typed one only just."""

SLOW: Final = {**FAST, "topic": 0.25, "parquet": 0.5, "json": 3.5, "copy": 1.0}
Line = tuple[str, str, str, float | None, str, bool | None]


def measured(seconds: dict[str, float], more_mib: int) -> dict[str, Any]:
    """Return the output of the other process for three rounds: one slow, one fast."""
    samples = {
        name: [asdict(Sample(MESSAGES, each * by, 0.5, 0.0)) for by in (2.0, 1.0, 0.5)]
        for name, each in seconds.items()
    }
    return {
        "samples": samples,
        "few_bytes": 100 * MIB,
        "many_bytes": (100 + more_mib) * MIB,
        "mapped_bytes": (992 + more_mib) * MIB,
        "own_bytes": 40 * MIB,
    }


def line(row: Row) -> Line:
    return row.name, row.value, row.peer, row.ratio, row.bar_text, row.met


MET: Final[list[Line]] = [
    ("Spark source", "1,000/s", "its own Parquet 1,333/s", 0.75, ">= 0.60", True),
    ("Spark typed readings", "1,000/s", "from_json 250/s", 4.0, ">= 4.00", True),
    ("Spark typed readings, Parquet", "1,000/s", "from_json 500/s", 2.0, "", None),
    ("Spark archive", "500/s", "Parquet to Parquet 667/s", 0.75, ">= 0.60", True),
    ("one topic of 100 through Spark", "0.050 s", "all topics 1.00 s", 20.0, ">= 20.00", True),
    ("nothing through Spark", "0.125 s", "all topics 1.00 s", 8.0, "", None),
    (
        "memory, a Spark worker that reads 1,000",
        "31.00 MiB",
        "more than for 200; peak 131 MiB",
        None,
        "< 32 MiB",
        True,
    ),
    (
        "files mapped, a Spark worker that reads one topic",
        "1,023.00 MiB",
        "and own memory 40 MiB",
        None,
        "< 1024 MiB",
        True,
    ),
]
NOT_MET: Final[list[Line]] = [
    ("Spark source", "1,000/s", "its own Parquet 2,000/s", 0.5, ">= 0.60", False),
    ("Spark typed readings", "1,000/s", "from_json 286/s", 3.5, ">= 4.00", False),
    MET[2],
    ("Spark archive", "500/s", "Parquet to Parquet 1,000/s", 0.5, ">= 0.60", False),
    ("one topic of 100 through Spark", "0.250 s", "all topics 1.00 s", 4.0, ">= 20.00", False),
    MET[5],
    (
        "memory, a Spark worker that reads 1,000",
        "32.00 MiB",
        "more than for 200; peak 132 MiB",
        None,
        "< 32 MiB",
        False,
    ),
    (
        "files mapped, a Spark worker that reads one topic",
        "1,024.00 MiB",
        "and own memory 40 MiB",
        None,
        "< 1024 MiB",
        False,
    ),
]


@pytest.mark.parametrize(
    ("seconds", "more_mib", "expected"), [(FAST, 31, MET), (SLOW, 32, NOT_MET)]
)
def test_figures_become_rows_with_their_bars(
    seconds: dict[str, float], more_mib: int, expected: list[Line]
) -> None:
    """Medians of the rounds, those of the peer, and whether each bar is met."""
    rows = list(_spark_rows(measured(seconds, more_mib), MESSAGES))

    assert expected == [line(row) for row in rows]
    words = {True: " met", False: " not met", None: ""}
    for row, printed in zip(rows, table(rows).splitlines()[1:], strict=True):
        assert row.bar_text + words[row.met] in " ".join(printed.split())
        assert ("met" in printed) is (row.met is not None)


def test_every_contestant_exists_and_appears_in_a_row() -> None:
    """An unused figure or an unknown name means a broken report."""
    used = {name for name in CONTESTANTS if not is_complete_without(name)}

    assert set(FAST) == set(CONTESTANTS) == used
    assert all(callable(getattr(Contestants, name)) for name in CONTESTANTS)


def is_complete_without(name: str) -> bool:
    found = measured({other: each for other, each in FAST.items() if other != name}, 31)
    try:
        return len(list(_spark_rows(found, MESSAGES))) == len(MET)
    except KeyError:
        return False
