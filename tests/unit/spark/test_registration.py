"""Registering the format with a fake session; tests/integration/spark has a real one."""

import sys
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.errors import PySparkAttributeError, PySparkRuntimeError
from pyspark.sql import SparkSession

import pyspark_braidmq
from braidmq import spark as package
from braidmq.spark.reading.cursors import CursorListener
from braidmq.spark.runtime.workers import ONE_MACHINE
from braidmq.spark.sessions import REDACTED, register
from braidmq.spark.source import BraidSource


class Shared(dict[str, str]):
    """A fake of Java's map that threads may share."""


JAVA = SimpleNamespace(
    util=SimpleNamespace(concurrent=SimpleNamespace(ConcurrentHashMap=Shared))
)


class Session:
    """What register() needs of a session."""

    def __init__(self, *, master: str = "local[2]", deny: bool = False, **conf: str) -> None:
        settings = {name.replace("_", "."): value for name, value in conf.items()}
        self.set: dict[str, str] = {}
        self.registered: list[type] = []
        self.deny = deny
        self.sparkContext = SimpleNamespace(
            master=master,
            pythonExec="python3",
            getConf=lambda: SimpleNamespace(contains=settings.__contains__),
            environment={"A": "1"},
            _jvm=SimpleNamespace(java=JAVA),
        )
        self.conf = SimpleNamespace(set=self._set, get={REDACTED: "(?i)url"}.__getitem__)
        self.listeners: list[object] = []
        self.streams = SimpleNamespace(addListener=self.listeners.append)
        self.dataSource = SimpleNamespace(register=self._register)
        self.environments: list[dict[str, str]] = []
        self.made_before: list[int] = []

    def createDataFrame(self, _rows: object, _schema: str) -> None:  # noqa: N802 - Spark's name
        self.made_before.append(len(self.registered))

    def _register(self, source: type) -> None:
        self.registered.append(source)
        self.environments.append(self.sparkContext.environment)

    def _set(self, name: str, value: str) -> None:
        if self.deny:
            raise PySparkRuntimeError("not to be changed")
        self.set[name] = value


class ConnectSession(Session):
    """A session of Spark Connect: JVM and context are the server's."""

    def __init__(self) -> None:
        super().__init__()
        del self.sparkContext

    def __getattr__(self, name: str) -> object:
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name}
        )

    def _register(self, source: type) -> None:
        self.registered.append(source)


def registered(session: Session) -> Session:
    register(cast("SparkSession", session))
    return session


@pytest.fixture(autouse=True)
def _no_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def test_filters_are_not_pushed_down() -> None:
    """A frame that is used twice would return wrong rows; other sources' setting stays."""
    session = registered(Session())

    assert [BraidSource] == session.registered
    assert [REDACTED] == list(session.set)


def test_a_configuration_that_is_locked_does_not_stop_the_format() -> None:
    """The operator has decided what is redacted."""
    assert [BraidSource] == registered(Session(deny=True)).registered


def test_keys_are_redacted_besides_what_was_redacted_before() -> None:
    """Spark prints a query's options with each of its errors."""
    assert "(?i)apikey|(?i)url" == registered(Session()).set[REDACTED]


def test_each_session_has_one_listener() -> None:
    """However often the format is registered."""
    session, other = registered(registered(Session())), registered(Session())

    assert [CursorListener] == [type(found) for found in session.listeners]
    assert 1 == len(other.listeners)


def test_the_session_becomes_the_active_one_first() -> None:
    """Creating a frame does that; Spark registers formats in the active session."""
    assert [0] == registered(Session()).made_before


def test_streams_may_start_concurrently() -> None:
    """Threads can share the format's environment; the context's own does not change."""
    session = registered(Session())

    assert [Shared({"A": "1", ONE_MACHINE: "1"})] == session.environments
    assert [Shared] == list(map(type, session.environments))
    assert dict is type(session.sparkContext.environment)


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2,4]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
    ],
)
def test_executors_inside_the_driver_are_marked(
    master: str,
    expected: bool,
) -> None:
    """In the environment of their Python processes, whose other variables stay."""
    environment = registered(Session(master=master)).sparkContext.environment

    assert expected == (ONE_MACHINE in environment)
    assert "1" == environment["A"]


def test_with_spark_connect_the_format_is_registered_without_a_listener() -> None:
    """Workers and active sessions are the server's."""
    session = registered(ConnectSession())

    assert [BraidSource] == session.registered
    assert "(?i)apikey|(?i)url" == session.set[REDACTED]
    assert [] == session.listeners
    assert [] == session.made_before


def test_local_workers_run_this_python() -> None:
    """Not whichever python3 is on the path, which may not have braidmq."""
    assert sys.executable == registered(Session()).sparkContext.pythonExec


def test_a_chosen_python_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen by the configuration, by the environment or by a cluster."""
    chosen = registered(Session(spark_pyspark_python="/opt/python"))
    cluster = registered(Session(master="spark://host:7077"))
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    named = registered(Session())

    assert ["python3"] * 3 == [s.sparkContext.pythonExec for s in (chosen, cluster, named)]


def test_spark_finds_the_format_by_itself() -> None:
    """It is the one that `register` offers."""
    assert BraidSource is pyspark_braidmq.DefaultSource


def test_the_package_exports_what_users_need() -> None:
    """Any other name raises an AttributeError."""
    assert register is package.register
    with pytest.raises(AttributeError, match="has no attribute 'sesion'"):
        _ = package.sesion
