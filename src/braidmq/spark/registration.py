"""Register the format with a session, and set the session up for it."""

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
    """Register `format("braidmq")` with *spark*; once per session, and repeating is harmless.

    - The session becomes the active one of this thread; a thread that writes needs that.
    - Filter pushdown is turned on; where the setting is locked, the format works without it.
    - API keys are redacted in the plans that Spark prints and logs.
    - A listener reports finished batches to the cursors of streams that have a groupId.
    - Local workers run the Python that runs this, unless PYSPARK_PYTHON or the session's
      configuration names one. On a cluster each machine's own Python must have braidmq.
    - Where executors run inside the driver, their Python processes may keep files mapped.
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


def _register(
    spark: SparkSession, context: SparkContext | None, source: type[DataSource]
) -> None:
    if context is None:
        spark.dataSource.register(source)
        return
    # Every stream that starts writes into the environment its format was registered with. That
    # is a HashMap, which two streams starting at once can corrupt; after that every query of
    # the session fails. So we register with a ConcurrentHashMap in its place.
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
