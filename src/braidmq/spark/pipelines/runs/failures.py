"""Reduce the failure of a query to one line, and decide whether to retry it.

Spark wraps an error of the source, of a task or of a batch in its own exception, with the
traceback of a Python process in its text. Errors of BraidMQ say what to do, so the last of them
in that text is the one that the user sees.
"""

import re
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from braidmq.base.errors import BraidError

TEXT_CHARS_MAX: Final = 500

_OURS: Final = re.compile(r"^braidmq\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)
_PYTHONS: Final = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)
_JAVAS: Final = re.compile(r"^: ((?:[a-z]\w*\.)+\w+.*)$", re.MULTILINE)
"""What py4j writes after the name of the call."""

_TRANSIENT: Final = frozenset({"BrokenStreamError", "UnavailableError"})
"""Our errors that a retry may get past: the broker may be restarting."""

_COMMAND_LINE: Final = ("failOnDataLoss=false", "--no-fail-on-data-loss")
"""The advice of the source names its own option; that of the command means the same."""


class QueryFailedError(BraidError):
    """A query has failed; a retry would be useless, or there were enough of them."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem


class JavaGoneError(BraidError):
    """The Java process of Spark has ended; the next run resumes where this one was."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}: Spark's Java process has ended; run it again, it resumes where it was"
        )
        self.name = name


def one_line(error: BaseException) -> str:
    """Return the message of *error* in one line, without a traceback."""
    return _line(error).replace(*_COMMAND_LINE)


def _line(error: BaseException) -> str:
    if isinstance(error, BraidError):
        return str(error)
    text = str(error)
    found = _OURS.findall(text) or _PYTHONS.findall(text)
    if found:
        name, problem = found[-1]
        line = problem if _OURS.search(text) else f"{name}: {problem}"
    elif java := _JAVAS.search(text):
        line = java[1]
    else:
        line = next(filter(None, map(str.strip, text.splitlines())), type(error).__name__)
    return line if len(line) <= TEXT_CHARS_MAX else line[: TEXT_CHARS_MAX - 1] + "…"


def is_final(error: BaseException) -> bool:
    """Tell whether a retry would fail in the same way.

    It would for our own errors, which need the user to do something, and for any error raised
    in this process. An error of Spark may come from a worker that was killed, and is retried.
    """
    if not isinstance(error, PySparkException | Py4JError):
        return type(error).__name__ not in _TRANSIENT
    names = [name for name, _ in _OURS.findall(str(error))]
    return bool(names) and names[-1] not in _TRANSIENT


def is_java_gone(error: BaseException) -> bool:
    """Tell whether *error* is what a call to a dead JVM raises.

    An error that the JVM itself has returned has a `java_exception`.
    """
    return isinstance(error, ConnectionError | EOFError) or (
        isinstance(error, Py4JError) and not hasattr(error, "java_exception")
    )


def is_spark_error(error: BaseException) -> bool:
    """Tell whether *error* comes from Spark: an error it returned, or no answer at all."""
    known = Py4JError | PySparkException | QueryFailedError | JavaGoneError
    return isinstance(error, known) or is_java_gone(error)
