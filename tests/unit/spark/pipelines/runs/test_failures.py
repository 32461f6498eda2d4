"""The message of a failed query, recovered from what Spark made of it."""

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.runs.failures import (
    TEXT_CHARS_MAX,
    JavaGoneError,
    QueryFailedError,
    is_final,
    is_java_gone,
    is_spark_error,
    one_line,
)
from braidmq.spark.reading.offsets import LostOffsetsError

OURS = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [X] Failed:
Traceback (most recent call last):
  File "runner.py", line 1, in f
ValueError: first
The above exception was the direct cause of the following exception:
Traceback (most recent call last):
braidmq.spark.reading.offsets.LostOffsetsError: data: the offsets 1 to 5 are lost: gone; do that
 SQLSTATE: 39000
"""
DEAD = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception:  SQLSTATE: XXKST"
PYTHONS = "[X] failed\nTraceback (most recent call last):\npkg.mod.OddError: why\n\nDriver: x"
AWAY = "x\nbraidmq.columnar.failures.UnavailableError: grpc://h:1 does not answer\n"
JAVAS = (
    "An error occurred while calling o1.save.\n: java.lang.OddException: why\n\tat a.B(C:1)\n"
)

LINES = {
    OURS: ("data: the offsets 1 to 5 are lost: gone; do that", True),
    DEAD: (DEAD, False),
    PYTHONS: ("pkg.mod.OddError: why", False),
    AWAY: ("grpc://h:1 does not answer", False),
    JAVAS: ("java.lang.OddException: why", False),
    "": ("PySparkException", False),
    "x" * 10_000: ("x" * (TEXT_CHARS_MAX - 1) + "…", False),
}


@pytest.mark.parametrize(("text", "expected"), LINES.items())
def test_a_failure_is_reported_as_the_last_of_our_errors(
    text: str, expected: tuple[str, bool]
) -> None:
    """In one line; our own errors are final, unless the problem may go away."""
    error = PySparkException(text)

    assert expected == (one_line(error), is_final(error))


def test_an_error_of_this_process_keeps_its_text_and_is_final() -> None:
    """Spark has not wrapped it, and a retry would not help."""
    error = ConfigError("--out", "is bad")

    assert ("--out: is bad", True) == (one_line(error), is_final(error))
    assert is_final(OSError(28, "No space left on device"))
    assert is_final(AssertionError())


def test_data_loss_is_reported_with_the_command_line_option() -> None:
    """Wrapped or not: options of the source are not options of a command."""
    error = LostOffsetsError("data", "gone")
    wrapped = PySparkException(f"x\nbraidmq.spark.offsets.LostOffsetsError: {error}\n")

    assert (
        "data: gone; use --no-fail-on-data-loss to continue"
        == one_line(error)
        == one_line(wrapped)
    )


def test_a_dead_jvm_is_recognised_by_what_calls_raise() -> None:
    """An error that a live JVM returns does not count."""
    answered = Py4JError("an error occurred")
    answered.java_exception = object()
    gone = [Py4JNetworkError("x"), Py4JError("Answer from Java side is empty"), EOFError()]

    assert all(map(is_java_gone, [*gone, ConnectionRefusedError(), ConnectionResetError()]))
    assert not any(map(is_java_gone, [answered, ValueError(), OSError(28, "full")]))
    ours = [QueryFailedError("a", "why"), JavaGoneError("a"), PySparkException("no")]
    assert all(map(is_spark_error, [*gone, answered, *ours]))
    assert not any(map(is_spark_error, [ValueError(), OSError(28, "full")]))


def test_errors_begin_with_the_name_of_the_pipeline() -> None:
    """Both that of a failed query and that of a dead JVM."""
    assert "typed a: why" == str(QueryFailedError("typed a", "why"))
    assert "archive: Spark's Java process has ended" in str(JavaGoneError("archive"))
