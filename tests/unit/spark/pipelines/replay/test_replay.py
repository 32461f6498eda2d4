"""The replay's options, refused before a JVM is started. Runs are tested with one."""

from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.replay.chunks import Chunk, ReplayCheckpoint
from braidmq.spark.pipelines.replay.replay import (
    CHUNK_ROWS_MAX,
    Replay,
    ReplayOptions,
    _said,
    replay,
)
from braidmq.spark.pipelines.runs.runs import Plan, Run
from tests.unit.columnar.logs import log_of, message, write

SINK = {"endpoint": "grpc://127.0.0.1:1", "apiKey": "k"}
REFUSED = {
    "no name": (ReplayOptions(" ", SINK), "option --name: ' ' is not a name"),
    "a long name": (ReplayOptions("n" * 256, SINK), "at most 255 bytes"),
    "no rate": (ReplayOptions("a", SINK, rate=0.0), "--rate: 0 must be greater than 0"),
    "no key": (ReplayOptions("a", {"endpoint": "grpc://a:1"}), "option apiKey"),
    "no topic": (ReplayOptions("a", SINK, to_topic=""), "option topic"),
    "no table": (ReplayOptions("a", SINK, table=Path("nowhere")), "--table: nowhere is not"),
    "no table of a format": (
        ReplayOptions("a", SINK, table=Path("nowhere"), format="delta"),
        "--table: nowhere is not",
    ),
    "no format": (ReplayOptions("a", SINK, format="orc"), "--format: 'orc' is unknown"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_cannot_be_are_refused_at_once(case: str, tmp_path: Path) -> None:
    """With the option's name, and nothing is begun."""
    options, problem = REFUSED[case]
    with pytest.raises(ConfigError, match=problem):
        replay(Plan({"path": str(tmp_path)}, tmp_path / "out"), options, print)

    assert ReplayCheckpoint(tmp_path / "out/_checkpoint").begun() is None


def test_a_chunk_has_the_rows_of_a_moment_at_its_rate() -> None:
    """At least one, and never more than fit into memory."""
    rates = (None, 0.1, 10.0, 1e9)
    found = [ReplayOptions("a", SINK, rate=rate).chunk_rows for rate in rates]

    assert [CHUNK_ROWS_MAX, 1, 20, CHUNK_ROWS_MAX] == found


def test_what_comes_later_is_not_replayed(tmp_path: Path) -> None:
    """A replay into the log that it reads would never end."""
    plan = Plan({"path": str(tmp_path / "log")}, tmp_path / "out")
    run = Run("replay", plan, print)
    with log_of(tmp_path / "log", [message("t", b"x", n) for n in range(5)]) as wal:
        Replay(run, ReplayOptions("a", SINK))
        write(wal, [message("t", b"y", n) for n in range(5, 9)])
        again = Replay(run, ReplayOptions("a", SINK, rate=0.5))
        begun = ReplayCheckpoint(tmp_path / "out/_checkpoint").begun()

    assert begun is not None
    assert (1, 6) == (begun.first, begun.end)
    assert Chunk(1, 1, 2) == again._next(None)  # noqa: SLF001 - no row has to be sent for it
    assert Chunk(3, 5, 6) == again._next(Chunk(2, 2, 5))  # noqa: SLF001 - as above
    assert again._next(Chunk(3, 5, 6)) is None  # noqa: SLF001 - as above


def test_a_run_that_is_to_stop_begins_no_chunk(tmp_path: Path) -> None:
    """What it would have sent is for the next run; a JVM is not even started."""
    said: list[str] = []
    run = Run("replay", Plan({"path": str(tmp_path / "log")}, tmp_path / "out"), said.append)
    with log_of(tmp_path / "log", [message("t", b"x")]):
        run.stopping.set()
        Replay(run, ReplayOptions("a", SINK)).go()

    assert ["replay: stopped; the next run resumes here"] == said
    assert ReplayCheckpoint(tmp_path / "out/_checkpoint").last() is None


def test_the_key_is_not_written_down_nor_what_is_done_about_losses() -> None:
    """The checkpoint is a file that others may read; a replay that met a loss has to go on."""
    source = {"endpoint": "grpc://a:1", "apiKey": "very-secret", "subscribe": "t"}

    assert "endpoint=grpc://a:1 subscribe=t" == _said(source)
    assert _said(source) == _said({**source, "failOnDataLoss": "false"})
