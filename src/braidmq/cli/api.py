"""The HTTP client of the commands: the broker's address and key, requests and their errors.

It prints nothing and knows no command; every failure is an HttpError that says what to do.

One address serves all commands; `contexts` says which. Those that use HTTP look for its address
when they are given a strand's (`api_at`): in the context, in `run.json` of a broker on this
machine, on the default port. Those that speak a strand ask over HTTP for its port
(`strand_address`).
"""

import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

import msgspec
import typer

from braidmq.base.errors import EXIT_USAGE, BraidError, ConfigError
from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.cli.contexts import Place, place_of
from braidmq.cli.exact_json import read_json, room_for_depth

HTTP_PORT: Final = 9100
ANSWER_TIMEOUT_S: Final = 10.0
WORK_TIMEOUT_S: Final = 600.0
"""For requests that change many messages: they may queue behind others at the broker."""

PAGE_SIZE: Final = 200
"""Rows per request."""

NAMES_IN_ROW_MAX: Final = 2
"""A queue's row holds its own name and that of its dead-letter queue."""

ANSWER_BYTES_MAX: Final = PAGE_SIZE * (6 * NAMES_IN_ROW_MAX * TOPIC_BYTES_MAX + 2_048)
"""A page of the longest names, every character escaped, plus the numbers of each row."""

EVENT_BYTES_MAX: Final = 1_048_576
"""One line of an event stream; the history of numbers is the longest."""

RUN_FILE: Final = "run.json"
DEFAULT_DATA_DIR: Final = "data"
"""Of `braidmq serve`, which writes its addresses to `run.json` in it."""

Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Address of the broker, of any scheme: http://, blip://, vibe:// or "
        "qumbed://KEY@HOST:PORT. Default: BRAIDMQ_URL, else the context in use (`braidmq "
        "context`), else the broker of `braidmq serve --dev`.",
    ),
]

_FORM: Final = "must be http://KEY@HOST:PORT, or the same with blip, vibe or qumbed"
_SCHEMES: Final = frozenset({"http", "blip", "vibe", "qumbed"})
_PORT_FORM: Final = "the port must be a number from 1 to 65535"
_HINTS: Final = {
    401: "pass the API key in --url or BRAIDMQ_URL",
    403: "this needs a key with admin = true",
}
_NO_BROKER: Final = "`braidmq serve --dev` starts a broker"
_SPELLING: Final = "check the spelling in --url or BRAIDMQ_URL"
TRUST_HINT: Final = "name its CA in the environment: SSL_CERT_FILE=FILE"
_UNKNOWN_ISSUERS: Final = frozenset({18, 19, 20, 21})
"""OpenSSL's codes for an untrusted issuer. Other problems, such as a wrong host name or an
expired certificate, are not solved by trusting another CA."""

_AT_IT: Final = "the broker may still be working on it"
_OTHER_PORT: Final = f"check the port; the default of HTTP is {HTTP_PORT}"

BLIP: Final = "blip"
_USUAL_PORTS: Final = {BLIP: 5555, "vibe": 2925, "qumbed": 6121}
_ALWAYS_TLS: Final = "qumbed"
"""QUIC is always encrypted, so there is no `qumbeds://`."""


class HttpError(BraidError):
    """The broker cannot be reached over HTTP, or answers with an error.

    A value that the broker rejects is a usage error, as if the command had checked it itself.
    `status` is 0 if there was no answer.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status
        if status == http.HTTPStatus.BAD_REQUEST:
            self.exit_code = EXIT_USAGE


class _Refusal(msgspec.Struct):
    """The body of an error response."""

    error: str


@dataclass(frozen=True, slots=True)
class Api:
    """HTTP requests to one broker."""

    host: str
    port: int
    key: str
    tls: bool
    is_guessed: bool = False
    """Whether the port is only the default, because the given address was a strand's."""
    tried: str = field(default="", compare=False)
    """Where else HTTP was looked for, in vain."""

    @property
    def place(self) -> str:
        """Host and port, without the key."""
        return f"{self.host}:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        listed_by: str = "",
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> dict[str, object]:
        """Send a request and return the JSON object of its response.

        *listed_by* is the command to suggest if the broker answers 404.

        Raises:
            HttpError: There is no answer, an error, or the answer is not a broker's.
        """
        data = None if body is None else msgspec.json.encode(body)
        status, answer = self._asked(method, path, data, timeout_s)
        try:
            if status not in {http.HTTPStatus.OK, http.HTTPStatus.CREATED}:
                raise self._refusal(status, answer, listed_by)
            with room_for_depth():
                # It contains payloads as they were sent, which may be any JSON.
                said = read_json(answer.decode())
        except (ValueError, RecursionError):
            raise self._is_other() from None
        if not isinstance(said, dict):
            raise self._is_other()
        return said

    def work(
        self, method: str, path: str, body: object = None, *, listed_by: str = ""
    ) -> dict[str, object]:
        """Send a request that may take minutes, and return its response.

        Raises:
            HttpError: As in `ask`.
        """
        # If no broker listens there, say so now and not after the long timeout.
        self.ask("GET", "/healthz")
        return self.ask(method, path, body, listed_by=listed_by, timeout_s=WORK_TIMEOUT_S)

    def rows(self, path: str, field: str, *, after: str = "") -> Iterator[dict[str, object]]:
        """Yield the rows of all pages of a list that is paged by name, starting after *after*.

        Raises:
            HttpError: As in `ask`.
        """
        name: object = after
        while name is not None:
            query = urlencode({"limit": PAGE_SIZE, "after": name}, quote_via=quote)
            page = self.ask("GET", f"{path}?{query}")
            yield from self.rows_in(page, field)
            name = page.get("next")

    def rows_in(self, page: dict[str, object], field: str) -> list[dict[str, object]]:
        """Return the rows of one page.

        Raises:
            HttpError: It has none: this is not a BraidMQ broker.
        """
        try:
            return msgspec.convert(page.get(field), list[dict[str, object]])
        except msgspec.ValidationError:
            raise self._is_other() from None

    def number_in(self, answer: dict[str, object], field: str) -> int:
        """Return a number from a response or one of its rows.

        Raises:
            HttpError: It has none: this is not a BraidMQ broker.
        """
        number = answer.get(field)
        if not isinstance(number, int):
            raise self._is_other()
        return number

    def events(self, path: str) -> Iterator[tuple[str, object]]:
        """Yield the events of a stream as they arrive: name and data.

        Raises:
            HttpError: As in `ask`; also if the stream ends or stays silent for too long.
        """
        connection = self._connection(ANSWER_TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.key}"})
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise self._refusal(response.status, response.read(EVENT_BYTES_MAX), "")
            name = ""
            while line := response.readline(EVENT_BYTES_MAX):
                field, _, value = line.rstrip(b"\r\n").partition(b": ")
                if field == b"event":
                    name = value.decode("utf-8", "replace")
                elif field == b"data":
                    yield name, msgspec.json.decode(value)
        except OSError as error:
            raise self._is_unreachable(error) from None
        except (http.client.HTTPException, msgspec.DecodeError):
            raise self._is_other() from None
        finally:
            connection.close()
        raise HttpError(f"{self.place} ended the stream; the broker may be stopping")

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout_s)

    def _asked(
        self, method: str, path: str, data: bytes | None, timeout_s: float
    ) -> tuple[int, bytes]:
        connection = self._connection(timeout_s)
        headers = {"Authorization": f"Bearer {self.key}"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body=data, headers=headers)
            response = connection.getresponse()
            return response.status, response.read(ANSWER_BYTES_MAX)
        except OSError as error:
            if isinstance(error, TimeoutError) and timeout_s >= WORK_TIMEOUT_S:
                late = f"{self.place} did not answer within {timeout_s:.0f} s; {_AT_IT}"
                raise HttpError(late) from None
            raise self._is_unreachable(error) from None
        except http.client.HTTPException:
            raise self._is_other() from None
        finally:
            connection.close()

    def _refusal(self, status: int, answer: bytes, listed_by: str) -> HttpError:
        said = msgspec.json.decode(answer, type=_Refusal).error
        hint = _HINTS.get(status, "")
        if "the permission publish" in said:  # an administrator may lack it as well
            hint = "the key needs a publish pattern that matches it"
        if status == http.HTTPStatus.NOT_FOUND and listed_by:
            hint = f"`{listed_by}` lists the existing ones"
        told = f"{self.place} answered {status}: {said}"
        return HttpError(f"{told}; {hint}" if hint else told, status)

    def _is_unreachable(self, error: OSError) -> HttpError:
        reason, hint = error.strerror or "it timed out", ""
        if isinstance(error, socket.gaierror):
            reason, hint = "unknown host", _SPELLING
        elif isinstance(error, ConnectionRefusedError):
            hint = _NO_BROKER
        elif isinstance(error, http.client.RemoteDisconnected):
            reason, hint = "it closed the connection", _OTHER_PORT
        elif isinstance(error, ssl.SSLCertVerificationError):
            reason = f"its certificate is not trusted: {error.verify_message}"
            hint = TRUST_HINT if error.verify_code in _UNKNOWN_ISSUERS else ""
        elif isinstance(error, ssl.SSLError):
            reason, hint = "it does not speak TLS", "use http:// instead of https://"
        elif isinstance(error, TimeoutError | ConnectionError):
            hint = _OTHER_PORT
        if self.is_guessed and not isinstance(
            error, socket.gaierror | ssl.SSLCertVerificationError
        ):
            hint = f"tried {self.tried}; " if self.tried else ""
            hint += "if HTTP is elsewhere, pass --url http://KEY@HOST:PORT"
        told = f"cannot reach HTTP on {self.place}: {reason}"
        return HttpError(f"{told}; {hint}" if hint else told)

    def _is_other(self) -> HttpError:
        return HttpError(
            f"{self.place} does not answer as BraidMQ does over HTTP; {_OTHER_PORT}"
        )


def api_at(url: str | None) -> Api:
    """Return the HTTP API of the broker that --url, the environment or a context names.

    Raises:
        ConfigError: The URL is invalid, or there is no such context.
    """
    return api_of(place_of(url))


def api_of(place: Place) -> Api:
    """Return the HTTP API of the broker at *place*; raises as `api_at`."""
    parts = checked_url(place.url, place.said_by)
    host, port = str(parts.hostname), _port_in(parts, place.said_by)
    key, tls = unquote(parts.netloc.rpartition("@")[0]), parts.scheme.endswith("s")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(place.said_by, "the key must be printable ASCII")
    if is_http(place.url):
        return Api(host, port or HTTP_PORT, key, tls=tls)
    # Of a strand's address, host and key are used.
    if place.http is not None:
        own = checked_url(place.http, place.said_by)
        own_key = unquote(own.netloc.rpartition("@")[0]) or key
        own_port = _port_in(own, place.said_by) or HTTP_PORT
        return Api(str(own.hostname), own_port, own_key, tls=own.scheme.endswith("s"))
    strand = parts.scheme.removesuffix("s")
    run_file = Path(os.environ.get("BRAIDMQ_DATA_DIR") or DEFAULT_DATA_DIR) / RUN_FILE
    found, tried = _http_beside(run_file, strand, host, port or _USUAL_PORTS[strand])
    if found:
        return Api(host, found, key, tls=tls)
    return Api(host, HTTP_PORT, key, tls=tls, is_guessed=True, tried=tried)


def checked_url(url: str, said_by: str) -> SplitResult:
    """Return the parts of an address of any scheme that a broker has.

    Raises:
        ConfigError: It is none; the text does not repeat it, because of its key.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
        (host or "").encode("idna")  # as the resolver will: a label has 1 to 63 bytes
    except ValueError:
        raise ConfigError(said_by, _FORM) from None
    if not host or parts.scheme.removesuffix("s") not in _SCHEMES:
        raise ConfigError(said_by, _FORM)
    _port_in(parts, said_by)
    return parts


def _http_beside(run_file: Path, strand: str, host: str, port: int) -> tuple[int, str]:
    """Return the HTTP port of the broker on this machine whose *strand* is there.

    The port is 0 if it was not found, and the text says what was tried.
    """
    if not _is_here(host):
        return 0, ""
    try:
        facts = json.loads(run_file.read_bytes())
        is_it = str(facts[strand]).rpartition(":")[2] == str(port)
        number = str(facts["http"]).rpartition(":")[2]
        if is_it and number.isdigit():
            return int(number), ""
        reason = "HTTP is off there" if is_it else "of another broker"
    except FileNotFoundError:
        reason = "not there"
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        reason = "not readable"
    return 0, f"{run_file} ({reason}) and the default port"


def _is_here(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _port_in(parts: SplitResult, said_by: str) -> int | None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:  # do not print it: the text may be a misplaced key
        raise ConfigError(said_by, _PORT_FORM)
    return port


def path_of(*parts: str) -> str:
    """Return the path made of *parts*; a name is one part, whatever characters it has."""
    # A proxy may normalise away a part that is only dots.
    return "".join(
        f"/%FF{part}" if part in {".", ".."} else f"/{quote(part, safe='')}" for part in parts
    )


def is_http(url: str) -> bool:
    """Return whether *url* is an HTTP address."""
    return url.partition("://")[0].lower() in {"http", "https"}


def strand_address(url: str, strand: str | None = None, http: str | None = None) -> str:
    """Return the address of *strand* at the broker that *url* is an address of.

    Without *strand* any will do: a strand's own address is returned as it is, and for that of
    HTTP it is Blip's. *http* is the HTTP address, if it is known. Only the port is asked for:
    the broker may listen on 0.0.0.0, which cannot be connected to, so the host is that of HTTP.

    Raises:
        ConfigError: The URL is invalid, or the strand is off or has no TLS there.
        HttpError: The broker does not answer.
    """
    scheme = url.partition("://")[0].lower().removesuffix("s")
    if not is_http(url) and strand in {None, scheme}:
        return url
    strand = strand or BLIP
    api = api_of(Place(url, http))
    port, tls = _listening(api, strand)
    if api.tls and not tls:
        other = f"{strand}://KEY@{_host(api)}:{port}"
        raise ConfigError(
            "--url", f"{strand} has no TLS there; to connect without it, use {other}"
        )
    scheme = f"{strand}s" if tls and strand != _ALWAYS_TLS else strand
    return f"{scheme}://{quote(api.key, safe='')}@{_host(api)}:{port}"


def _listening(api: Api, strand: str) -> tuple[int, bool]:
    """Return a strand's port and whether it has TLS; assume the defaults if not told."""
    told = api.ask("GET", "/api/overview")
    listeners, encrypted = told.get("listeners"), told.get("tls")
    tls = strand in encrypted if isinstance(encrypted, list) else api.tls
    if not isinstance(listeners, dict) or strand not in listeners:
        return _USUAL_PORTS[strand], tls
    port = str(listeners[strand]).rpartition(":")[2]
    if not port.isdigit():  # null: it is off
        problem = f"{strand} is off at that broker; give the address of a strand that is on"
        raise ConfigError("--url", problem)
    return int(port), tls


def _host(api: Api) -> str:
    return f"[{api.host}]" if ":" in api.host else api.host
