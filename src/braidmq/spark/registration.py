"""Making the format known to a session, and what goes with it."""

import os
import sys
from contextlib import suppress
from typing import Final
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from braidmq.spark.reading.listener import CursorListener
from braidmq.spark.runtime.workers import ONE_MACHINE
from braidmq.spark.source import FORMAT, BraidSource, FilteringBraidSource

FILTER_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
REDACTED: Final = "spark.sql.redaction.options.regex"
API_KEY_PATTERN: Final = "(?i)apikey"
_ONE_MACHINE_MASTER: Final = "local"
_PYTHONS: Final = ("spark.pyspark.python", "spark.pyspark.driver.python")


_listened_to: Final[WeakSet[SparkSession]] = WeakSet()


def register(spark: SparkSession) -> None:
    """Make `format("braidmq")` known to *spark*; once for each session, again does no harm.

    - The session becomes the active one of this thread; a thread that writes needs that.
    - Filter pushdown is turned on; where that cannot be, the format goes without its filters.
    - API keys are left out of the plans that Spark prints and logs.
    - A listener reports finished batches to the cursors of streams that have a groupId.
    - Local workers run the Python that runs this, unless PYSPARK_PYTHON or the session's
      configuration names one. On a cluster each machine's own Python must have braidmq.
    - Where executors are part of the driver, their Python processes may keep files mapped.
    """
    context = _context_of(spark)
    if context is not None:
        _let_workers_run_this_python(context)
        if str(context.master).partition("[")[0] == _ONE_MACHINE_MASTER:
            context.environment[ONE_MACHINE] = "1"
        _listen(spark)
        _make_active(spark)
    _hide_keys(spark)
    try:
        spark.conf.set(FILTER_PUSHDOWN, "true")
    except PySparkException:
        _register(spark, context, BraidSource)
    else:
        _register(spark, context, FilteringBraidSource)


def _context_of(spark: SparkSession) -> SparkContext | None:
    try:
        return spark.sparkContext
    except PySparkException:
        return None  # Spark Connect: workers and JVM are the server's


def _listen(spark: SparkSession) -> None:
    if spark not in _listened_to:
        spark.streams.addListener(CursorListener(spark, FORMAT))
        _listened_to.add(spark)


def _hide_keys(spark: SparkSession) -> None:
    hidden = spark.conf.get(REDACTED) or ""
    if API_KEY_PATTERN not in hidden:
        with suppress(PySparkException):  # where nothing can be changed, its owner decides
            spark.conf.set(REDACTED, "|".join(filter(None, (API_KEY_PATTERN, hidden))))


def _make_active(spark: SparkSession) -> None:
    # Spark looks for formats in the active session of the thread, which may be another one or
    # none; to make a frame is what makes a session the active one.
    spark.createDataFrame([], "nothing int")


def _register(
    spark: SparkSession, context: SparkContext | None, source: type[DataSource]
) -> None:
    if context is None:
        spark.dataSource.register(source)
        return
    # Each stream that begins writes into the environment that a format was registered with,
    # which is a HashMap: two at once can break it, and then no query of the session is well.
    given, jvm = context.environment, context._jvm  # noqa: SLF001 - only the JVM has such a map
    assert jvm is not None
    context.environment = jvm.java.util.concurrent.ConcurrentHashMap(given)
    try:
        spark.dataSource.register(source)
    finally:
        context.environment = given


def _let_workers_run_this_python(context: SparkContext) -> None:
    chosen = "PYSPARK_PYTHON" in os.environ or any(
        context.getConf().contains(name) for name in _PYTHONS
    )
    if not chosen and str(context.master).startswith("local"):
        context.pythonExec = sys.executable
