"""One real Spark session for all tests: the JVM and its Python workers, nothing faked."""

from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from braidmq.spark import session
from braidmq.spark.runtime.java import LIGHT

QUICK = {
    "spark.driver.extraJavaOptions": LIGHT,
    "spark.executor.extraJavaOptions": LIGHT,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    # Each of many queries reads a few rows: compiling it would cost more than it saves.
    # Commands and pages run in sessions of their own, which compile.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.enabled": "false",
}

ON_LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}
"""Keeps the executors of a cluster on loopback instead of the machine's own address."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with chdir(tmp_path_factory.mktemp("spark")):
        found = session("tests", master="local[2,4]", config=QUICK)
    found.sparkContext.setLogLevel("OFF")
    yield found
    found.stop()


@pytest.fixture(scope="session")
def directory(spark: SparkSession) -> Path:
    """The working directory of the JVM and its Python processes, for relative paths."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - only the JVM knows it
    assert jvm is not None
    return Path(jvm.java.lang.System.getProperty("user.dir"))
