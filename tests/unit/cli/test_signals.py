"""How signals end a command that must clean up first, or that is still loading Spark."""

import asyncio
import os
import signal
from threading import Thread

import pytest

from braidmq.cli.main import main
from braidmq.cli.pipeline import pipelines
from braidmq.cli.signals import ENDINGS, run_until_ended, stoppable


async def _undoing(undone: list[str], ending: signal.Signals | None) -> str:
    try:
        if ending is not None:
            os.kill(os.getpid(), ending)
            await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)  # undoing takes a turn of the loop
        undone.append("undone")
    return "done"


@pytest.mark.parametrize("ending", [*ENDINGS, signal.SIGINT])
def test_a_signal_lets_a_command_undo_what_it_made(
    ending: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the command ends as it does on Ctrl-C."""
    usual = signal.default_int_handler if ending == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(ending, usual)
    undone: list[str] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            run_until_ended(_undoing(undone, ending))
    finally:
        signal.signal(ending, before)

    assert ["undone"] == undone


def test_work_that_ends_by_itself_returns_its_result() -> None:
    """Without a signal nothing is different."""
    undone: list[str] = []

    assert "done" == run_until_ended(_undoing(undone, None))
    assert ["undone"] == undone


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
def test_sigterm_before_spark_is_loaded_is_an_end_as_any_other(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 0 and a line; what handled the signal before does so again."""
    before = signal.getsignal(signal.SIGTERM)

    def loading(*_args: object, **_more: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it went on")

    monkeypatch.setattr(pipelines, "plan_of", loading)
    out = [] if name == "replay" else ["--out=o"]
    assert 0 == main(["pipeline", name, "--path=x", *out, *COMMANDS[name]])

    assert f"{name}: stopped\n" == capsys.readouterr().err
    assert before == signal.getsignal(signal.SIGTERM)


def test_a_sigterm_that_comes_twice_is_one(capsys: pytest.CaptureFixture[str]) -> None:
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
