"""Brokers that the tests of a module share, and a process that looks like one of Spark's."""

import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest

from tests.unit.columnar.logs import write_log
from tests.unit.spark.running import Running, running
from tests.unit.spark.sources import varied


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A broker whose log is empty at first."""
    with running(tmp_path_factory.mktemp("broker")) as found:
        yield found


@pytest.fixture(scope="module")
def full_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A broker on a log with every kind of message; tests must not add to it."""
    with running(write_log(tmp_path_factory.mktemp("full"), varied(300))) as found:
        yield found


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process look like one that Spark has forked."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", ModuleSpec("pyspark.daemon", None), raising=False)
    monkeypatch.setattr(main, "traceback", traceback, raising=False)
