"""The environment of a session; tests/integration/spark has real sessions."""

import atexit
import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark import sessions
from braidmq.spark.runtime.java import Java
from braidmq.spark.sessions import SOCKET_PATH_BYTES_MAX, local_sockets, prepare_environment


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/elsewhere")
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(sessions, "find_java", lambda: Java(Path("/jdk/bin/java"), 17))


def test_java_and_python_are_those_that_were_found() -> None:
    """A JVM inherits them when it starts."""
    prepare_environment()

    assert ("/jdk", sys.executable) == (os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"])


def test_a_chosen_python_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is chosen for a cluster, whose machines have their own."""
    prepare_environment("spark://host:7077")
    assert "PYSPARK_PYTHON" not in os.environ
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    prepare_environment()
    assert "/opt/python" == os.environ["PYSPARK_PYTHON"]


def test_a_missing_java_is_reported_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Spark says something less helpful."""
    monkeypatch.setattr(sessions, "find_java", lambda: None)

    with pytest.raises(ConfigError, match=r"version 17 or newer: .*install"):
        prepare_environment()


ENABLED = "spark.python.unix.domain.socket.enabled"
DIRECTORY = "spark.python.unix.domain.socket.dir"


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., object]]:
    """The functions that were registered to run when the process ends."""
    registered: list[Callable[..., object]] = []
    monkeypatch.setattr(
        atexit,
        "register",
        lambda done, *given, **named: registered.append(lambda: done(*given, **named)),
    )
    return registered


def short_directory(monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's are too long for sockets
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def test_only_their_owner_can_reach_the_sockets(
    monkeypatch: pytest.MonkeyPatch, at_exit: list[Callable[..., object]]
) -> None:
    """Spark does not authenticate clients of a socket; nothing is left at exit."""
    around = short_directory(monkeypatch)
    found = local_sockets("local[2,4]")
    directory = Path(found[DIRECTORY])

    assert "true" == found[ENABLED]
    assert around == directory.parent
    assert 0o700 == stat.S_IMODE(directory.stat().st_mode)
    (directory / ".name.sock").touch()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        for done in at_exit:
            done()
    assert [directory] == list(around.iterdir())
    for done in at_exit:
        done()
    assert [] == list(around.iterdir())
    shutil.rmtree(around)


def test_a_cluster_keeps_to_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machines do not share the directory."""
    around = short_directory(monkeypatch)

    assert {} == local_sockets("spark://host:7077")
    assert [] == list(around.iterdir())
    shutil.rmtree(around)


@pytest.mark.parametrize("over", [0, 1])
def test_a_path_that_is_too_long_for_sockets_means_tcp(
    monkeypatch: pytest.MonkeyPatch, at_exit: list[Callable[..., object]], over: int
) -> None:
    """Spark would not start; a path of the greatest allowed length can be bound."""
    around = short_directory(monkeypatch)
    name = f".{'x' * 36}.sock"
    free = SOCKET_PATH_BYTES_MAX - len(f"{around}//braidmq-12345678/{name}")
    long = around / ("d" * (free + over))
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    found = local_sockets("local[*,4]")

    assert bool(found) is (over == 0)
    if found:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"{found[DIRECTORY]}/{name}")
        assert 1 == len(at_exit)
    shutil.rmtree(around)


def test_where_there_are_no_unix_sockets_tcp_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.delattr(socket, "AF_UNIX")

    assert {} == local_sockets("local[2,4]")
