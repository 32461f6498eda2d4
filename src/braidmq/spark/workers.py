"""A Python process of Spark that runs task after task: what is done in it once."""

import gc
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
