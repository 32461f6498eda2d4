"""The HTTP side of a broker as commands ask it: where, with which key, what it says."""

import socket
import threading
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from unittest.mock import Mock

import pytest
import trustme

from braidmq.base.errors import ConfigError
from braidmq.cli.api import ANSWER_TIMEOUT_S, WORK_TIMEOUT_S, Api, HttpError, api_at, path_of
from braidmq.cli.main import main
from tests.unit.admin.world import ADMIN_KEY, ORDERS_KEY, World
from tests.unit.cli.serving import serving, url


def test_a_wrong_key_is_told_without_the_key(
    port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1, what the broker says, and where the key goes."""
    assert 1 == main(["topics", "--url", url(port, "wrong-one")])
    line = capsys.readouterr().err
    assert line.startswith(
        f"error: 127.0.0.1:{port} answered 401: authentication failed: unknown API key"
    )
    assert line.endswith("; pass the API key in --url or BRAIDMQ_URL\n")
    assert "wrong-one" not in line


def test_what_a_key_may_not_do_is_told_with_what_it_lacks(port: int) -> None:
    """The broker's word, and a hint."""
    hint = "this needs a key with admin = true"
    said = f"answered 403: this API key lacks the permission delete_queue; {hint}"
    with pytest.raises(HttpError, match=said):
        api_at(url(port, ORDERS_KEY)).ask("DELETE", "/api/queues/orders.a")


def test_what_is_not_there_is_told_with_the_command_that_lists(port: int) -> None:
    """So that the next thing to type is known."""
    said = "answered 404: no such queue; `braidmq queue list` lists the existing ones"
    with pytest.raises(HttpError, match=said):
        api_at(url(port)).ask("GET", "/api/queues/x", listed_by="braidmq queue list")


def test_a_body_is_sent_as_json(port: int) -> None:
    """And the answer to it is an object."""
    answer = api_at(url(port)).ask("POST", "/api/queues", {"name": "a", "maxQueueSize": 5})

    assert ("a", 5) == (answer["name"], answer["maxQueueSize"])


def test_all_pages_are_asked_for(world: World, port: int) -> None:
    """Names are quoted, whatever they hold."""
    names = [f"q&{number:03}" for number in range(250)] + ["\u00fc/ ?#"]
    world.declare(*names)
    rows = api_at(url(port)).rows("/api/queues", "queues")

    assert sorted(names) == [row["name"] for row in rows]


def test_a_name_is_one_part_of_a_path() -> None:
    """Slashes and question marks do not end it, and dots do not lead elsewhere."""
    assert "/api/queues/a%2Fb%3F%C3%BC" == path_of("api", "queues", "a/b?\u00fc")
    assert "/api/queues/%FF.." == path_of("api", "queues", "..")
    assert "/api/queues/..." == path_of("api", "queues", "...")


def test_a_broker_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Where it was looked for, and what the system says."""
    assert 1 == main(["topics", "--url", "http://secret-one@127.0.0.1:1"])
    assert (
        "error: cannot reach HTTP on 127.0.0.1:1: Connection refused; "
        "`braidmq serve --dev` starts a broker\n" == capsys.readouterr().err
    )


def test_an_address_that_was_guessed_is_told_as_such() -> None:
    """One address serves all commands; whoever has HTTP elsewhere learns how to say so."""
    guessed = api_at("blip://k@127.0.0.1:5555")
    said = "Connection refused; if HTTP is elsewhere, pass --url http://KEY@HOST:PORT"
    with pytest.raises(HttpError, match=said):
        replace(guessed, port=1).ask("GET", "/api/topics")

    assert 9100 == guessed.port


WORK = {
    "queue purge": (["queue", "purge", "dlq.a", "--yes"], "/api/queues/dlq.a/purge"),
    "queue delete": (["queue", "delete", "dlq.a", "--yes"], "/api/queues/dlq.a"),
    "dlq purge": (["dlq", "purge", "dlq.a", "--yes"], "/api/queues/dlq.a/purge"),
    "dlq replay": (["dlq", "replay", "dlq.a"], "/api/dead-letters/replay"),
    "one letter": (["dlq", "replay", "dlq.a", "--offset", "2"], "/api/dead-letters/replay"),
}


@pytest.mark.parametrize(("command", "path"), WORK.values(), ids=WORK.keys())
def test_work_that_may_take_long_is_waited_for(
    *,
    world: World,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    path: str,
) -> None:
    """The broker goes on with it; whether it is one, is asked with less patience before."""
    asked: list[tuple[str, float]] = []
    send = HTTPConnection.request

    def noted(
        connection: HTTPConnection,
        method: str,
        path: str,
        *,
        headers: dict[str, str],
        body: bytes | None = None,
    ) -> None:
        asked.append((path, connection.timeout or 0.0))
        send(connection, method, path, body=body, headers=headers)

    world.bury("a", b"1")  # the letter is at offset 2, behind its queue
    monkeypatch.setattr(HTTPConnection, "request", noted)
    assert 0 == main([*command, "--url", url(port)])

    assert [("/healthz", ANSWER_TIMEOUT_S), (path, WORK_TIMEOUT_S)] == asked[-2:]


def test_work_that_takes_too_long_is_not_a_wrong_port(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be done all the same."""
    api = api_at(url(port))
    answer = HTTPConnection.getresponse

    def late(connection: HTTPConnection) -> HTTPResponse:
        if connection.timeout == WORK_TIMEOUT_S:
            raise TimeoutError
        return answer(connection)

    monkeypatch.setattr(HTTPConnection, "getresponse", late)
    with pytest.raises(HttpError) as caught:
        api.work("POST", "/api/queues/a/purge")

    told = (
        f"127.0.0.1:{port} did not answer within 600 s; the broker may still be working on it"
    )
    assert told == str(caught.value)


OTHERS = [
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
]


@pytest.mark.parametrize("answer", OTHERS)
def test_something_else_that_listens_there_is_told(answer: bytes) -> None:
    """Whatever it says, it is an error in one line."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=answer_once)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(HttpError, match=r"^127.0.0.1:\d+ does not answer as BraidMQ"):
            list(api_at(f"http://k@127.0.0.1:{port}").rows("/api/topics", "topics"))
        thread.join()


def test_another_port_of_the_broker_is_guessed_at() -> None:
    """A strand hangs up on a request of HTTP's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)

        thread = threading.Thread(target=hang_up)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(HttpError) as caught:
            api_at(f"http://k@127.0.0.1:{port}").ask("GET", "/api/topics")
        thread.join()

    assert str(caught.value).endswith("; check the port; the default of HTTP is 9100")


def test_https_to_a_port_without_tls_is_told(port: int) -> None:
    """In words, not in those of the library."""
    api = api_at(f"https://k@127.0.0.1:{port}")
    reason = "it does not speak TLS; use http:// instead of https://"
    told = f"cannot reach HTTP on 127.0.0.1:{port}: {reason}"
    with pytest.raises(HttpError, match=told):
        api.ask("GET", "/api/topics")


# For whom a certificate was made, and how its refusal ends.
CERTIFICATES = {
    "of nobody who is trusted": (
        "127.0.0.1",
        "; name its CA in the environment: SSL_CERT_FILE=FILE\n",
    ),
    "for another name": ("other.invalid", "certificate is not valid for '127.0.0.1'.\n"),
}


@pytest.mark.parametrize(("host", "end"), CERTIFICATES.values(), ids=CERTIFICATES.keys())
def test_a_certificate_that_is_not_believed_is_told(
    *,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    host: str,
    end: str,
) -> None:
    """With what helps, where that is another authority; one that is named is believed."""
    authority = trustme.CA()
    both, trusted = tmp_path / "both.pem", tmp_path / "ca.pem"
    authority.issue_cert(host).private_key_and_cert_chain_pem.write_to_path(both)
    authority.cert_pem.write_to_path(trusted)
    if "SSL_CERT_FILE" not in end:
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with serving(world, both) as port:
        address = f"https://{ADMIN_KEY}@127.0.0.1:{port}"
        refused = main(["topics", "--url", address])
        told = capsys.readouterr().err
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        believed = main(["topics", "--url", address])

    begin = f"error: cannot reach HTTP on 127.0.0.1:{port}: its certificate is not trusted: "
    assert (1, True, True) == (refused, told.startswith(begin), told.endswith(end))
    assert (0 if host == "127.0.0.1" else 1) == believed


def test_a_strand_with_a_certificate_that_is_not_believed_is_told(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As HTTP is: they believe the same authorities."""
    both = tmp_path / "both.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(both)
    with serving(world, both) as port:
        assert 1 == main(["publish", "a", "1", "--url", f"blips://k@127.0.0.1:{port}"])

    told = capsys.readouterr().err
    assert told.endswith("; name its CA in the environment: SSL_CERT_FILE=FILE\n")


def test_a_strands_url_names_host_and_key() -> None:
    """HTTP is looked for on its own usual port, not on the strand's."""
    guessed = Api("127.0.0.9", 9100, "k", tls=False, is_guessed=True)
    assert guessed == api_at("blip://k@127.0.0.9:5555")
    assert Api("h", 9100, "k", tls=True, is_guessed=True) == api_at("vibes://k@h")
    assert Api("h", 1, "k", tls=True) == api_at("https://k@h:1")


def test_the_default_is_the_broker_in_development_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """BRAIDMQ_URL goes before it, and --url before both."""
    monkeypatch.delenv("BRAIDMQ_URL", raising=False)
    assert Api("127.0.0.1", 9100, "dev-key", tls=False) == api_at(None)
    monkeypatch.setenv("BRAIDMQ_URL", "http://e@h:2")

    assert ["e", "u"] == [api_at(None).key, api_at("http://u@h:3").key]


BAD_URLS = ["127.0.0.1:9100", "ftp://k@h:1", "http://", "http://k@a..b", "http://k@[::1:1"]


@pytest.mark.parametrize("bad", BAD_URLS)
def test_a_bad_url_is_exit_2(capsys: pytest.CaptureFixture[str], bad: str) -> None:
    """The form is told, the URL is not repeated."""
    assert 2 == main(["topics", "--url", bad])
    assert "error: --url: must be http://KEY@HOST:PORT\n" == capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "99999", "x"])
def test_a_port_that_is_none_is_exit_2(capsys: pytest.CaptureFixture[str], port: str) -> None:
    """What would be one is told, and what stands there is not: it may be a key."""
    assert 2 == main(["topics", "--url", f"http://k@h:{port}"])
    told = "error: --url: the port must be a number from 1 to 65535\n"
    assert told == capsys.readouterr().err


@pytest.mark.parametrize("bad", ["http://k@no-such-host.invalid:1", "blip://k@nowhere.invalid"])
def test_a_host_that_nobody_knows_is_told_in_plain_words(
    capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    """Not in those of the resolver."""
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", Mock(side_effect=unknown))
        assert 1 == main(["topics", "--url", bad])
    told = "unknown host; check the spelling in --url or BRAIDMQ_URL\n"
    assert capsys.readouterr().err.endswith(told)


def test_a_key_cannot_smuggle_headers() -> None:
    """Line breaks in it are refused before anything is sent."""
    with pytest.raises(ConfigError, match="the key must be printable ASCII"):
        api_at("http://a%0d%0aX:1@127.0.0.1:1")


def test_the_key_is_not_in_the_place() -> None:
    """What errors show is host and port."""
    assert "h:1" == Api("h", 1, ADMIN_KEY, tls=False).place
