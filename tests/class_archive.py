"""An archive of Spark's classes, which saves a JVM a third of its startup time.

Tests start dozens of JVMs, and each loads and checks the same 15,000 classes. The first run of
the suite writes the archive in the background, with `python -m tests.class_archive PATH`; a JVM
that starts before the archive exists, or does not match it, loads its classes one by one as
usual.
"""

import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir
from importlib.metadata import version
from pathlib import Path
from typing import Final

from braidmq.spark.runtime.java import SHORT_LIVED

ROOT: Final = Path(__file__).resolve().parents[1]
LOG: Final = ROOT / "tests" / "data" / "one_room"

UNVERIFIED: Final = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Skip the verification of Spark's classes, a seventh of the work of a short-lived JVM."""

SILENT: Final = "-Xlog:disable"
"""Otherwise a JVM that cannot use the archive says so on standard output, which tests read."""

OPTIONS: Final = f"{SHORT_LIVED} {UNVERIFIED} {SILENT}"


def use() -> None:
    """Make every JVM that a command starts use the archive, once it exists."""
    # Spark passes these to each JVM that it starts.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{OPTIONS} -XX:SharedArchiveFile={_path()}")


def begin() -> None:
    """Start writing the archive in the background, unless it exists."""
    path = _path()
    if path.exists():
        return
    path.parent.mkdir(exist_ok=True)
    for stale in path.parent.glob("spark-*.jsa*"):
        stale.unlink()  # from another version of Spark, or an interrupted run
    writing = subprocess.Popen(
        [sys.executable, "-m", "tests.class_archive", str(path)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(writing.kill)


def _path() -> Path:
    """Return the path of the archive, which fits one Java, one Spark and one set of options."""
    java = Path(shutil.which("java") or "").resolve()
    identity = f"{os.environ.get('JAVA_HOME')} {java} {version('pyspark')} {OPTIONS}"
    return ROOT / "build" / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.jsa"


def write(path: Path) -> None:
    """Run what the tests run most, and have the JVM archive its classes at exit."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={unfinished}"
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        _exercise(Path(directory))
    unfinished.rename(path)


def _exercise(directory: Path) -> None:
    """Read a log, write, aggregate and stream: this loads the classes of most pipelines."""
    from pyspark.sql import functions  # noqa: PLC0415 - only this function needs Spark

    from braidmq.spark import session  # noqa: PLC0415 - as above

    settings = {"spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "1"}
    spark = session("class archive", master="local[2]", config=settings)
    log = spark.read.format("braidmq").load(str(LOG))
    log.write.partitionBy("topic").parquet(str(directory / "rows"))
    rows = spark.read.schema(log.schema).parquet(str(directory / "rows"))
    rows.groupBy(functions.window("timestamp", "10 seconds")).count().collect()
    rows.toArrow()
    followed = (
        spark.readStream.format("braidmq").option("startingOffsets", "earliest").load(str(LOG))
    )
    for name, frame in {
        "plain": followed,
        "stateful": followed.withWatermark(
            "timestamp", "1 second"
        ).dropDuplicatesWithinWatermark(["offset"]),
    }.items():
        query = frame.writeStream.option("checkpointLocation", str(directory / name))
        query.foreachBatch(lambda batch, _: batch.toArrow()).trigger(
            availableNow=True
        ).start().awaitTermination()
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - its process ends with its standard input
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
