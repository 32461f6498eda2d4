"""`publish --lines` and `subscribe --format` as programs in pipes use them."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from braidmq.cli.main import main
from tests.integration.cli.brokers import BRAIDMQ, Broker, running
from tests.integration.cli.test_messages import subscribed

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("lines"), "--vibe", "127.0.0.1:0") as broker:
        yield broker


def test_lines_are_published_and_counted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the options of every other publish; the count is printed at the end of the input."""
    url = broker.strand_url("vibe")
    words = ["publish", "counted", "--lines", "--header", "a=b", "--priority", "2"]
    for option in ([], ["--json"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\n2\n3")))
        assert 0 == main([*words, "--url", url, *option])
    plain, as_json = capsys.readouterr().out.splitlines()

    assert "published 3 to counted" == plain
    assert {"topic": "counted", "count": 3, "qos": 1} == json.loads(as_json)
    assert 0 == main(["subscribe", "counted", "--count", "1", "--url", url, "--json"])
    assert "b" == json.loads(capsys.readouterr().out)["headers"]["a"]


@pytest.mark.parametrize("words", [["x"], ["--count", "2"]])
def test_lines_and_another_payload_are_a_usage_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is read, and nothing is published."""
    assert 2 == main(["publish", "t", "--lines", *words])
    problem = "error: --lines: reads standard input: give no PAYLOAD and no --count\n"
    assert problem == capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_endless_input_with_a_count(
    broker: Broker, ending: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line is published as it comes; nothing but the count is printed."""
    topic = f"endless.{ending.name}"
    reader = subscribed(broker, topic, capsys, "--count", "2", "--format", "{topic}: {payload}")
    with subprocess.Popen(
        [*BRAIDMQ, "publish", topic, "--lines", "--url", broker.url()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        assert publisher.stderr is not None
        publisher.stdin.write(b"one\n\x1b[2J\nunfinished")
        publisher.stdin.flush()
        out, err = reader.communicate(timeout=SECONDS_MAX)
        publisher.send_signal(ending)
        # Its input stays open meanwhile: the signal alone ends it.
        told = publisher.stdout.read(), publisher.stderr.read()

    assert (f"{topic}: one\n{topic}: \\x1b[2J\n".encode(), b"") == (out, err)
    assert (f"published 2 to {topic}\n".encode(), b"") == told
    assert 130 == publisher.returncode


def test_a_format_is_checked_before_anything_is_subscribed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No broker is needed for that."""
    assert 2 == main(["subscribe", "t", "--format", "{nope}", "--url", "blip://k@127.0.0.1:1"])
    assert capsys.readouterr().err.startswith("error: --format: there is no field 'nope'; ")
    assert 2 == main(["subscribe", "t", "--format", "{id}", "--json"])
    assert "error: --format: give either --format or --json\n" == capsys.readouterr().err


def test_messages_are_printed_by_the_template(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the fields that the protocol has; `json` is the same as --json."""
    url = broker.strand_url("vibe")
    sent = ["publish", "formatted", '{"n": 1}', "--header", "kind=a", "--count", "2"]
    assert 0 == main([*sent, "--url", url])
    one = ["subscribe", "formatted", "--count", "1", "--url", url, "--format"]
    capsys.readouterr()
    assert 0 == main([*one, r"{attempt}\t{size}\t{header.kind}\t{payload}"])
    assert 0 == main([*one, "json"])
    line, as_json = capsys.readouterr().out.splitlines()

    assert '1\t8\ta\t{"n": 1}' == line
    found = json.loads(as_json)
    assert ({"n": 1}, "formatted", True) == (
        found["payload"],
        found["topic"],
        found["timestamp"].endswith("+00:00"),
    )
