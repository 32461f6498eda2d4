"""A Spark session on this machine, or with another master, that knows the format already."""

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from braidmq.base.errors import ConfigError
from braidmq.spark.java import ADVICE, ARROW, JAVA_MIN, find_java, java_home
from braidmq.spark.registration import register

MASTER: Final = "local[*,4]"
"""All cores; the 4: without it a task that failed is never tried again."""

CONFIG: Final = {
    "spark.buffer.size": "1048576",  # between Python and the JVM; with 64 KiB rows come slower
    "spark.driver.extraJavaOptions": ARROW,
    "spark.executor.extraJavaOptions": ARROW,
}
"""What a session begins with; its caller's configuration wins."""


def session(
    name: str = "braidmq", *, master: str = MASTER, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session with the format registered, a new one or the one that runs.

    Raises:
        ConfigError: There is no Java of version 17 or newer.
    """
    if SparkContext._active_spark_context is None:  # noqa: SLF001 - there is no other way to ask
        prepare_environment(master)
    builder = SparkSession.Builder().appName(name).master(master)
    for key, value in {**CONFIG, **(config or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def prepare_environment(master: str = MASTER) -> None:
    """Set JAVA_HOME, and for local workers PYSPARK_PYTHON, for a JVM that is to be started.

    Raises:
        ConfigError: There is no Java of version 17 or newer.
    """
    java = find_java()
    if java is None:
        raise ConfigError("java", f"Spark needs version {JAVA_MIN} or newer: {ADVICE}")
    os.environ["JAVA_HOME"] = str(java_home(java))
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
