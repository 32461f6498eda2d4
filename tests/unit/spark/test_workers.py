"""What is done once in a Python process of Spark."""

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from braidmq.spark import workers
from braidmq.spark.workers import settle


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    workers._freeze.cache_clear()  # noqa: SLF001 - as in a process that has just begun
    yield
    workers._freeze.cache_clear()  # noqa: SLF001 - as above
    gc.unfreeze()


def test_a_process_that_is_no_worker_is_left_alone() -> None:
    """Whoever reads without Spark has its garbage collected as before."""
    settle()

    assert 0 == gc.get_freeze_count()


def test_a_worker_freezes_what_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes later is garbage when it is garbage, in every task."""
    monkeypatch.setattr(TaskContext, "get", object)

    settle()
    frozen = gc.get_freeze_count()
    later: list[object] = [[] for _ in range(1000)]
    settle()

    assert 0 < frozen
    assert frozen >= gc.get_freeze_count()
    assert any(one is later for one in gc.get_objects())
