"""A Python process of Spark that runs task after task: what is done in it once, and last."""

import gc
import os
from functools import cache

from pyspark import TaskContext


def settle() -> None:
    """Make this process, if it is one of Spark's workers, ready for many tasks."""
    if TaskContext.get() is not None:
        _freeze()


@cache
def _freeze() -> None:
    # Spark collects garbage behind every task, and looks through all modules each time:
    # a fifth of what a worker does. What is imported by now stays, so it need not be seen.
    gc.freeze()


def leave(end: GeneratorExit) -> None:
    """End this process, if it is one of Spark's workers and Spark has hung up on it.

    Spark does so when it has seen enough rows, as behind a limit. The process would end anyway,
    but print a traceback before, because it cannot say good-bye.
    """
    if TaskContext.get() is not None and isinstance(end.__context__, ConnectionError):
        os._exit(0)
