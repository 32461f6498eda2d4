"""Making the format known to a session."""

import os
import sys
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from braidmq.spark.source import BraidSource, FilteringBraidSource

FILTER_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_PYTHONS: Final = ("spark.pyspark.python", "spark.pyspark.driver.python")


def register(spark: SparkSession) -> None:
    """Make `format("braidmq")` known to *spark*; once for each session, again does no harm.

    Turns filter pushdown on (without it, the format is registered without its filters), and
    lets local workers run the Python that runs this, unless PYSPARK_PYTHON or the session's
    configuration names one. On a cluster each machine's own Python must have braidmq.
    """
    _let_workers_run_this_python(spark)
    try:
        spark.conf.set(FILTER_PUSHDOWN, "true")
    except PySparkException:
        _register(spark, BraidSource)
    else:
        _register(spark, FilteringBraidSource)


def _register(spark: SparkSession, source: type[DataSource]) -> None:
    try:
        spark.dataSource.register(source)
    except PySparkException:
        # Spark looks whether the name is taken in the thread's active session, which may be
        # another one that has the format; to make a frame makes this one the active one.
        spark.createDataFrame([], "nothing int")
        spark.dataSource.register(source)


def _let_workers_run_this_python(spark: SparkSession) -> None:
    try:
        context = spark.sparkContext
    except PySparkException:
        return  # Spark Connect: the workers are the server's
    chosen = "PYSPARK_PYTHON" in os.environ or any(
        context.getConf().contains(name) for name in _PYTHONS
    )
    if not chosen and str(context.master).startswith("local"):
        context.pythonExec = sys.executable
