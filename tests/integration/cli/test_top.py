"""`braidmq top` against a real broker, in a pipe and on a terminal."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from braidmq.cli.main import main
from tests.integration.cli.brokers import BRAIDMQ, Broker, running
from tests.integration.cli.terminals import on_terminal

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("top")) as broker:
        assert 0 == main(["publish", "orders", "x", "--count", "7", "--url", broker.url()])
        yield broker


@pytest.fixture
def load(broker: Broker) -> Iterator[None]:
    """Publish fifty messages a second while the test runs."""
    words = [
        "bench",
        "--rate",
        "50",
        "--duration",
        "60",
        "--topic",
        "busy",
        "--subscribers",
        "0",
    ]
    with subprocess.Popen(
        [*BRAIDMQ, *words, "--url", broker.url()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield
        process.kill()


def start_top(broker: Broker, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*BRAIDMQ, "top", "--url", broker.http_url(), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_once_prints_one_snapshot(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """As plain lines in a pipe."""
    assert 0 == main(["top", "--once", "--url", broker.http_url()])
    lines = capsys.readouterr().out.splitlines()

    assert f"at {broker.addresses['http']}, ready" in lines[0]
    assert "strand\tin/s\tout/s" == lines[1]
    assert "orders\t\t7" in lines


def test_once_on_a_terminal_prints_a_table_that_stays(broker: Broker) -> None:
    """It does not take over the screen, wait for Ctrl-C or print tabs."""
    code, written = on_terminal(["top", "--once", "--url", broker.http_url()])

    assert 0 == code
    assert "busiest topics" in written
    assert "orders" in written
    for unwanted in ("\t", "\x1b[?1049h", "Ctrl-C"):
        assert unwanted not in written, unwanted


def test_json_has_a_line_per_snapshot_and_rates_from_the_second_on(
    broker: Broker, load: None
) -> None:
    """The busiest topic comes first, however many messages the others hold."""
    with start_top(broker, "--json") as process:
        assert process.stdout is not None
        found = {}
        for _ in range(SECONDS_MAX):
            found = json.loads(process.stdout.readline())
            if found["topics"][0]["name"] == "busy" and found["topics"][0]["rate"]:
                break
        process.send_signal(signal.SIGINT)
        rest, stderr = process.communicate(timeout=SECONDS_MAX)

    assert "busy" == found["topics"][0]["name"]
    assert found["numbers"]["in"]["blip"] > 0
    assert found["overview"]["ready"]
    assert (0, "") == (process.returncode, stderr), rest


def test_on_a_terminal_it_takes_over_the_screen_and_restores_it(broker: Broker) -> None:
    """Ctrl-C is not an error."""
    words = ["top", "--url", broker.http_url()]
    code, written = on_terminal(words, until=lambda output: "orders" in output)

    assert 0 == code
    assert (
        written.index("\x1b[?1049h") < written.index("orders") < written.rindex("\x1b[?1049l")
    )
    assert "Traceback" not in written


def test_on_a_terminal_it_waits_for_a_restart(tmp_path: Path) -> None:
    """It shows that the broker is gone, and later the next one."""
    with ExitStack() as stack:
        first = stack.enter_context(running(tmp_path))
        again = ("--http", str(first.addresses["http"]))

        def kill() -> None:
            first.process.kill()
            first.process.communicate()

        steps: list[tuple[str, Callable[[], object]]] = [
            ("ready", kill),
            ("trying again", lambda: stack.enter_context(running(tmp_path, *again))),
            ("ready", bool),
        ]
        seen = 0

        def follow(output: str) -> bool:
            nonlocal seen
            if steps and steps[0][0] in output[seen:]:
                seen = len(output)
                steps.pop(0)[1]()
            return not steps

        code, written = on_terminal(["top", "--url", first.http_url()], until=follow)

    assert 0 == code
    assert "Traceback" not in written


def test_in_a_pipe_it_ends_with_the_broker(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """With one line on stderr and an exit code for scripts."""
    with (
        running(tmp_path_factory.mktemp("gone")) as broker,
        start_top(broker, "--json") as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        broker.stop()
        _, stderr = process.communicate(timeout=SECONDS_MAX)

    assert (1, 1) == (process.returncode, stderr.count("\n"))
    assert stderr.startswith("error: ")


REFUSED = {
    "--url http://wrong@{http}": (1, "answered 401"),
    "--url http://127.0.0.1:1": (1, "starts a broker"),
    "--interval 0": (2, "--interval"),
}


@pytest.mark.parametrize(("words", "expected"), REFUSED.items())
def test_a_broker_that_cannot_be_watched_is_reported_in_one_line(
    broker: Broker, words: str, expected: tuple[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With a hint on how to fix it."""
    options = words.format(http=broker.addresses["http"]).split()
    assert expected[0] == main(["top", "--once", *options])
    error = capsys.readouterr().err
    assert expected[1] in error
    assert 1 == error.count("\n")
