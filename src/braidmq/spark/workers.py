"""A Python process of Spark that runs tasks, or plans: what is done in it once, and last."""

import gc
import os
import sys
from functools import cache
from typing import Final

from pyspark import TaskContext

_DAEMON: Final = "pyspark.daemon"


def is_forked() -> bool:
    """Tell whether this process is one that Spark has forked to run tasks, or to plan."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _DAEMON


def settle() -> None:
    """Make this process, if Spark has forked it, ready for many tasks or plans."""
    if is_forked():
        _freeze()


@cache
def _freeze() -> None:
    # Spark collects garbage behind every task and every plan, and looks through all modules
    # each time: 30 ms of a processor, while the next step of the query has need of it. What
    # is imported by now stays, so it need not be seen.
    gc.freeze()


def leave(end: GeneratorExit) -> None:
    """End this process, if it is one of Spark's workers and Spark has hung up on it.

    Spark does so when it has seen enough rows, as behind a limit. The process would end anyway,
    but print a traceback before, because it cannot say good-bye.
    """
    if TaskContext.get() is not None and isinstance(end.__context__, ConnectionError):
        os._exit(0)
