"""A run of a pipeline, as far as it can be tested without a JVM."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path
from socket import create_connection
from socketserver import BaseRequestHandler, TCPServer
from threading import Event, Thread, Timer
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark import SparkContext
from pyspark.errors import PySparkException

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.runs import runs
from braidmq.spark.pipelines.runs.failures import JavaGoneError, QueryFailedError
from braidmq.spark.pipelines.runs.guards import QUERY_LOCK, held
from braidmq.spark.pipelines.runs.runs import Plan, Run, Stream, signals


def fake_session() -> Any:  # noqa: ANN401 - as much of a session as a run uses
    server = SimpleNamespace(handle_error=print)
    context = SimpleNamespace(setLogLevel=print, _accumulatorServer=server)
    return SimpleNamespace(sparkContext=context)


def run_of(out: Path, checkpoint: Path | None = None) -> Run:
    return Run("archive", Plan({"path": "data"}, out, checkpoint), lambda _line: None)


def test_a_checkpoint_is_in_the_output_or_where_the_user_put_it(tmp_path: Path) -> None:
    """Each of several streams has its own."""
    assert tmp_path / "_checkpoint" == run_of(tmp_path).checkpoint()
    assert tmp_path / "_checkpoint" / "a" == run_of(tmp_path).checkpoint("a")
    assert tmp_path / "there" / "a" == run_of(tmp_path, tmp_path / "there").checkpoint("a")


def test_two_runs_do_not_write_one_output(tmp_path: Path) -> None:
    """The second is refused before anything is started."""
    with (
        held(tmp_path / "out", "--out", QUERY_LOCK),
        pytest.raises(ConfigError, match=r"--out: .*out is being used by another run"),
    ):
        run_of(tmp_path / "out").go()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_event_and_nothing_else(number: signal.Signals) -> None:
    """The previous handlers are restored afterwards."""
    before = signal.getsignal(number)
    stopping = Event()
    with signals(stopping):
        os.kill(os.getpid(), number)
        assert stopping.wait(5)

    assert before == signal.getsignal(number)


STOPPED = "archive: stopped; the next run resumes here"


@pytest.mark.parametrize(
    "problem", [None, PySparkException("gone"), ConnectionResetError()], ids=repr
)
def test_a_signal_while_spark_starts_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception | None
) -> None:
    """No query begins, whether Spark starts or the signal ended it as well."""

    def session(*_args: object, **_more: object) -> Any:  # noqa: ANN401 - a fake Spark
        os.kill(os.getpid(), signal.SIGTERM)
        if problem is not None:
            raise problem
        return fake_session()

    monkeypatch.setattr(runs, "session", session)
    lines: list[str] = []
    stream = Stream(lambda: pytest.fail("begun"), lambda _frame, _batch: None)
    Run("archive", Plan({}, tmp_path), lines.append).go(stream)

    assert [STOPPED] == lines


def test_a_failed_query_is_an_error_though_the_others_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No signal has come, so this is not a normal end."""
    fake = fake_session()
    monkeypatch.setattr(runs, "session", lambda *_args, **_more: fake)
    lines: list[str] = []

    def frame() -> NoReturn:
        raise PySparkException("bad")

    with pytest.raises(QueryFailedError, match="archive: bad"):
        Run("archive", Plan({}, tmp_path), lines.append).go(
            Stream(frame, lambda _frame, _batch: None)
        )
    assert [] == lines


def test_an_interrupt_ends_a_run_whatever_handler_spark_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's handler would break into the batch."""

    def session(*_args: object, **_more: object) -> Any:  # noqa: ANN401 - a fake Spark
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return fake_session()

    monkeypatch.setattr(runs, "session", session)
    run = run_of(tmp_path)
    with run.ending():
        assert run.spark is not None
        os.kill(os.getpid(), signal.SIGINT)
        assert run.stopping.wait(5)


class SparkStoppedError(Py4JError):  # type: ignore[misc]  # its parent has no types
    """What a JVM that is shutting down answers: a Java error, not silence."""

    java_exception = object()


ENDS: dict[str, tuple[Exception, bool]] = {
    "Spark is ending": (SparkStoppedError("Cannot call methods on a stopped ..."), True),
    "Spark refuses": (PySparkException("stopped"), True),
    "Spark has failed": (QueryFailedError("archive", "Job 1 cancelled"), True),
    "Spark is gone": (JavaGoneError("archive"), True),
    "Spark does not answer": (EOFError(), True),
    "an invalid option": (ConfigError("--out", "is bad"), False),
    "the disk is full": (OSError(28, "No space left on device"), False),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_failure_of_spark_after_a_signal_is_a_normal_end(tmp_path: Path, case: str) -> None:
    """Only Spark's own failures; without a signal each of them is an error."""
    error, is_end = ENDS[case]
    lines: list[str] = []
    run = Run("archive", Plan({}, tmp_path), lines.append)

    def fail() -> None:
        with run.ending("too bad"):
            raise error

    with pytest.raises(type(error)):
        fail()
    run.stopping.set()
    with nullcontext() if is_end else pytest.raises(type(error)):
        fail()

    assert (["archive: stopped; too bad"] if is_end else []) == lines


@pytest.mark.parametrize("problem", [None, SparkStoppedError("x"), EOFError()], ids=repr)
def test_a_signal_that_spark_gets_too_ends_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception | None
) -> None:
    """Its queries can no longer be stopped, but the run tries each of them."""
    fake = fake_session()
    monkeypatch.setattr(runs, "session", lambda *_args, **_more: fake)
    stopped: list[str] = []

    class Ending:
        def __init__(self, label: str, *_args: object, **_more: object) -> None:
            self.label = label

        def look(self, _now: float) -> bool:
            os.kill(os.getpid(), signal.SIGTERM)
            return True

        def stop(self) -> None:
            stopped.append(self.label)
            if problem is not None:
                raise problem

    monkeypatch.setattr(runs, "Query", Ending)
    lines: list[str] = []
    streams = [
        Stream(lambda: pytest.fail("begun"), lambda _frame, _batch: None, name)
        for name in ("a", "b")
    ]
    Run("archive", Plan({}, tmp_path), lines.append).go(*streams)

    assert [STOPPED] == lines
    assert {"archive a", "archive b"} == set(stopped)


def test_spark_may_end_a_moment_before_the_run_gets_its_signal(tmp_path: Path) -> None:
    """The processes of a group are signalled one after the other."""
    lines: list[str] = []
    run = Run("archive", Plan({}, tmp_path), lines.append)
    later = Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))

    def lose_spark() -> None:
        raise JavaGoneError("archive")

    with run.ending():
        later.start()
        lose_spark()
    later.join()

    assert [STOPPED] == lines


def test_the_broker_must_answer_before_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: taking the session afterwards does not wait for it again."""
    fake = fake_session()
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(runs, "session", lambda *_args, **_more: fake)
    monkeypatch.setattr(
        runs, "check_broker", lambda *args, needed: calls.append((*args, needed))
    )
    run = run_of(tmp_path)
    run.check_broker()

    assert run.spark is fake
    assert [("archive", {"path": "data"}, False)] == calls
    grouped = {"path": "data", "groupId": "g"}
    for _ in range(2):
        Run("archive", Plan(grouped, tmp_path / "new"), print).check_broker()
        (tmp_path / "new" / "_checkpoint").mkdir(parents=True, exist_ok=True)
    assert [("archive", grouped, True), ("archive", grouped, False)] == calls[1:]


def test_in_another_thread_signals_are_left_alone() -> None:
    """Python delivers them to the main thread only."""
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def look() -> None:
        with signals(Event()):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = Thread(target=look)
    thread.start()
    thread.join()

    assert [before] == found


def test_the_output_of_a_starting_jvm_goes_to_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal is for progress."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with runs._errors_into(tmp_path / "log"):  # noqa: SLF001 - around the start of a JVM
        os.write(2, b"WARNING: incubator\n")
    os.write(2, b"after\n")

    assert "WARNING: incubator\n" == (tmp_path / "log").read_text()
    assert "after\n" == capfd.readouterr().err


@pytest.mark.parametrize(("problem", "is_reported"), [(EOFError, False), (ValueError, True)])
def test_the_accumulator_server_does_not_report_a_jvm_that_hangs_up(
    capsys: pytest.CaptureFixture[str], problem: type[Exception], is_reported: bool
) -> None:
    """It has a thread of its own; any other failure there is reported as before."""

    class Failing(BaseRequestHandler):
        def handle(self) -> NoReturn:
            raise problem

    with TCPServer(("127.0.0.1", 0), Failing) as server:
        runs._let_java_go_quietly(server)  # noqa: SLF001 - a session would need a JVM
        with create_connection(("127.0.0.1", server.server_address[1])):
            server.handle_request()

    assert is_reported == ("Exception occurred" in capsys.readouterr().err)
