"""A run of a pipeline, as far as it needs no JVM."""

import os
import signal
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark import SparkContext

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines import runs
from braidmq.spark.pipelines.runs import Plan, Run, signals


def run_of(out: Path, checkpoint: Path | None = None) -> Run:
    return Run("archive", Plan({"path": "data"}, out, checkpoint), lambda _line: None)


def test_a_checkpoint_is_hidden_in_the_output_or_where_it_was_told(tmp_path: Path) -> None:
    """Each of several streams has its own."""
    assert tmp_path / "_checkpoint" == run_of(tmp_path).checkpoint()
    assert tmp_path / "_checkpoint" / "a" == run_of(tmp_path).checkpoint("a")
    assert tmp_path / "there" / "a" == run_of(tmp_path, tmp_path / "there").checkpoint("a")


def test_two_runs_do_not_write_one_output(tmp_path: Path) -> None:
    """The second is told so before anything is started."""
    with (
        runs._held(tmp_path / "out"),  # noqa: SLF001 - as the first run does it
        pytest.raises(ConfigError, match=r"--out: .*out is being written by another run"),
    ):
        run_of(tmp_path / "out").go()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_event_and_nothing_else(number: signal.Signals) -> None:
    """Handlers that were there before are back behind it."""
    before = signal.getsignal(number)
    stopping = Event()
    with signals(stopping):
        os.kill(os.getpid(), number)
        assert stopping.wait(5)

    assert before == signal.getsignal(number)


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


def test_what_a_jvm_says_while_it_starts_goes_into_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal is for progress."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with runs._errors_into(tmp_path / "log"):  # noqa: SLF001 - around the start of a JVM
        os.write(2, b"WARNING: incubator\n")
    os.write(2, b"behind\n")

    assert "WARNING: incubator\n" == (tmp_path / "log").read_text()
    assert "behind\n" == capfd.readouterr().err
