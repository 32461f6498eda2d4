"""How signals end a command that must clean up first, or that is still loading Spark."""

import asyncio
import os
import signal
from threading import Thread

import pytest

from braidmq.cli.main import main
from braidmq.cli.pipeline import pipelines
from braidmq.cli.signals import ENDINGS, run_until_ended, stoppable


async def _cleaning_up(cleaned: list[str], ending: signal.Signals | None) -> str:
    try:
        if ending is not None:
            os.kill(os.getpid(), ending)
            await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)  # cleaning up takes a turn of the loop
        cleaned.append("cleaned")
    return "done"


@pytest.mark.parametrize("ending", [*ENDINGS, signal.SIGINT])
def test_a_signal_lets_a_command_clean_up(
    ending: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the command ends as it does on Ctrl-C."""
    default = signal.default_int_handler if ending == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(ending, default)
    cleaned: list[str] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            run_until_ended(_cleaning_up(cleaned, ending))
    finally:
        signal.signal(ending, before)

    assert ["cleaned"] == cleaned


def test_work_that_ends_by_itself_returns_its_result() -> None:
    """It cleans up without a signal too."""
    cleaned: list[str] = []

    assert "done" == run_until_ended(_cleaning_up(cleaned, None))
    assert ["cleaned"] == cleaned


def test_an_ignored_signal_stays_ignored() -> None:
    """`nohup` ignores SIGHUP so that the command survives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def work() -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        return "done"

    try:
        assert "done" == run_until_ended(work())
    finally:
        signal.signal(signal.SIGHUP, before)


COMMANDS = {
    "archive": [],
    "typed": ["--typed=t=sensor.Temperature"],
    "rollup": ["--schema-id=sensor.Temperature", "--subscribe=t"],
    "replay": ["--name=n", "--checkpoint=c"],
    "report": [],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_sigterm_before_spark_is_loaded_is_a_normal_end(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 0 and one line; the previous handler is restored."""
    before = signal.getsignal(signal.SIGTERM)

    def loading(*_args: object, **_more: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it continued")

    monkeypatch.setattr(pipelines, "plan_of", loading)
    out = [] if name == "replay" else ["--out=o"]
    assert 0 == main(["pipeline", name, "--path=x", *out, *COMMANDS[name]])

    assert f"{name}: stopped\n" == capsys.readouterr().err
    assert before == signal.getsignal(signal.SIGTERM)


def test_a_sigterm_that_comes_twice_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    """`timeout` sends it to the process, and then to its group."""

    def archive() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    stoppable(archive)()

    assert "archive: stopped\n" == capsys.readouterr().err


def test_in_another_thread_signals_are_left_alone() -> None:
    """Python delivers them to the main thread only."""
    found: list[object] = []
    look = stoppable(lambda: found.append(signal.getsignal(signal.SIGTERM)))
    thread = Thread(target=look)
    thread.start()
    thread.join()

    assert [signal.getsignal(signal.SIGTERM)] == found
