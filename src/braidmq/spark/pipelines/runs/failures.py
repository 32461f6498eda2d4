"""What a failed query says, in one line, and whether to try it again.

Spark wraps an error of the source, of a task or of a batch in its own, with the traceback of a
Python process in its text. Ours say what to do about them; so the last of ours is what is told.
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
"""What py4j says behind the name of the call."""

_FOR_NOW: Final = frozenset({"BrokenStreamError", "UnavailableError"})
"""Our errors that may be over in a moment: the broker is being started again."""

_IN_WORDS_OF_COMMANDS: Final = ("the option failOnDataLoss=false", "--no-fail-on-data-loss")
"""What the source advises, and what the user of a pipeline has for it."""


class QueryFailedError(BraidError):
    """A query has failed, and to try it again is of no use or was tried often enough."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem


class JavaGoneError(BraidError):
    """The Java process of Spark has ended; the next run goes on where this one was."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}: Spark's Java process has ended; run it again, it goes on where it was"
        )
        self.name = name


def told(error: BaseException) -> str:
    """Return what *error* says, in one line without a traceback."""
    return _line(error).replace(*_IN_WORDS_OF_COMMANDS)


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
    """Return whether the same would happen again.

    So it is with an error of ours, which says what to do, and with any of this process; Spark's
    own may be those of a process that died.
    """
    if not isinstance(error, PySparkException | Py4JError):
        return type(error).__name__ not in _FOR_NOW
    names = [name for name, _ in _OURS.findall(str(error))]
    return bool(names) and names[-1] not in _FOR_NOW


def is_java_gone(error: BaseException) -> bool:
    """Return whether *error* is what a call to a dead JVM raises."""
    return isinstance(error, ConnectionError | EOFError) or (
        isinstance(error, Py4JError) and not hasattr(error, "java_exception")
    )


def is_of_spark(error: BaseException) -> bool:
    """Return whether *error* is Spark's: what it answers, or that it does not answer."""
    known = Py4JError | PySparkException | QueryFailedError | JavaGoneError
    return isinstance(error, known) or is_java_gone(error)
