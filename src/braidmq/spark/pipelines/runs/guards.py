"""Guards around a run: the broker answers, the directory is free, errors take one line."""

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final

from pyspark.sql import SparkSession

from braidmq.base.errors import BraidError, ConfigError, DataDirInUseError
from braidmq.columnar.flight.failures import UnauthenticatedError, UnavailableError
from braidmq.spark.brokers import endpoint_of, patiently
from braidmq.spark.options import BrokerOptions
from braidmq.spark.pipelines.runs.failures import (
    JavaGoneError,
    QueryFailedError,
    is_java_gone,
    one_line,
)
from braidmq.spark.pipelines.runs.queries import LOOK_S
from braidmq.spark.reading.offsets import LostOffsetsError
from braidmq.wal.disk import Disk

ANSWER_S_MAX: Final = 5.0
"""Long enough for a broker that was started at the same moment."""

QUERY_LOCK: Final = "_lock"
RUN_LOCK: Final = "_held"
"""Two names, because one process may hold both in the same directory. Readers of tables skip
names that start with `_`."""

_LEAD: Final = re.compile(r"failed to connect to all addresses; last error: [A-Z_]+: ")
_SOCKET: Final = re.compile(r"ipv[46]:\S+: ")
_ADVICE: Final = "is the broker running, is [flight] enabled, and is this its port?"
_KEY_ADVICE: Final = "the key is given in --api-key or BRAIDMQ_API_KEY"


def check_broker(name: str, given: Mapping[str, str], *, needed: bool) -> None:
    """Check that the broker named by the options of a source or a sink answers.

    Done once before Spark starts, which takes ten seconds. A broker that has answered may
    restart, and `patiently` waits for it; an address that never answered is probably wrong. A
    broker that is named by its directory need not run while its files are read, unless it is
    *needed* for something else.

    Raises:
        QueryFailedError: It does not answer, or refuses the key.
        ConfigError: The address is malformed.
    """
    path, endpoint, key = given.get("path"), given.get("endpoint"), given.get("apiKey")
    if key is None or not (needed or endpoint):
        return  # the parser of the options reports the ones that are missing
    options = BrokerOptions(None if path is None else Path(path), endpoint, key)

    def ask() -> None:
        with closing(endpoint_of(options)) as broker:
            broker.offsets()

    try:
        patiently(ask, ANSWER_S_MAX)
    except UnauthenticatedError as error:
        raise QueryFailedError(name, f"{error}; {_KEY_ADVICE}") from error
    except UnavailableError as error:
        said = _SOCKET.sub("", _LEAD.sub("", str(error)))
        problem = said if endpoint is None else f"{said}; {_ADVICE}"
        raise QueryFailedError(name, problem) from error


@contextmanager
def held(directory: Path, option: str, lock: str = RUN_LOCK) -> Iterator[None]:
    """Lock a directory, creating it if needed; *option* is the option that names it.

    The kernel releases the lock when the process ends.

    Raises:
        ConfigError: Another run holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    disk = Disk(directory)
    try:
        disk.lock(lock)
    except DataDirInUseError:
        raise ConfigError(option, f"{directory} is being used by another run") from None
    try:
        yield
    finally:
        disk.unlock(lock)


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
        raise QueryFailedError(name, one_line(error)) from error
    except BraidError:
        raise
    except Exception as error:
        if is_java_gone(error):
            raise JavaGoneError(name) from error
        raise QueryFailedError(name, one_line(error)) from error


@contextmanager
def cancelling(spark: SparkSession, stopping: Event) -> Iterator[None]:
    """Cancel the jobs of a session when *stopping* is set, which makes them fail."""
    done = Event()

    def watch() -> None:
        # Again at each look: the main thread may start another job after the first call.
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
