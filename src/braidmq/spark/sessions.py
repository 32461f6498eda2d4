"""Start a Spark session with the format registered, on this machine or with another master."""

import atexit
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from braidmq.base.errors import ConfigError
from braidmq.spark.registration import register
from braidmq.spark.runtime.java import ADVICE, ARROW, JAVA_MIN, find_java, java_home

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
