"""`braidmq top`, against a real broker, in a pipe and on a terminal."""

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
    """Fifty messages a second, as long as the test runs."""
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


def looks(broker: Broker, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*BRAIDMQ, "top", "--url", broker.http_url(), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_once_is_one_look(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe as plain lines."""
    assert 0 == main(["top", "--once", "--url", broker.http_url()])
    lines = capsys.readouterr().out.splitlines()

    assert f"at {broker.addresses['http']}, ready" in lines[0]
    assert "strand\tin/s\tout/s" == lines[1]
    assert "orders\t\t7" in lines


def test_once_on_a_terminal_is_a_table_that_stays(broker: Broker) -> None:
    """No screen is taken, nothing is left to end, and no tabs are in it."""
    code, written = on_terminal(["top", "--once", "--url", broker.http_url()])

    assert 0 == code
    assert "busiest topics" in written
    assert "orders" in written
    for unwanted in ("\t", "\x1b[?1049h", "Ctrl-C"):
        assert unwanted not in written, unwanted


def test_as_json_each_look_is_a_line_and_rates_are_known_from_the_second_on(
    broker: Broker, load: None
) -> None:
    """The busiest topic is first, whatever the others hold."""
    with looks(broker, "--json") as process:
        assert process.stdout is not None
        found = {}
        for _ in range(SECONDS_MAX):
            found = json.loads(process.stdout.readline())
            if found["topics"][0]["name"] == "busy" and found["topics"][0]["rate"]:
                break
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=SECONDS_MAX)

    assert "busy" == found["topics"][0]["name"]
    assert found["numbers"]["in"]["blip"] > 0
    assert found["overview"]["ready"]
    assert (0, "") == (process.returncode, said), rest


def test_on_a_terminal_it_takes_the_screen_and_gives_it_back(broker: Broker) -> None:
    """Until Ctrl-C, which is not an error."""
    words = ["top", "--url", broker.http_url()]
    code, written = on_terminal(words, until=lambda said: "orders" in said)

    assert 0 == code
    assert (
        written.index("\x1b[?1049h") < written.index("orders") < written.rindex("\x1b[?1049l")
    )
    assert "Traceback" not in written


def test_on_a_terminal_a_broker_that_goes_is_waited_for(tmp_path: Path) -> None:
    """Whoever watches a restart sees the end of one broker and the beginning of the next."""
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

        def follow(said: str) -> bool:
            nonlocal seen
            if steps and steps[0][0] in said[seen:]:
                seen = len(said)
                steps.pop(0)[1]()
            return not steps

        code, written = on_terminal(["top", "--url", first.http_url()], until=follow)

    assert 0 == code
    assert "Traceback" not in written


def test_a_broker_that_goes_ends_it_with_one_line(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """And an exit code that a script sees."""
    with running(tmp_path_factory.mktemp("gone")) as broker, looks(broker, "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        broker.stop()
        _, said = process.communicate(timeout=SECONDS_MAX)

    assert (1, 1) == (process.returncode, said.count("\n"))
    assert said.startswith("error: ")


REFUSED = {
    "--url http://wrong@{http}": (1, "answered 401"),
    "--url http://127.0.0.1:1": (1, "starts a broker"),
    "--interval 0": (2, "--interval"),
}


@pytest.mark.parametrize(("words", "expected"), REFUSED.items())
def test_what_cannot_be_watched_is_one_line(
    broker: Broker, words: str, expected: tuple[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With a hint."""
    told = words.format(http=broker.addresses["http"]).split()
    assert expected[0] == main(["top", "--once", *told])
    said = capsys.readouterr().err
    assert expected[1] in said
    assert 1 == said.count("\n")
