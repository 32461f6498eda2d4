"""A Spark session on this machine, or with another master, that knows the format already."""

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
"""All cores; the 4: without it a task that failed is never tried again."""

CONFIG: Final = {
    "spark.buffer.size": "1048576",  # between Python and the JVM; with 64 KiB rows come slower
    "spark.driver.extraJavaOptions": ARROW,
    "spark.executor.extraJavaOptions": ARROW,
}
"""What a session begins with; its caller's configuration wins."""

SOCKET_PATH_BYTES_MAX: Final = 103
"""The longest path of a socket that every system takes; Linux takes 107 bytes."""

_SOCKETS: Final = "spark.python.unix.domain.socket"
_OUR_PREFIX: Final = "braidmq-"
_SOCKET_PATH: Final = f"{_OUR_PREFIX}12345678/.01234567-89ab-cdef-0123-456789abcdef.sock"
"""What Spark's names look like, in a directory that is made here."""


def session(
    name: str = "braidmq", *, master: str = MASTER, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session with the format registered, a new one or the one that runs.

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


def local_sockets(master: str) -> dict[str, str]:
    """Return what lets a JVM and its Python processes talk without TCP, where that can be.

    Rows come faster, and no query waits for delayed acknowledgements. Whoever may connect is
    decided by a directory that only this user may enter, which is gone with this process. The
    machines of a cluster would not have it.
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
    if os.getpid() == owner:  # and not a process that was forked from it
        shutil.rmtree(directory, ignore_errors=True)
