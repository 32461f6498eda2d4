"""The broker's HTTP API as commands call it: its address, the key, and its errors."""

import re
import socket
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
from tests.unit.cli.serving import other_server, serving, url


def test_a_wrong_key_is_reported_without_repeating_it(
    port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1, with the broker's reason and where to pass the key."""
    assert 1 == main(["topics", "--url", url(port, "wrong-one")])
    line = capsys.readouterr().err
    assert line.startswith(
        f"error: 127.0.0.1:{port} answered 401: authentication failed: unknown API key"
    )
    assert line.endswith("; pass the API key in --url or BRAIDMQ_URL\n")
    assert "wrong-one" not in line


def test_a_refusal_names_the_missing_permission(port: int) -> None:
    """The broker's reason, and a hint."""
    hint = "this needs a key with admin = true"
    problem = f"answered 403: this API key lacks the permission delete_queue; {hint}"
    with pytest.raises(HttpError, match=problem):
        api_at(url(port, ORDERS_KEY)).ask("DELETE", "/api/queues/orders.a")


def test_a_missing_queue_is_reported_with_the_command_that_lists(port: int) -> None:
    """So the user knows what to type next."""
    problem = "answered 404: no such queue; `braidmq queue list` lists the existing ones"
    with pytest.raises(HttpError, match=problem):
        api_at(url(port)).ask("GET", "/api/queues/x", listed_by="braidmq queue list")


def test_a_body_is_sent_as_json(port: int) -> None:
    """The answer is an object."""
    answer = api_at(url(port)).ask("POST", "/api/queues", {"name": "a", "maxQueueSize": 5})

    assert ("a", 5) == (answer["name"], answer["maxQueueSize"])


def test_all_pages_are_requested(world: World, port: int) -> None:
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


def test_a_broker_that_does_not_listen_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """With its address and the system's reason."""
    assert 1 == main(["topics", "--url", "http://secret-one@127.0.0.1:1"])
    assert (
        "error: cannot reach HTTP on 127.0.0.1:1: Connection refused; "
        "`braidmq serve --dev` starts a broker\n" == capsys.readouterr().err
    )


def test_a_guessed_address_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address serves all commands; the error says what was tried, and what to do."""
    monkeypatch.chdir(tmp_path)
    guessed = api_at("blip://k@127.0.0.1:5555")
    tried = "Connection refused; tried data/run.json (not there) and the default port; "
    problem = tried + "if HTTP is elsewhere, pass --url http://KEY@HOST:PORT"
    with pytest.raises(HttpError, match=re.escape(problem)):
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
def test_commands_wait_for_work_that_may_take_long(
    *,
    world: World,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    path: str,
) -> None:
    """A request with a short timeout checks first that a broker is there."""
    requested: list[tuple[str, float]] = []
    send = HTTPConnection.request

    def recording(
        connection: HTTPConnection,
        method: str,
        path: str,
        *,
        headers: dict[str, str],
        body: bytes | None = None,
    ) -> None:
        requested.append((path, connection.timeout or 0.0))
        send(connection, method, path, body=body, headers=headers)

    world.bury("a", b"1")  # the letter is at offset 2, after its queue
    monkeypatch.setattr(HTTPConnection, "request", recording)
    assert 0 == main([*command, "--url", url(port)])

    assert [("/healthz", ANSWER_TIMEOUT_S), (path, WORK_TIMEOUT_S)] == requested[-2:]


def test_work_that_takes_too_long_is_not_a_wrong_port(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may still finish it."""
    api = api_at(url(port))
    answer = HTTPConnection.getresponse

    def late(connection: HTTPConnection) -> HTTPResponse:
        if connection.timeout == WORK_TIMEOUT_S:
            raise TimeoutError
        return answer(connection)

    monkeypatch.setattr(HTTPConnection, "getresponse", late)
    with pytest.raises(HttpError) as caught:
        api.work("POST", "/api/queues/a/purge")

    problem = (
        f"127.0.0.1:{port} did not answer within 600 s; the broker may still be working on it"
    )
    assert problem == str(caught.value)


OTHERS = [
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
]


@pytest.mark.parametrize("answer", OTHERS)
def test_a_server_that_is_not_a_broker_is_reported(answer: bytes) -> None:
    """Whatever it answers, the error is one line."""
    with (
        other_server(answer) as port,
        pytest.raises(HttpError, match=r"^127.0.0.1:\d+ does not answer as BraidMQ"),
    ):
        list(api_at(f"http://k@127.0.0.1:{port}").rows("/api/topics", "topics"))


def test_a_server_that_hangs_up_is_reported_with_the_default_port() -> None:
    """The port may be a strand's, which hangs up on an HTTP request."""
    with other_server() as port, pytest.raises(HttpError) as caught:
        api_at(f"http://k@127.0.0.1:{port}").ask("GET", "/api/topics")

    assert str(caught.value).endswith("; check the port; the default of HTTP is 9100")


def test_https_to_a_port_without_tls_is_reported(port: int) -> None:
    """In plain words, not in those of the library."""
    api = api_at(f"https://k@127.0.0.1:{port}")
    reason = "it does not speak TLS; use http:// instead of https://"
    problem = f"cannot reach HTTP on 127.0.0.1:{port}: {reason}"
    with pytest.raises(HttpError, match=problem):
        api.ask("GET", "/api/topics")


# The host that a certificate was made for, and how the error ends.
CERTIFICATES = {
    "of an unknown authority": (
        "127.0.0.1",
        "; name its CA in the environment: SSL_CERT_FILE=FILE\n",
    ),
    "for another name": ("other.invalid", "certificate is not valid for '127.0.0.1'.\n"),
}


@pytest.mark.parametrize(("host", "end"), CERTIFICATES.values(), ids=CERTIFICATES.keys())
def test_an_untrusted_certificate_is_reported(
    *,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    host: str,
    end: str,
) -> None:
    """With the remedy, where another authority helps; an authority that is named is trusted."""
    authority = trustme.CA()
    both, trusted = tmp_path / "both.pem", tmp_path / "ca.pem"
    authority.issue_cert(host).private_key_and_cert_chain_pem.write_to_path(both)
    authority.cert_pem.write_to_path(trusted)
    if "SSL_CERT_FILE" not in end:
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with serving(world, both) as port:
        address = f"https://{ADMIN_KEY}@127.0.0.1:{port}"
        refused = main(["topics", "--url", address])
        problem = capsys.readouterr().err
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        accepted = main(["topics", "--url", address])

    begin = f"error: cannot reach HTTP on 127.0.0.1:{port}: its certificate is not trusted: "
    assert (1, True, True) == (refused, problem.startswith(begin), problem.endswith(end))
    assert (0 if host == "127.0.0.1" else 1) == accepted


def test_an_untrusted_certificate_of_a_strand_is_reported(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for HTTP: both trust the same authorities."""
    both = tmp_path / "both.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(both)
    with serving(world, both) as port:
        assert 1 == main(["publish", "a", "1", "--url", f"blips://k@127.0.0.1:{port}"])

    problem = capsys.readouterr().err
    assert problem.endswith("; name its CA in the environment: SSL_CERT_FILE=FILE\n")


def test_a_strands_url_names_host_and_key() -> None:
    """HTTP is expected on its own default port, not on the strand's."""
    guessed = Api("127.0.0.9", 9100, "k", tls=False, is_guessed=True)
    assert guessed == api_at("blip://k@127.0.0.9:5555")
    assert Api("h", 9100, "k", tls=True, is_guessed=True) == api_at("vibes://k@h")
    assert Api("h", 1, "k", tls=True) == api_at("https://k@h:1")


def test_the_default_is_the_broker_in_development_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """BRAIDMQ_URL overrides it, and --url overrides both."""
    monkeypatch.delenv("BRAIDMQ_URL", raising=False)
    assert Api("127.0.0.1", 9100, "dev-key", tls=False) == api_at(None)
    monkeypatch.setenv("BRAIDMQ_URL", "http://e@h:2")

    assert ["e", "u"] == [api_at(None).key, api_at("http://u@h:3").key]


BAD_URLS = ["127.0.0.1:9100", "ftp://k@h:1", "http://", "http://k@a..b", "http://k@[::1:1"]


@pytest.mark.parametrize("bad", BAD_URLS)
def test_a_bad_url_is_exit_2(capsys: pytest.CaptureFixture[str], bad: str) -> None:
    """The error shows the form, and does not repeat the URL."""
    assert 2 == main(["topics", "--url", bad])
    form = "must be http://KEY@HOST:PORT, or the same with blip, vibe or qumbed"
    assert f"error: --url: {form}\n" == capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "99999", "x"])
def test_an_invalid_port_is_exit_2(capsys: pytest.CaptureFixture[str], port: str) -> None:
    """The error says what is valid, and does not repeat the text, which may be a key."""
    assert 2 == main(["topics", "--url", f"http://k@h:{port}"])
    problem = "error: --url: the port must be a number from 1 to 65535\n"
    assert problem == capsys.readouterr().err


@pytest.mark.parametrize("bad", ["http://k@no-such-host.invalid:1", "blip://k@nowhere.invalid"])
def test_an_unknown_host_is_reported_in_plain_words(
    capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    """Not in those of the resolver."""
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", Mock(side_effect=unknown))
        assert 1 == main(["topics", "--url", bad])
    problem = "unknown host; check the spelling in --url or BRAIDMQ_URL\n"
    assert capsys.readouterr().err.endswith(problem)


def test_a_key_cannot_smuggle_headers() -> None:
    """Line breaks in it are refused before anything is sent."""
    with pytest.raises(ConfigError, match="the key must be printable ASCII"):
        api_at("http://a%0d%0aX:1@127.0.0.1:1")


def test_the_key_is_not_in_the_address_that_errors_show() -> None:
    """They show host and port."""
    assert "h:1" == Api("h", 1, ADMIN_KEY, tls=False).place
