"""Sessions: start one with the format registered, or register the format with another one."""

import atexit
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Final
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from braidmq.base.errors import ConfigError
from braidmq.spark.reading.cursors import CursorListener
from braidmq.spark.runtime.java import ADVICE, ARROW, JAVA_MIN, find_java, java_home
from braidmq.spark.runtime.workers import ONE_MACHINE
from braidmq.spark.source import FORMAT, BraidSource

MASTER: Final = "local[*,4]"
"""All cores, and 4 attempts per task: by default a local master never retries a task."""

CONFIG: Final = {
    "spark.buffer.size": "1048576",  # between Python and the JVM; 64 KiB is measurably slower
    "spark.driver.extraJavaOptions": ARROW,
    "spark.executor.extraJavaOptions": ARROW,
}
"""Defaults of a session; the caller's configuration takes precedence."""

SOCKET_PATH_BYTES_MAX: Final = 103
"""The longest socket path that every system accepts; Linux accepts 107 bytes."""

REDACTED: Final = "spark.sql.redaction.options.regex"
API_KEY_PATTERN: Final = "(?i)apikey"
_PYTHONS: Final = ("spark.pyspark.python", "spark.pyspark.driver.python")
_listened_to: Final[WeakSet[SparkSession]] = WeakSet()

_SOCKETS: Final = "spark.python.unix.domain.socket"
_OUR_PREFIX: Final = "braidmq-"
_SOCKET_PATH: Final = f"{_OUR_PREFIX}12345678/.01234567-89ab-cdef-0123-456789abcdef.sock"
"""The shape of the socket paths that Spark makes in our directory, to measure their length."""


def session(
    name: str = "braidmq", *, master: str = MASTER, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session with the format registered: the running one, or a new one.

    Raises:
        ConfigError: There is no Java of version 17 or newer.
    """
    start = CONFIG
    if SparkContext._active_spark_context is None:  # noqa: SLF001 - there is no other way to ask
        prepare_environment(master)
        start = CONFIG | local_sockets(master)
    builder = SparkSession.Builder().appName(name).master(master)
    for key, value in {**start, **(config or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def prepare_environment(master: str = MASTER) -> None:
    """Set JAVA_HOME, and PYSPARK_PYTHON for local workers, before the JVM starts.

    Raises:
        ConfigError: There is no Java of version 17 or newer.
    """
    java = find_java()
    if java is None:
        raise ConfigError("java", f"Spark needs version {JAVA_MIN} or newer: {ADVICE}")
    os.environ["JAVA_HOME"] = str(java_home(java))
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def local_sockets(master: str) -> dict[str, str]:
    """Return settings that let a JVM and its Python processes use Unix sockets, if possible.

    Rows travel faster, and no query waits for a delayed TCP acknowledgement. The sockets are in
    a directory that only this user can enter and that is removed when this process ends. The
    machines of a cluster do not share such a directory, so they keep using TCP.
    """
    longest = Path(gettempdir()) / _SOCKET_PATH
    if (
        not master.startswith("local")
        or not hasattr(socket, "AF_UNIX")
        or len(os.fsencode(longest)) > SOCKET_PATH_BYTES_MAX
    ):
        return {}
    directory = mkdtemp(prefix=_OUR_PREFIX)
    atexit.register(_remove, directory, os.getpid())
    return {f"{_SOCKETS}.enabled": "true", f"{_SOCKETS}.dir": directory}


def _remove(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child runs this too, and must leave the directory
        shutil.rmtree(directory, ignore_errors=True)


def register(spark: SparkSession) -> None:
    """Register `format("braidmq")` with *spark*; once per session, and repeating is harmless.

    - The session becomes the active one of this thread; a thread that writes needs that.
    - Filters are left to Spark, whatever its setting: `FilteringBraidSource` says why.
    - API keys are redacted in the plans that Spark prints and logs.
    - A listener reports finished batches to the cursors of streams that have a groupId.
    - Local workers run the Python that runs this, unless PYSPARK_PYTHON or the session's
      configuration names one. On a cluster each machine's own Python must have braidmq.
    - Where executors run inside the driver, their Python processes may keep files mapped.
    """
    context = _context_of(spark)
    if context is not None:
        _let_workers_run_this_python(context)
        if str(context.master).partition("[")[0] == "local":  # and not local-cluster
            context.environment[ONE_MACHINE] = "1"
        _listen(spark)
        _make_active(spark)
    _hide_keys(spark)
    _register(spark, context)


def _context_of(spark: SparkSession) -> SparkContext | None:
    try:
        return spark.sparkContext
    except PySparkException:
        return None  # Spark Connect: the JVM and the workers belong to the server


def _listen(spark: SparkSession) -> None:
    if spark not in _listened_to:
        spark.streams.addListener(CursorListener(spark, FORMAT))
        _listened_to.add(spark)


def _hide_keys(spark: SparkSession) -> None:
    hidden = spark.conf.get(REDACTED) or ""
    if API_KEY_PATTERN not in hidden:
        with suppress(PySparkException):  # the setting is locked: the operator has decided
            spark.conf.set(REDACTED, "|".join(filter(None, (API_KEY_PATTERN, hidden))))


def _make_active(spark: SparkSession) -> None:
    # Spark looks formats up in the active session of the thread, which may be another session
    # or none. Creating a frame is the public call that makes a session the active one.
    spark.createDataFrame([], "nothing int")


def _register(spark: SparkSession, context: SparkContext | None) -> None:
    if context is None:
        spark.dataSource.register(BraidSource)
        return
    # Every stream that starts writes into the environment its format was registered with. That
    # is a HashMap, which two streams starting at once can corrupt; after that every query of
    # the session fails. So we register with a ConcurrentHashMap in its place.
    given, jvm = context.environment, context._jvm  # noqa: SLF001 - only the JVM has such a map
    assert jvm is not None
    context.environment = jvm.java.util.concurrent.ConcurrentHashMap(given)
    try:
        spark.dataSource.register(BraidSource)
    finally:
        context.environment = given


def _let_workers_run_this_python(context: SparkContext) -> None:
    chosen = "PYSPARK_PYTHON" in os.environ or any(
        context.getConf().contains(name) for name in _PYTHONS
    )
    if not chosen and str(context.master).startswith("local"):
        context.pythonExec = sys.executable
