"""The environment of a session; the session itself is tested with a real one."""

import os
import sys
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark import sessions
from braidmq.spark.java import Java
from braidmq.spark.sessions import prepare_environment


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/elsewhere")
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(sessions, "find_java", lambda: Java(Path("/jdk/bin/java"), 17))


def test_java_and_python_are_those_that_were_found() -> None:
    """A JVM inherits them when it starts."""
    prepare_environment()

    assert ("/jdk", sys.executable) == (os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"])


def test_a_python_that_was_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none is chosen for a cluster, whose machines have their own."""
    prepare_environment("spark://host:7077")
    assert "PYSPARK_PYTHON" not in os.environ
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    prepare_environment()
    assert "/opt/python" == os.environ["PYSPARK_PYTHON"]


def test_no_java_is_told_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Spark says something less helpful."""
    monkeypatch.setattr(sessions, "find_java", lambda: None)

    with pytest.raises(ConfigError, match=r"version 17 or newer: .*install"):
        prepare_environment()
