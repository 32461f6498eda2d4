"""Making the format known, to a session that only takes note; a real one has its own tests."""

import sys
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.errors import PySparkAttributeError, PySparkRuntimeError
from pyspark.sql import SparkSession

import pyspark_braidmq
from braidmq import spark as room
from braidmq.spark.reading.cursors import CursorListener
from braidmq.spark.runtime.workers import ONE_MACHINE
from braidmq.spark.sessions import FILTER_PUSHDOWN, REDACTED, register
from braidmq.spark.source import BraidSource, FilteringBraidSource


class Shared(dict[str, str]):
    """A map that threads may share."""


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


def test_filters_are_pushed_down() -> None:
    """The configuration is turned on, and the format that needs it is registered."""
    session = registered(Session())

    assert "true" == session.set[FILTER_PUSHDOWN]
    assert [FilteringBraidSource] == session.registered


def test_where_the_configuration_cannot_be_changed_filters_are_not_pushed_down() -> None:
    """A reader that could would fail."""
    assert [BraidSource] == registered(Session(deny=True)).registered


def test_keys_are_left_out_of_plans_besides_what_was_left_out_before() -> None:
    """Spark prints a query's options with every error of it."""
    assert "(?i)apikey|(?i)url" == registered(Session()).set[REDACTED]


def test_a_session_is_listened_to_once() -> None:
    """However often the format is registered; each session by itself."""
    session, other = registered(registered(Session())), registered(Session())

    assert [CursorListener] == [type(found) for found in session.listeners]
    assert 1 == len(other.listeners)


def test_the_session_is_made_the_active_one_first() -> None:
    """To make a frame does that; Spark registers, and finds, in the active one."""
    assert [0] == registered(Session()).made_before


def test_streams_may_begin_at_once() -> None:
    """The format's environment is shared by threads; that of everything else stays."""
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
def test_executors_that_are_part_of_the_driver_are_told_so(
    master: str,
    expected: bool,
) -> None:
    """In the environment of their Python processes; what else is in it stays."""
    environment = registered(Session(master=master)).sparkContext.environment

    assert expected == (ONE_MACHINE in environment)
    assert "1" == environment["A"]


def test_with_spark_connect_the_format_is_registered_without_a_listener() -> None:
    """And with its filters; workers, and what a thread's session is, are the server's."""
    session = registered(ConnectSession())

    assert [FilteringBraidSource] == session.registered
    assert "true" == session.set[FILTER_PUSHDOWN]
    assert "(?i)apikey|(?i)url" == session.set[REDACTED]
    assert [] == session.listeners
    assert [] == session.made_before


def test_local_workers_run_this_python() -> None:
    """And not whichever python3 is on the path, which may know nothing of braidmq."""
    assert sys.executable == registered(Session()).sparkContext.pythonExec


def test_a_python_that_was_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the configuration, by the environment, or by being a cluster's."""
    chosen = registered(Session(spark_pyspark_python="/opt/python"))
    cluster = registered(Session(master="spark://host:7077"))
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    named = registered(Session())

    assert ["python3"] * 3 == [s.sparkContext.pythonExec for s in (chosen, cluster, named)]


def test_spark_finds_the_format_by_itself() -> None:
    """Without its filters: nobody has turned them on."""
    assert BraidSource is pyspark_braidmq.DefaultSource


def test_the_room_shows_what_users_need() -> None:
    """And nothing that is not there."""
    assert register is room.register
    with pytest.raises(AttributeError, match="has no attribute 'sesion'"):
        _ = room.sesion
