"""Names that would control a terminal, through a real broker to everything that shows them."""

import http.client
import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from braidmq.cli.main import main
from tests.integration.cli.brokers import Broker, running

NAME = "x\x1b]0;owned\x07\x9b2J\x7f\r\u202egnp.exe\u2028y"
"""Sets a window's title, clears a screen, reverses text, and ends a line."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("hostile")) as broker:
        assert 0 == main(["publish", NAME, NAME, "--url", broker.url()])
        yield broker


SHOWING = {
    "topics": ["topics"],
    "topics as JSON": ["topics", "--json"],
    "top": ["top", "--once"],
    "top as JSON": ["top", "--once", "--json"],
    "a refused name": ["queue", "create", NAME],
}


@pytest.mark.parametrize("words", SHOWING.values(), ids=SHOWING.keys())
def test_a_command_shows_no_control_character(
    broker: Broker, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """It escapes them, in tables, JSON and errors; JSON has the same value."""
    capsys.readouterr()
    main([*words, "--url", broker.http_url()])
    captured = capsys.readouterr()
    shown = captured.out + captured.err

    assert "gnp.exe" in shown
    assert "" == "".join(c for c in shown if not c.isprintable() and c not in "\t\n")
    if captured.out.startswith(("{", "[")):
        assert NAME in _texts(json.loads(captured.out))


def _texts(value: object) -> str:
    if isinstance(value, dict):
        return "".join(map(_texts, [*value, *value.values()]))
    if isinstance(value, list):
        return "".join(map(_texts, value))
    return str(value)


UNKNOWN = json.dumps({"payload": 1, NAME: 2}, ensure_ascii=False).encode()
ANSWERS = {
    "topics": ("GET", "/api/topics", b""),
    "metrics": ("GET", "/metrics", b""),
    "cursors": ("GET", "/api/cursors", b""),
    "a field that is unknown": ("POST", "/api/topics/t/messages", UNKNOWN),
    "a parameter": ("GET", f"/api/topics?sort={quote(NAME)}", b""),
    "a cursor that is unknown": ("DELETE", f"/api/cursors/{quote(NAME)}", b""),
    "a queue that is unknown": ("GET", f"/api/queues/{quote(NAME)}", b""),
}


@pytest.mark.parametrize("request_of", ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_over_http_holds_none_either(
    broker: Broker, request_of: tuple[str, str, bytes]
) -> None:
    """Operators look at it with `curl`; an error may repeat what it refuses."""
    address = str(broker.addresses["http"])
    connection = http.client.HTTPConnection(address, timeout=10)
    method, path, body = request_of
    headers = {"Authorization": "Bearer dev-key", "Content-Type": "application/json"}
    connection.request(method, path, body, headers=headers)
    shown = connection.getresponse().read().decode()
    connection.close()

    assert "" == "".join(c for c in shown if not c.isprintable() and c not in "\t\n")


def test_a_dump_of_the_log_holds_none(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither as lines nor as JSON; the broker has to be stopped for it."""
    data_dir = broker.ready_file.parent / "data"
    assert 0 == broker.stop()[0]
    capsys.readouterr()
    for words in ([], ["--json"]):
        assert 0 == main(["wal", "dump", "--data-dir", str(data_dir), *words])
    shown = capsys.readouterr().out

    assert "gnp.exe" in shown
    assert "" == "".join(c for c in shown if not c.isprintable() and c not in "\t\n")
