"""A pipeline that is ended before it has begun."""

import os
import signal
from threading import Thread

import pytest

from braidmq.cli.main import main
from braidmq.cli.pipeline import pipelines
from braidmq.cli.pipeline.ends import stoppable

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
