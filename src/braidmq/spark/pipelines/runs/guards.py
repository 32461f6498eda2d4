"""Guards for runs that are more than a streaming query: their directory, errors and end."""

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
"""Not the lock file of a streaming query, which the same process may hold in the same place."""


@contextmanager
def held(directory: Path, option: str) -> Iterator[None]:
    """Lock a directory, creating it if needed; *option* is the option that names it.

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
    """Reduce errors of Spark to one line, as for a query.

    Raises:
        JavaGoneError: The JVM has died.
        QueryFailedError: Offsets are lost, or anything but BraidMQ itself has failed.
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
    """Cancel the jobs of a session when *stopping* is set, which makes them fail."""
    done = Event()

    def watch() -> None:
        while not done.wait(LOOK_S):
            if stopping.is_set():
                with suppress(Exception):  # the JVM may be gone, and its jobs with it
                    spark.sparkContext.cancelAllJobs()

    # In a thread, not in the signal handler: the handler interrupts the main thread in the
    # middle of a call to the JVM, on the connection that it would need.
    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
