"""A Python process of Spark that runs tasks, or plans: what is done in it once, and last."""

import gc
import os
import resource
import sys
import traceback
from functools import cache
from typing import Final

from pyspark import TaskContext

from braidmq.base.limits import MIB

ONE_MACHINE: Final = "BRAIDMQ_SPARK_ONE_MACHINE"
"""An environment variable of Python processes whose executors are part of the driver."""

HOLD_BYTES_MAX: Final = 1024 * MIB
"""What a process of Spark keeps mapped of a log from one query of few topics to the next."""

_DAEMON: Final = "pyspark.daemon"


def is_forked() -> bool:
    """Tell whether this process is one that Spark has forked to run tasks, or to plan."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _DAEMON


def hold_bytes() -> int:
    """Return how much of a log this process may keep mapped until the next query.

    A task of a cluster keeps nothing: mapped pages count for its executor, which may be ended
    for that. Nor does one whose addresses are limited, as by `spark.executor.pyspark.memory`.
    Spark ends processes that have had nothing to do for a minute, and with them what they keep.
    """
    if TaskContext.get() is None:
        return HOLD_BYTES_MAX
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return 0 if is_limited or ONE_MACHINE not in os.environ else HOLD_BYTES_MAX


def settle() -> None:
    """Make this process, if Spark has forked it, ready for many tasks or plans, and its end."""
    if is_forked():
        _freeze()
        vars(sys.modules["__main__"])["traceback"] = _Tracebacks()


@cache
def _freeze() -> None:
    # Spark collects garbage behind every task and every plan, and looks through all modules
    # each time: 30 ms of a processor, while the next step of the query has need of it. What
    # is imported by now stays, so it need not be seen.
    gc.freeze()


class _Tracebacks:
    """What Spark's daemon has in the place of the module: it is silent about broken pipes.

    Spark hangs up on a process that was idle for a minute. The process finds that nobody takes
    its last words, and would print that, on the terminal of whoever has a session open.
    """

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()


def leave(end: GeneratorExit) -> None:
    """End this process, if it is one of Spark's workers and Spark has hung up on it.

    Spark does so when it has seen enough rows, as behind a limit. The process would end anyway,
    but print a traceback before, because it cannot say good-bye.
    """
    if TaskContext.get() is not None and isinstance(end.__context__, ConnectionError):
        os._exit(0)
