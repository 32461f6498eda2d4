"""Guards of a run: its directory, and its words."""

from pathlib import Path
from queue import SimpleQueue
from threading import Event
from types import SimpleNamespace

import pytest

from braidmq.base.errors import BraidError, ConfigError
from braidmq.spark.pipelines.runs.failures import JavaGoneError, QueryFailedError
from braidmq.spark.pipelines.runs.guards import cancelling, held, plain_errors
from braidmq.spark.reading.offsets import LostOffsetsError


def test_a_directory_is_held_by_one_run(tmp_path: Path) -> None:
    """A second one is refused, with the option to change; afterwards it is free again."""
    place = tmp_path / "new" / "out"
    refused = pytest.raises(ConfigError, match=f"--out: {place} is being used")
    with held(place, "--out"), refused, held(place, "--out"):
        pass
    with held(place, "--out"):
        assert place.is_dir()


ERRORS: dict[str, tuple[Exception, type[BraidError], str]] = {
    "ours": (ConfigError("--rate", "no"), ConfigError, "--rate: no"),
    "a dead JVM": (EOFError(), JavaGoneError, "Java process has ended"),
    "a lost connection": (ConnectionRefusedError(), JavaGoneError, "run it again"),
    "lost offsets": (
        LostOffsetsError("data", "gone"),
        QueryFailedError,
        "report: data: gone; --no-fail-on-data-loss reads on",
    ),
    "another": (ValueError("a\nb"), QueryFailedError, "report: a"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_end_in_one_line(case: str) -> None:
    """Ours stay as they are; Spark's are told as a query's are."""
    error, kind, text = ERRORS[case]

    with pytest.raises(kind, match=text), plain_errors("report"):
        raise error


def test_jobs_are_cancelled_when_a_run_is_to_end_and_not_before() -> None:
    """Again and again: the next one may have begun behind the first time."""
    calls: SimpleQueue[str] = SimpleQueue()
    context = SimpleNamespace(cancelAllJobs=lambda: calls.put("cancelled"))
    spark, stopping = SimpleNamespace(sparkContext=context), Event()
    with cancelling(spark, stopping):  # type: ignore[arg-type]  # a Spark that is played
        pass
    assert calls.empty()
    with cancelling(spark, stopping):  # type: ignore[arg-type]  # as above
        stopping.set()
        assert ["cancelled", "cancelled"] == [calls.get(timeout=10) for _ in range(2)]
