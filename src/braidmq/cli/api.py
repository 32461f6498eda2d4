"""The HTTP side of a running broker, as commands ask it: where, with which key, what it says.

It prints nothing and knows no command; an answer that is not good is an HttpError.
"""

import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

import msgspec
import typer

from braidmq.base.errors import EXIT_USAGE, BraidError, ConfigError
from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.cli.exact_json import read_json, room_for_depth

HTTP_PORT: Final = 9100
ANSWER_TIMEOUT_S: Final = 10.0
WORK_TIMEOUT_S: Final = 600.0
"""For what changes many messages: much longer than it takes, but other work may be first."""

PAGE_SIZE: Final = 200
"""Rows asked for at a time."""

NAMES_IN_ROW_MAX: Final = 2
"""A queue's row has its name and that of its dead letters."""

ANSWER_BYTES_MAX: Final = PAGE_SIZE * (6 * NAMES_IN_ROW_MAX * TOPIC_BYTES_MAX + 2_048)
"""A page of the longest names, each character of them escaped, and the numbers beside."""

EVENT_BYTES_MAX: Final = 1_048_576
"""One line of a stream of events: a history of numbers is the longest."""

DEFAULT_URL: Final = "http://dev-key@127.0.0.1:9100"

Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help="http://KEY@HOST:PORT; also BRAIDMQ_URL."),
]

_FORM: Final = "must be http://KEY@HOST:PORT"
_PORT_FORM: Final = "the port must be a number from 1 to 65535"
_HINTS: Final = {
    401: "the key is given in --url or BRAIDMQ_URL",
    403: "a key for this has admin = true",
}
_NO_BROKER: Final = "`braidmq serve --dev` starts a broker"
_SPELLING: Final = "is it spelled right in --url or BRAIDMQ_URL?"
TRUST_HINT: Final = "SSL_CERT_FILE=FILE in the environment names who vouches for it"
_UNKNOWN_ISSUERS: Final = frozenset({18, 19, 20, 21})
"""How OpenSSL numbers that nobody who is trusted vouches; a wrong name, or a certificate that
has run out, is not helped by trusting more."""

_AT_IT: Final = "the broker may still be at it"
_OTHER_PORT: Final = f"is it HTTP's port? by default that is {HTTP_PORT}"


class HttpError(BraidError):
    """The broker's HTTP side cannot be reached, or answers with an error.

    A value that the broker cannot use is the command's usage, as if it had been judged here.
    `status` is 0 when there was no answer.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status
        if status == http.HTTPStatus.BAD_REQUEST:
            self.exit_code = EXIT_USAGE


class _Refusal(msgspec.Struct):
    """What an answer that is not good holds."""

    error: str


@dataclass(frozen=True, slots=True)
class Api:
    """One broker's HTTP side."""

    host: str
    port: int
    key: str
    tls: bool
    is_guessed: bool = False
    """Whether the port is only the usual one, because the address of a strand was given."""

    @property
    def place(self) -> str:
        """Where it is, without the key."""
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
        """Return the object that the broker answers with.

        *listed_by* is the command that lists what there is, when what is named is not there.

        Raises:
            HttpError: It cannot be reached, refuses, or is something else.
        """
        data = None if body is None else msgspec.json.encode(body)
        status, answer = self._asked(method, path, data, timeout_s)
        try:
            if status not in {http.HTTPStatus.OK, http.HTTPStatus.CREATED}:
                raise self._refusal(status, answer, listed_by)
            with room_for_depth():
                # Payloads are in the answer as they were sent, and may be any JSON.
                said = read_json(answer.decode())
        except (ValueError, RecursionError):
            raise self._is_other() from None
        if not isinstance(said, dict):
            raise self._is_other()
        return said

    def work(
        self, method: str, path: str, body: object = None, *, listed_by: str = ""
    ) -> dict[str, object]:
        """Return the answer to what may take long, and wait for it so long.

        Raises:
            HttpError: As in `ask`.
        """
        # What is no broker is found out soon, and not after all that time.
        self.ask("GET", "/healthz")
        return self.ask(method, path, body, listed_by=listed_by, timeout_s=WORK_TIMEOUT_S)

    def rows(self, path: str, field: str, *, after: str = "") -> Iterator[dict[str, object]]:
        """Yield the rows of all pages of a list that is asked for by name, behind *after*.

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
            HttpError: It has none: this is not BraidMQ.
        """
        try:
            return msgspec.convert(page.get(field), list[dict[str, object]])
        except msgspec.ValidationError:
            raise self._is_other() from None

    def number_in(self, answer: dict[str, object], field: str) -> int:
        """Return a number that an answer, or a row of it, must have.

        Raises:
            HttpError: It has not: this is not BraidMQ.
        """
        number = answer.get(field)
        if not isinstance(number, int):
            raise self._is_other()
        return number

    def events(self, path: str) -> Iterator[tuple[str, object]]:
        """Yield the events of a stream as they come, each with its name and what it says.

        Raises:
            HttpError: As in `ask`; also when the stream ends, or nothing comes for too long.
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
        raise HttpError(f"{self.place} has ended the stream; the broker may be stopping")

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
                late = f"{self.place} has not answered within {timeout_s:.0f} s; {_AT_IT}"
                raise HttpError(late) from None
            raise self._is_unreachable(error) from None
        except http.client.HTTPException:
            raise self._is_other() from None
        finally:
            connection.close()

    def _refusal(self, status: int, answer: bytes, listed_by: str) -> HttpError:
        said = msgspec.json.decode(answer, type=_Refusal).error
        hint = _HINTS.get(status, "")
        if status == http.HTTPStatus.NOT_FOUND and listed_by:
            hint = f"`{listed_by}` names those there are"
        told = f"{self.place} answers {status}: {said}"
        return HttpError(f"{told}; {hint}" if hint else told, status)

    def _is_unreachable(self, error: OSError) -> HttpError:
        reason, hint = error.strerror or "no answer in time", ""
        if isinstance(error, socket.gaierror):
            reason, hint = "no host has that name", _SPELLING
        elif isinstance(error, ConnectionRefusedError):
            hint = _NO_BROKER
        elif isinstance(error, http.client.RemoteDisconnected):
            reason, hint = "it hung up", _OTHER_PORT
        elif isinstance(error, ssl.SSLCertVerificationError):
            reason = f"its certificate is not trusted: {error.verify_message}"
            hint = TRUST_HINT if error.verify_code in _UNKNOWN_ISSUERS else ""
        elif isinstance(error, ssl.SSLError):
            reason, hint = "it does not speak TLS", "http:// is without"
        elif isinstance(error, TimeoutError | ConnectionError):
            hint = _OTHER_PORT
        if self.is_guessed and not isinstance(
            error, socket.gaierror | ssl.SSLCertVerificationError
        ):
            hint = "--url http://KEY@HOST:PORT names another address of HTTP"
        told = f"cannot reach HTTP on {self.place}: {reason}"
        return HttpError(f"{told}; {hint}" if hint else told)

    def _is_other(self) -> HttpError:
        return HttpError(f"what listens on {self.place} is not BraidMQ's HTTP; {_OTHER_PORT}")


def api_at(url: str | None) -> Api:
    """Return the broker that --url, BRAIDMQ_URL or the default names.

    Raises:
        ConfigError: The URL cannot be used.
    """
    try:
        parts = urlsplit(url or os.environ.get("BRAIDMQ_URL") or DEFAULT_URL)
        host = parts.hostname
        (host or "").encode("idna")  # as it is looked up: a label has 1 to 63 bytes
    except ValueError:
        raise ConfigError("--url", _FORM) from None
    scheme = parts.scheme.removesuffix("s")
    if not host or scheme not in {"http", "blip", "vibe", "qumbed"}:
        raise ConfigError("--url", _FORM)
    port = _port_in(parts)
    key = unquote(parts.netloc.rpartition("@")[0])
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("--url", "the key must be printable ASCII")
    # One BRAIDMQ_URL serves all commands: a strand's address names host and key, and HTTP
    # is beside it on its usual port.
    is_own = scheme == "http"
    own_port = port if is_own and port is not None else HTTP_PORT
    tls = parts.scheme.endswith("s")
    return Api(host, own_port, key, tls=tls, is_guessed=not is_own)


def _port_in(parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:  # not repeated: a key may stand in its place
        raise ConfigError("--url", _PORT_FORM)
    return port


def path_of(*parts: str) -> str:
    """Return the path of these parts; a name is one part, whatever characters it has."""
    # What is between us and the broker may take a part away that is only dots.
    return "".join(
        f"/%FF{part}" if part in {".", ".."} else f"/{quote(part, safe='')}" for part in parts
    )
