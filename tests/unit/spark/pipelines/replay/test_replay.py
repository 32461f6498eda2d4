"""The replay's options and chunks, without a JVM; tests/integration/spark has whole runs."""

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
    "no Delta table": (
        ReplayOptions("a", SINK, table=Path("nowhere"), format="delta"),
        "--table: nowhere is not",
    ),
    "an unknown format": (ReplayOptions("a", SINK, format="orc"), "--format: 'orc' is unknown"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_options_are_refused_at_once(case: str, tmp_path: Path) -> None:
    """The error names the option, and no replay is begun."""
    options, problem = REFUSED[case]
    with pytest.raises(ConfigError, match=problem):
        replay(Plan({"path": str(tmp_path)}, tmp_path / "out"), options, print)

    assert ReplayCheckpoint(tmp_path / "out/_checkpoint").begun() is None


def test_the_rate_decides_how_many_rows_a_chunk_has() -> None:
    """At least one, and never more than fit in memory."""
    rates = (None, 0.1, 10.0, 1e9)
    found = [ReplayOptions("a", SINK, rate=rate).chunk_rows for rate in rates]

    assert [CHUNK_ROWS_MAX, 1, 20, CHUNK_ROWS_MAX] == found


def test_messages_published_later_are_not_replayed(tmp_path: Path) -> None:
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
    assert Chunk(1, 1, 2) == again._next(None)  # noqa: SLF001 - so that no row has to be sent
    assert Chunk(3, 5, 6) == again._next(Chunk(2, 2, 5))  # noqa: SLF001 - as above
    assert again._next(Chunk(3, 5, 6)) is None  # noqa: SLF001 - as above


def test_a_stopping_run_begins_no_chunk(tmp_path: Path) -> None:
    """The next run sends its rows; a JVM is not even started."""
    lines: list[str] = []
    run = Run("replay", Plan({"path": str(tmp_path / "log")}, tmp_path / "out"), lines.append)
    with log_of(tmp_path / "log", [message("t", b"x")]):
        run.stopping.set()
        Replay(run, ReplayOptions("a", SINK)).go()

    assert ["replay: stopped; the next run resumes here"] == lines
    assert ReplayCheckpoint(tmp_path / "out/_checkpoint").last() is None


def test_the_checkpoint_holds_neither_the_api_key_nor_the_loss_policy() -> None:
    """Others may read the file, and a replay that lost messages must be able to continue."""
    source = {"endpoint": "grpc://a:1", "apiKey": "very-secret", "subscribe": "t"}

    assert "endpoint=grpc://a:1 subscribe=t" == _said(source)
    assert _said(source) == _said({**source, "failOnDataLoss": "false"})
