"""The Python processes that Spark forks for tasks and planning: set up, log, end cleanly."""

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
"""Environment variable of Python processes whose executor runs inside the driver."""

HOLD_BYTES_MAX: Final = 1024 * MIB
"""The most a Spark process keeps mapped of a log between two queries of few topics."""

_DAEMON: Final = "pyspark.daemon"


def is_forked() -> bool:
    """Tell whether Spark has forked this process, to run tasks or to plan."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _DAEMON


def hold_bytes() -> int:
    """Return how many bytes of a log this process may keep mapped until the next query.

    A task of a cluster keeps nothing: mapped pages count towards its executor's memory, and the
    cluster manager may kill the executor for that. A process whose address space is limited, as
    by `spark.executor.pyspark.memory`, keeps nothing either. Spark ends processes that are
    idle for a minute, which also releases what they keep.
    """
    if TaskContext.get() is None:
        return HOLD_BYTES_MAX
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return 0 if is_limited or ONE_MACHINE not in os.environ else HOLD_BYTES_MAX


def settle() -> None:
    """Prepare a process that Spark has forked: quick over many tasks, and quiet at its end."""
    if is_forked():
        _freeze()
        vars(sys.modules["__main__"])["traceback"] = _Tracebacks()


@cache
def _freeze() -> None:
    # Spark runs the garbage collector after every task and every plan. Each run walks all
    # imported modules: 30 ms of CPU that the next step of the query is waiting for. What is
    # imported by now stays for the life of the process, so the collector can skip it.
    gc.freeze()


class _Tracebacks:
    """Stand in for the module `traceback` in Spark's daemon, without reports of broken pipes.

    Spark closes the connection to a process that was idle for a minute. The process then fails
    to write its last answer, and would print that traceback on the user's terminal.
    """

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()


def leave(end: GeneratorExit) -> None:
    """End this process if it is a Spark worker and Spark has closed the connection to it.

    Spark does so when it has enough rows, for example after a LIMIT. The process would end
    anyway, but would first print a traceback because it cannot write its closing message.
    """
    if TaskContext.get() is not None and isinstance(end.__context__, ConnectionError):
        os._exit(0)


def log_event(level: str, event: str, **facts: object) -> None:
    """Log an event; structlog is imported only now: it is slow, and hardly ever needed."""
    import structlog

    getattr(structlog.get_logger(), level)(event, **facts)
