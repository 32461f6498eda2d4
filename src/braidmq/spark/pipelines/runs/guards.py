"""Guards of a run that is not only a streaming query: its directory, its words, its end."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final

from pyspark.sql import SparkSession

from braidmq.base.errors import BraidError, ConfigError, DataDirInUseError
from braidmq.spark.pipelines.runs.failures import (
    JavaGoneError,
    QueryFailedError,
    is_java_gone,
    told,
)
from braidmq.spark.pipelines.runs.queries import LOOK_S
from braidmq.spark.reading.offsets import LostOffsetsError
from braidmq.wal.disk import Disk

LOCK: Final = "_held"
"""A file of its own: the run of a streaming query holds another one, in its `out`."""


@contextmanager
def held(directory: Path, option: str) -> Iterator[None]:
    """Hold a directory, which is made if it is not there; *option* names it to the user.

    Raises:
        ConfigError: Another run holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    disk = Disk(directory)
    try:
        disk.lock(LOCK)
    except DataDirInUseError:
        raise ConfigError(option, f"{directory} is being used by another run") from None
    try:
        yield
    finally:
        disk.unlock(LOCK)


@contextmanager
def plain_errors(name: str) -> Iterator[None]:
    """Let the errors of Spark end in one line, as those of a query do.

    Raises:
        JavaGoneError: Spark has died.
        QueryFailedError: Offsets are lost, or something has failed that is not ours.
    """
    try:
        yield
    except LostOffsetsError as error:
        raise QueryFailedError(name, told(error)) from error
    except BraidError:
        raise
    except Exception as error:
        if is_java_gone(error):
            raise JavaGoneError(name) from error
        raise QueryFailedError(name, told(error)) from error


@contextmanager
def cancelling(spark: SparkSession, stopping: Event) -> Iterator[None]:
    """Cancel the jobs of a session when *stopping* is set; they fail, then."""
    done = Event()

    def watch() -> None:
        while not done.wait(LOOK_S):
            if stopping.is_set():
                with suppress(Exception):  # it may be gone, and then so are its jobs
                    spark.sparkContext.cancelAllJobs()

    # Not in a handler: the connection to the JVM is in the middle of a call then.
    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
