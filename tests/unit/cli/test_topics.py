"""`braidmq topics`, against the real HTTP side on a real socket."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from braidmq.admin.app import build_app
from braidmq.admin.server import AdminServer
from braidmq.cli.main import main
from tests.unit.admin.sources import ADMIN_KEY, FakeSource


async def serve(source: FakeSource, port: "Future[int]", stop: "Future[asyncio.Event]") -> None:
    server = AdminServer(build_app(source, loopback=True), host="127.0.0.1", port=0)
    told = asyncio.Event()
    stop.set_result(told)
    port.set_result((await server.start())[1])
    await told.wait()
    await server.stop()


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def port(source: FakeSource) -> Iterator[int]:
    port: Future[int] = Future()
    stop: Future[asyncio.Event] = Future()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(source, port, stop),))
    thread.start()
    yield port.result(timeout=30)
    loop.call_soon_threadsafe(stop.result(timeout=30).set)
    thread.join()
    loop.close()


def test_all_pages_are_listed(
    source: FakeSource, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many there are, and whatever their names are."""
    source.names = [f"t&{number:03}" for number in range(450)] + ["ü/ ?#"]

    assert 0 == main(["topics", "--url", f"http://{ADMIN_KEY}@127.0.0.1:{port}", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert sorted(source.names) == [row["name"] for row in rows]
    assert {"name": "t&000", "messages": 1, "last_offset": 2, "subscriptions": 3} == rows[0]


def test_the_url_may_come_from_the_environment(
    source: FakeSource,
    port: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Out of sight of other users, and out of the shell's history."""
    source.names = ["a"]
    monkeypatch.setenv("BRAIDMQ_URL", f"http://{ADMIN_KEY}@127.0.0.1:{port}")

    assert 0 == main(["topics"])
    assert "name\tmessages\tlast_offset\tsubscriptions\na\t1\t2\t3\n" == capsys.readouterr().out


def test_a_wrong_key_is_told_without_the_key(
    port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1 and what the broker says."""
    assert 1 == main(["topics", "--url", f"http://wrong-one@127.0.0.1:{port}"])
    line = capsys.readouterr().err
    assert line.startswith(f"error: 127.0.0.1:{port} answers 401: an API key is needed")
    assert "wrong-one" not in line


def test_a_broker_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Where it was looked for, and what the system says."""
    assert 1 == main(["topics", "--url", "http://secret-one@127.0.0.1:1"])
    assert (
        "error: cannot reach HTTP on 127.0.0.1:1: Connection refused\n"
        == capsys.readouterr().err
    )


def test_a_strands_url_names_host_and_key(capsys: pytest.CaptureFixture[str]) -> None:
    """HTTP is looked for on its own usual port, not on the strand's."""
    assert 1 == main(["topics", "--url", "blip://k@127.0.0.9:5555"])
    assert "HTTP on 127.0.0.9:9100: " in capsys.readouterr().err


BAD_URLS = ["127.0.0.1:9100", "ftp://k@h:1", "http://", "http://k@h:x", "http://k@[::1:1"]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_bad_url_is_exit_2(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """The form is told, the URL is not repeated."""
    assert 2 == main(["topics", "--url", url])
    assert (
        "error: --url: must be http://KEY@HOST:PORT\n".replace("KEY", "********")
        == capsys.readouterr().err
    )


def test_a_key_cannot_smuggle_headers(capsys: pytest.CaptureFixture[str]) -> None:
    """Line breaks in it are refused before anything is sent."""
    assert 2 == main(["topics", "--url", "http://a%0d%0aX:1@127.0.0.1:1"])
    assert "the key must be printable ASCII" in capsys.readouterr().err
