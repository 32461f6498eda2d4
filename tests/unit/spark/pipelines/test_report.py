"""The report's wishes, refused before a JVM is started. Runs are tested with one."""

from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.report import report
from braidmq.spark.pipelines.runs import Plan
from braidmq.spark.pipelines.typed import Wish
from tests.unit.columnar.logs import message, write_log


def test_a_schema_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    """By its name; nothing is written."""
    path = write_log(tmp_path / "log", [message("t", b"x")])
    plan = Plan({"path": str(path)}, tmp_path / "out")

    with pytest.raises(ConfigError, match="there is no schema 'nothing'"):
        report(plan, [Wish("nothing", ("t",))], print)
    assert not (tmp_path / "out").exists()


def test_a_log_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    """With the directory in which it was looked for."""
    with pytest.raises(ConfigError, match="is not a data directory"):
        report(Plan({"path": str(tmp_path)}, tmp_path / "out"), [], print)
