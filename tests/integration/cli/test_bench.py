"""`braidmq bench`, against a running broker and with its own."""

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from braidmq.cli.main import main
from tests.integration.cli.brokers import BRAIDMQ, Broker, running, subscriptions
from tests.integration.cli.terminals import on_terminal

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("bench"), "--vibe", "127.0.0.1:0") as broker:
        yield broker


def topics(broker: Broker, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    """Return how many messages each topic has."""
    assert 0 == main(["topics", "--json", "--url", broker.http_url()])
    return {row["name"]: row["messages"] for row in json.loads(capsys.readouterr().out)}


@pytest.mark.slow
@pytest.mark.parametrize("strand", ["blip", "vibe", "qumbed"])
def test_bench_starts_its_own_broker(strand: str) -> None:
    """For each strand; it prints nothing but the results."""
    words = [
        "bench",
        "--strand",
        strand,
        "--messages",
        "300",
        "--json",
        "--percentiles",
        "50,99.9",
    ]
    done = subprocess.run(
        [*BRAIDMQ, *words], capture_output=True, check=True, text=True, timeout=SECONDS_MAX
    )
    found = json.loads(done.stdout)

    assert ("", strand, 300, 300) == (
        done.stderr,
        found["strand"],
        found["published"],
        found["delivered"],
    )
    assert ["p50", "p99.9"] == list(found["latency_ms"])
    assert found["publish_rate"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_its_own_broker_too(tmp_path: Path, ending: signal.Signals) -> None:
    """In the middle of a run; no process and no directory is left behind."""
    process = subprocess.Popen(
        [*BRAIDMQ, "bench", "--duration", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        text=True,
    )
    while not (ready := list(tmp_path.glob("*/ready.json"))):
        assert process.poll() is None, process.communicate()
    pid = json.loads(ready[0].read_text("utf-8"))["pid"]
    process.send_signal(ending)

    out, err = process.communicate(timeout=SECONDS_MAX)
    # Nothing, unless it had already begun to publish.
    assert ("", "") == (out, err) or out.startswith("what\t")
    assert 130 == process.returncode
    assert not psutil.pid_exists(pid)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_subscription_at_a_given_broker(
    broker: Broker, capsys: pytest.CaptureFixture[str], ending: signal.Signals
) -> None:
    """A durable subscription would lag and hold back retention. The figures so far are told."""
    topic = f"ended.{ending.name}"
    words = ["bench", "--duration", "600", "--topic", topic, "--url", broker.url()]
    process = subprocess.Popen(
        [*BRAIDMQ, *words, "--rate", "100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not topics(broker, capsys).get(topic):
        assert process.poll() is None, process.communicate()
    process.send_signal(ending)
    out, err = process.communicate(timeout=SECONDS_MAX)

    assert 130 == process.returncode
    assert ["what", "published", "delivered"] == [
        line.split("\t")[0] for line in out.decode().splitlines()
    ]
    assert err.startswith(b"interrupted: these are the figures of ")
    assert 1 == err.count(b"\n")
    assert 0 == subscriptions(broker, topic, capsys)


@pytest.mark.parametrize("strand", ["blip", "vibe"])
def test_a_topic_of_its_own_is_removed(
    strand: str, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its messages, and with the queue that Vibe makes; one that was named stays."""
    before = topics(broker, capsys)
    words = ["bench", "--messages", "10", "--strand", strand, "--url", broker.http_url()]
    assert 0 == main([*words, "--json"])
    found = json.loads(capsys.readouterr().out)

    assert (10, False, False) == (
        found["published"],
        found["topic_stays"],
        found["interrupted"],
    )
    assert before == topics(broker, capsys)
    assert 0 == main([*words, "--topic", f"named.{strand}", "--json"])
    assert json.loads(capsys.readouterr().out)["topic_stays"]
    assert 10 == topics(broker, capsys)[f"named.{strand}"]


def test_bench_measures_a_given_broker(
    broker: Broker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In a pipe it prints a tab-separated table and, on success, nothing on stderr."""
    plot = tmp_path / "plot.html"
    options = "--messages 500 --size 64 --publishers 2 --subscribers 0 --topic load"
    assert 0 == main(["bench", *options.split(), "--plot", str(plot), "--url", broker.url()])
    output = capsys.readouterr()

    head, row = output.out.splitlines()
    assert "what\tmessages\tmessages/s\tMB/s\tp50 ms\tp90 ms\tp99 ms\tp99.9 ms" == head
    assert row.startswith("published\t500\t")
    assert "" == output.err
    assert plot.exists()
    assert 500 == topics(broker, capsys)["load"]


@pytest.mark.parametrize("ending", [["--messages", "10"], ["--duration", "60"]])
def test_a_broker_that_refuses_everything_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: list[str]
) -> None:
    """At once, with the reason and without a table, as latencies would mean nothing."""
    hashed = hashlib.sha256(b"a-reader").hexdigest()
    config = tmp_path / "a.toml"
    config.write_text(
        f'[[auth.keys]]\nname = "a"\nhash = "sha256:{hashed}"\nsubscribe = ["*"]\n', "utf-8"
    )
    with running(tmp_path, "--config", str(config)) as broker:
        words = ["bench", "--topic", "t", *ending, "--url", broker.url("a-reader")]
        assert 1 == main(words)

    output = capsys.readouterr()
    hint = 'the key needs publish = ["t"], or a pattern that matches it'
    assert ("", f"error: publish to 't' refused: 403 forbidden; {hint}\n") == output


def test_on_a_terminal_it_prints_a_bar_a_table_and_an_explanation(broker: Broker) -> None:
    """For first-time users."""
    words = ["bench", "--messages", "20000", "--subscribers", "0", "--url", broker.url()]
    code, written = on_terminal(words)

    assert 0 == code
    # Its HTTP is not on the default port, and so not found.
    left = "stays, with 20,000 messages: `braidmq topic delete` removes it"
    for text in ("━", "published", "time to confirm a batch", left):
        assert text in written, text
