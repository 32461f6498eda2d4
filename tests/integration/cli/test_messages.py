"""`braidmq publish` and `braidmq subscribe` against a real broker."""

import base64
import hashlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.cli.main import main
from tests.integration.cli.brokers import BRAIDMQ, Broker, running, subscriptions
from tests.integration.cli.terminals import on_terminal

pytestmark = pytest.mark.slow  # they start a broker, and run commands in their own processes

LIMITED_KEY = "a-key-of-orders"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("broker"), "--qumbed", "127.0.0.1:0") as broker:
        yield broker


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a key that may use only `orders.*`."""
    directory = tmp_path_factory.mktemp("limited")
    hashed = hashlib.sha256(LIMITED_KEY.encode()).hexdigest()
    (directory / "a.toml").write_text(
        f'[[auth.keys]]\nname = "shop"\nhash = "sha256:{hashed}"\n'
        'publish = ["orders.*"]\nsubscribe = ["orders.*"]\n'
        '[qumbed]\nauth = "key"\n',
        "utf-8",
    )
    strands = ("--vibe", "127.0.0.1:0", "--qumbed", "127.0.0.1:0")
    with running(directory, *strands, "--config", str(directory / "a.toml")) as broker:
        yield broker


def test_all_commands_accept_the_http_address(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands that use a strand look up its address over HTTP."""
    monkeypatch.setenv("BRAIDMQ_URL", broker.http_url())
    read = capsys.readouterr
    assert 0 == main(["publish", "one.address", "1", "--count", "3"])
    assert "published 3 to one.address\n" == read().out
    assert 0 == main(["topics", "--json"])
    assert {"one.address": 3} == {
        row["name"]: row["messages"]
        for row in json.loads(read().out)
        if row["name"] == "one.address"
    }
    assert 0 == main(["bench", "--messages", "10", "--json"])
    assert "blip" == json.loads(read().out)["strand"]


def subscribed(
    broker: Broker,
    topic: str,
    capsys: pytest.CaptureFixture[str],
    *options: str,
    url: str = "",
    before: str = "",
) -> subprocess.Popen[bytes]:
    """Start `subscribe` and return once the broker has its subscription."""
    python, option, code = BRAIDMQ
    process = subprocess.Popen(
        [
            python,
            option,
            before + code,
            "subscribe",
            topic,
            "--url",
            url or broker.url(),
            *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not subscriptions(broker, topic, capsys):
        assert process.poll() is None, process.communicate()
    return process


def test_a_subscriber_prints_published_messages(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, one per line; --count ends it with exit code 0."""
    reader = subscribed(broker, "plain", capsys, "--count", "4")

    assert 0 == main(["publish", "plain", "one", "--url", broker.url()])
    assert "published 1 to plain\n" == capsys.readouterr().out
    assert 0 == main(["publish", "plain", "two", "--count", "3", "--url", broker.url()])
    assert (b"one\ntwo\ntwo\ntwo\n", b"") == reader.communicate(timeout=60)
    assert 0 == reader.returncode


def test_json_lines_hold_every_kind_of_payload(
    broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON as JSON, text as text, and other bytes in base64."""
    reader = subscribed(broker, "json", capsys, "--count", "6", "--json")
    odd = (b'"\\ud800"', b'{"x": 1e999}')
    for payload in (b'{"n": 1}', b"NaN", b"\xff\x00", b"", *odd):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(payload)))
        assert 0 == main(["publish", "json", "-", "--url", broker.url(), "--json"])
    out, _ = reader.communicate(timeout=60)
    lines = [json.loads(line) for line in out.splitlines()]

    payloads = [{"n": 1}, "NaN", None, "", "\ud800", {"x": float("inf")}]
    assert payloads == [line.get("payload") for line in lines]
    for line, payload in zip(out.splitlines()[4:], odd, strict=True):
        assert line.endswith(b'"payload": ' + payload + b"}")
    assert base64.b64encode(b"\xff\x00").decode() == lines[2]["payload_base64"]
    offsets = [line["offset"] for line in lines]
    assert sorted(set(offsets)) == offsets
    assert {("json", 1)} == {(line["topic"], line["qos"]) for line in lines}


def test_options_that_blip_lacks_are_refused_in_one_line(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Headers, priorities and boxes belong to other strands."""
    for option in (
        ["--header", "a=b"],
        ["--priority", "1"],
        ["--recipient", 64 * "a"],
        ["--envelope"],
        ["--schema", "a"],
        ["--private-key", "a"],
        ["--ca-file", "a"],
        ["--insecure"],
    ):
        assert 2 == main(["publish", "t", "x", "--url", broker.url(), *option])
        line = capsys.readouterr().err
        assert line.startswith("error: blip does not support ")
        assert 1 == line.count("\n")


def test_a_sealed_message_is_for_its_recipient(
    broker: Broker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With keys from `keygen`; the subscriber names the sender that it trusts."""
    alice, bob = (keygen(tmp_path / name, capsys) for name in ("alice.key", "bob.key"))
    reader = subscribed(
        broker,
        "doors",
        capsys,
        *("--private-key", str(tmp_path / "bob.key"), "--trust", alice),
        *("--schema", "control.Command", "--envelope", "--count", "1", "--json"),
        url=broker.qumbed_url(),
    )
    sealed = ["--recipient", bob, "--envelope", "--schema", "control.Command"]
    sealed += ["--url", broker.qumbed_url()]
    command = ["publish", "doors", '{"action": "open"}', *sealed]
    assert 0 == main([*command, "--private-key", str(tmp_path / "alice.key")])
    out, warnings = reader.communicate(timeout=60)
    line = json.loads(out)

    assert ("doors", {"action": "open"}, alice, False, "control.Command") == (
        line["topic"],
        line["payload"],
        line["sender"],
        line["sealed_by_gateway"],
        line["schema"],
    )
    assert b"" == warnings
    assert 0 == reader.returncode


def test_an_unsealed_message_comes_from_the_gateway(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The subscriber needs no key, and can open messages from any strand."""
    options = ("--count", "2", "--json")
    reader = subscribed(broker, "clear", capsys, *options, url=broker.qumbed_url())
    for url in (broker.url(), broker.qumbed_url()):
        assert 0 == main(["publish", "clear", "hello", "--url", url])
    out, _ = reader.communicate(timeout=60)
    lines = [json.loads(line) for line in out.splitlines()]

    assert ["hello", "hello"] == [line["payload"] for line in lines]
    assert [broker.addresses["gateway_public_key"]] * 2 == [line["sender"] for line in lines]
    assert [True, True] == [line["sealed_by_gateway"] for line in lines]


def keygen(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Generate a key pair; return the public key."""
    assert 0 == main(["keygen", "--out", str(path), "--json"])
    return str(json.loads(capsys.readouterr().out)["public_key"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--recipient", "short"], "error: a public key must be 64 hexadecimal digits"),
        (["--private-key", "nowhere"], "error: nowhere: cannot be read"),
        (["--schema", "control.Command"], "error: schema 'control.Command': $ breaks 'type'"),
        (["--envelope"], "error: an envelope is sealed, so it needs a recipient"),
        (
            ["--header", "a=b", "--recipient", 64 * "a"],
            "error: qumbed does not support headers",
        ),
    ],
)
def test_a_message_that_cannot_be_sealed_is_refused_in_one_line(
    broker: Broker, capsys: pytest.CaptureFixture[str], options: list[str], error: str
) -> None:
    """The exit code is 2 for wrong usage, and 1 if the payload does not fit its schema."""
    code = 1 if "--schema" in options else 2
    assert code == main(["publish", "t", "1", "--url", broker.qumbed_url(), *options])
    line = capsys.readouterr().err
    assert line.startswith(error)
    assert 1 == line.count("\n")


@pytest.mark.parametrize("command", [["publish", "t", "x"], ["subscribe", "t"]])
def test_the_error_for_a_wrong_key_does_not_show_the_key(
    broker: Broker, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """It names the address; the exit code is 1."""
    assert 1 == main([*command, "--url", broker.url("not-a-good-one")])
    line = capsys.readouterr().err
    assert line.startswith(f"error: cannot connect to {broker.addresses['blip']}: ")
    assert "not-a-good-one" not in line


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_subscriber_silently(
    broker: Broker, capsys: pytest.CaptureFixture[str], ending: signal.Signals
) -> None:
    """With 130, as shells expect after Ctrl-C; it leaves no subscription behind."""
    topic = f"ended.{ending.name}"
    usual = "default_int_handler" if ending == signal.SIGINT else "SIG_DFL"
    # The tests may run with the signal ignored, for example under `nohup`.
    handling = f"import signal; signal.signal({ending.value}, signal.{usual}); "
    reader = subscribed(broker, topic, capsys, before=handling)
    reader.send_signal(ending)

    assert (b"", b"") == reader.communicate(timeout=60)
    assert 130 == reader.returncode
    assert 0 == subscriptions(broker, topic, capsys)


def test_a_subscriber_in_the_background_of_a_script_unsubscribes_too(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """There SIGINT is ignored, so a script ends it with SIGTERM."""
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    reader = subscribed(broker, "background", capsys, before=ignoring)
    reader.send_signal(signal.SIGINT)
    assert 0 == main(["publish", "background", "x", "--url", broker.url(), "--json"])
    assert 1 == json.loads(capsys.readouterr().out)["count"]
    assert reader.stdout is not None
    assert b"x\n" == reader.stdout.readline()
    reader.send_signal(signal.SIGTERM)

    assert (b"", b"") == reader.communicate(timeout=60)
    assert 130 == reader.returncode
    assert 0 == subscriptions(broker, "background", capsys)


def test_a_subscriber_on_a_terminal_says_that_it_waits(broker: Broker) -> None:
    """Without a line it would seem to hang."""
    words = ["subscribe", "quiet", "--url", broker.url()]
    code, written = on_terminal(words, until=lambda output: "press Ctrl-C to stop" in output)

    assert 130 == code
    assert written.startswith("waiting for messages on quiet; press Ctrl-C to stop\r\n")


def test_a_subscriber_reports_a_lost_connection_once_and_the_reconnect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many connections it has."""
    with running(tmp_path) as first:
        reader = subscribed(first, "again", capsys, "--count", "1")
        again = ("--blip", str(first.addresses["blip"]))
        first.process.kill()
        first.process.communicate()
        assert reader.stderr is not None
        lost = reader.stderr.readline().decode()
        with running(tmp_path, *again) as second:
            back = reader.stderr.readline().decode()
            assert 0 == main(["publish", "again", "x", "--url", second.url()])
            out, rest = reader.communicate(timeout=60)

    assert lost.startswith(f"lost the connection to {first.addresses['blip']}: ")
    assert lost.endswith("; reconnecting\n")
    assert ("reconnected\n", b"x\n", b"") == (back, out, rest)


def test_a_missing_payload_is_not_an_empty_message(
    broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command reads it from a pipe; at a terminal it is an error. '' is an empty one."""
    reader = subscribed(broker, "left-out", capsys, "--count", "2")
    stdin = io.TextIOWrapper(io.BytesIO(b"piped"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert 0 == main(["publish", "left-out", "--url", broker.url()])
    assert 0 == main(["publish", "left-out", "", "--url", broker.url()])
    assert (b"piped\n\n", b"") == reader.communicate(timeout=60)
    capsys.readouterr()

    error = "error: PAYLOAD: is missing; give a text, '' for an empty message, or pipe it in\n"
    assert 2 == main(["publish", "left-out", "--url", broker.url()])  # the pipe is at its end
    assert ("", error) == capsys.readouterr()
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    assert 2 == main(["publish", "left-out", "--url", broker.url()])
    assert ("", error) == capsys.readouterr()


@pytest.mark.parametrize("strand", ["blip", "vibe", "qumbed"])
def test_a_refusal_names_the_permission_that_the_key_lacks(
    limited: Broker, capsys: pytest.CaptureFixture[str], strand: str
) -> None:
    """With the topic, and the setting that would allow it."""
    url = limited.strand_url(strand, LIMITED_KEY)
    assert 1 == main(["publish", "salaries", "1", "--url", url])
    publishing = capsys.readouterr().err
    assert 1 == main(["subscribe", "salaries", "--url", url])
    subscribing = capsys.readouterr().err

    assert publishing.startswith("error: publish to 'salaries' refused: ")
    hint = 'the key needs publish = ["salaries"], or a pattern that matches it'
    assert publishing.endswith(f"; {hint}\n")
    assert subscribing.startswith("error: subscription to 'salaries' refused: ")
    assert subscribing.endswith(f"; {hint.replace('publish', 'subscribe')}\n")
    assert 1 == publishing.count("\n") == subscribing.count("\n")


def test_the_error_for_an_unknown_certificate_names_the_options(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the URL and of the command."""
    url = broker.qumbed_url().partition("?")[0]
    assert 1 == main(["publish", "t", "x", "--url", url])
    line = capsys.readouterr().err
    for option in ("?fingerprint=", "--ca-file FILE", "--insecure"):
        assert option in line, option
    assert 1 == line.count("\n")
    assert 0 == main(["publish", "t", "x", "--url", url, "--insecure"])
