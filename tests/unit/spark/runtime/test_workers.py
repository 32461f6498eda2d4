"""How Python processes of Spark are set up, what they keep, and how they end."""

import gc
import os
import pickle
import resource
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from pyspark import TaskContext

from braidmq.spark.runtime import workers
from braidmq.spark.runtime.workers import HOLD_BYTES_MAX, ONE_MACHINE, hold_bytes, leave, settle
from braidmq.spark.source import FilteringBraidSource


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    workers._freeze.cache_clear()  # noqa: SLF001 - as in a process that has just begun
    yield
    workers._freeze.cache_clear()  # noqa: SLF001 - as above
    gc.unfreeze()


def test_a_process_that_is_not_a_worker_is_left_alone() -> None:
    """A program that reads without Spark keeps its garbage collection as it was."""
    settle()

    assert 0 == gc.get_freeze_count()


@pytest.mark.usefixtures("forked")
def test_a_worker_freezes_loaded_objects_once() -> None:
    """Later objects are collected as usual, in every task."""
    settle()
    frozen = gc.get_freeze_count()
    later: list[object] = [[] for _ in range(1000)]
    settle()

    assert 0 < frozen
    assert frozen >= gc.get_freeze_count()
    assert any(one is later for one in gc.get_objects())


@pytest.mark.usefixtures("forked")
def test_a_planner_freezes_whether_it_creates_or_unpickles_a_source() -> None:
    """Spark asks one process for columns and another, which unpickles it, for partitions."""
    source = FilteringBraidSource({"path": "log"})
    made = gc.get_freeze_count()
    sent = pickle.dumps(source)
    workers._freeze.cache_clear()  # noqa: SLF001 - as in the other process
    gc.unfreeze()
    pickle.loads(sent)  # noqa: S301 - our own, and what Spark does

    assert 0 < made
    assert 0 < gc.get_freeze_count()


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("error", "is_printed"), [(BrokenPipeError(), False), (ConnectionResetError(), True)]
)
def test_a_process_that_was_idle_too_long_ends_silently(
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    is_printed: bool,
) -> None:
    """Spark's daemon prints through its `traceback`; other errors are still printed."""
    settle()
    daemon: Any = sys.modules["__main__"]
    try:
        raise error
    except OSError:
        daemon.traceback.print_exc()
        assert type(error).__name__ in daemon.traceback.format_exc()

    assert is_printed == (type(error).__name__ in capsys.readouterr().err)


def test_a_process_outside_spark_keeps_its_tracebacks() -> None:
    """Its module is not touched."""
    before = vars(sys.modules["__main__"]).get("traceback")
    settle()

    assert before is vars(sys.modules["__main__"]).get("traceback")


@pytest.mark.parametrize(
    ("in_task", "one_machine", "expected"),
    [
        (False, False, HOLD_BYTES_MAX),
        (False, True, HOLD_BYTES_MAX),
        (True, False, 0),
        (True, True, HOLD_BYTES_MAX),
    ],
)
def test_a_task_on_a_cluster_keeps_nothing_mapped(
    monkeypatch: pytest.MonkeyPatch,
    in_task: bool,
    one_machine: bool,
    expected: int,
) -> None:
    """The memory of an executor does not grow with the log."""
    monkeypatch.delenv(ONE_MACHINE, raising=False)
    if in_task:
        monkeypatch.setattr(TaskContext, "get", object)
    if one_machine:
        monkeypatch.setenv(ONE_MACHINE, "1")

    assert expected == hold_bytes()


@pytest.mark.parametrize(("limit", "expected"), [(2**31, 0), (-1, HOLD_BYTES_MAX)])
def test_a_task_with_limited_address_space_keeps_nothing_mapped(
    monkeypatch: pytest.MonkeyPatch, limit: int, expected: int
) -> None:
    """It would run out of address space while memory is free."""
    monkeypatch.setenv(ONE_MACHINE, "1")
    monkeypatch.setattr(TaskContext, "get", object)
    limits = {resource.RLIMIT_AS: (limit, limit)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)

    assert expected == hold_bytes()


def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the codes that this process would have exited with."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


def rows() -> Generator[int, None, None]:
    """The rows of a worker, until Spark closes them."""
    try:
        yield from range(3)
    except GeneratorExit as end:
        leave(end)
        raise


def write_one(rows: Generator[int, None, None], error: Exception | None) -> None:
    """Do with rows what Spark does: write, then close them whatever happens."""
    with suppress(OSError), closing(rows):
        next(rows)
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BrokenPipeError(), [0]),
        (ConnectionResetError(), [0]),
        (OSError(), []),
        (None, []),
    ],
)
def test_a_worker_that_spark_hung_up_on_ends_silently(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, expected: list[int]
) -> None:
    """As it does after a LIMIT; any other error is Spark's to report."""
    monkeypatch.setattr(TaskContext, "get", object)
    codes = exits(monkeypatch)
    write_one(rows(), error)

    assert expected == codes


def test_a_process_outside_spark_does_not_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It handles its broken pipes itself."""
    codes = exits(monkeypatch)
    write_one(rows(), BrokenPipeError())

    assert [] == codes
