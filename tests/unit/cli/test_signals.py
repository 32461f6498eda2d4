"""How signals end a command that must undo something first."""

import asyncio
import os
import signal

import pytest

from braidmq.cli.signals import ENDINGS, run_until_ended


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
