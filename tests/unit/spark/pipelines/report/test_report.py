"""The report's options and schedule, without a JVM; tests/integration/spark has whole runs."""

from pathlib import Path
from time import monotonic

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.report.report import due, report
from braidmq.spark.pipelines.runs.runs import Plan, Run
from braidmq.spark.pipelines.times import Trigger
from braidmq.spark.pipelines.typed import TypedTopics
from tests.unit.columnar.logs import message, write_log


def test_an_unknown_schema_is_refused_at_once(tmp_path: Path) -> None:
    """The error names it, and nothing is written."""
    path = write_log(tmp_path / "log", [message("t", b"x")])
    plan = Plan({"path": str(path)}, tmp_path / "out")

    with pytest.raises(ConfigError, match="there is no schema 'nothing'"):
        report(plan, [TypedTopics("nothing", ("t",))], print)
    assert not (tmp_path / "out").exists()


def test_a_directory_without_a_log_is_refused_at_once(tmp_path: Path) -> None:
    """The error says that it is not a data directory."""
    with pytest.raises(ConfigError, match="is not a data directory"):
        report(Plan({"path": str(tmp_path)}, tmp_path / "out"), [], print)


def test_a_report_is_due_once_or_periodically_until_a_signal(tmp_path: Path) -> None:
    """The period includes the time that a report takes; a signal ends the wait for the next."""
    once = Run("report", Plan({}, tmp_path), print)
    assert [None] == list(due(once))

    lines: list[str] = []
    often = Run("report", Plan({}, tmp_path, trigger=Trigger(50)), lines.append)
    begun_s, count = monotonic(), 0
    for _ in due(often):
        count += 1
        if count == 3:
            often.stopping.set()
    assert 3 == count
    assert monotonic() - begun_s >= 0.1
    assert ["report: stopped; the previous report is unchanged"] == lines
