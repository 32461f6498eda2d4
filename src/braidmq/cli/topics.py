"""`braidmq topics`: what topics a running broker has, asked over HTTP."""

import http.client
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import quote, unquote, urlsplit

import msgspec
import typer

from braidmq.base.errors import BraidError, ConfigError
from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.cli.config import AsJson
from braidmq.cli.tables import print_rows

HTTP_PORT: Final = 9100
ANSWER_TIMEOUT_S: Final = 10.0
PAGE_SIZE: Final = 200
"""Topics asked for at a time."""

ANSWER_BYTES_MAX: Final = PAGE_SIZE * (6 * TOPIC_BYTES_MAX + 1_024)
"""A page of the longest names, each character of them escaped, and the numbers beside."""

DEFAULT_URL: Final = "http://dev-key@127.0.0.1:9100"

_FORM: Final = "must be http://KEY@HOST:PORT"
_COLUMNS: Final = ("name", "messages", "last_offset", "subscriptions")


class HttpError(BraidError):
    """The broker's HTTP side cannot be reached, or answers with an error."""


@dataclass(frozen=True, slots=True)
class _Broker:
    host: str
    port: int
    key: str
    tls: bool

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"


class _Page(msgspec.Struct):
    """One answer of `/api/topics`."""

    topics: list[dict[str, object]]
    next: str | None


class _Refusal(msgspec.Struct):
    """What an answer that is not 200 holds."""

    error: str


def topics(
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="http://KEY@HOST:PORT; also BRAIDMQ_URL."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the topics that the key may see."""
    broker = _broker(url or os.environ.get("BRAIDMQ_URL") or DEFAULT_URL)
    print_rows(list(_topics(broker)), _COLUMNS, as_json=as_json)


def _broker(url: str) -> _Broker:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError("--url", _FORM) from None
    scheme = parts.scheme.removesuffix("s")
    if not host or scheme not in {"http", "blip", "vibe", "qumbed"}:
        raise ConfigError("--url", _FORM)
    key = unquote(parts.netloc.rpartition("@")[0])
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("--url", "the key must be printable ASCII")
    # One BRAIDMQ_URL serves all commands: a strand's address names host and key, and HTTP
    # is beside it on its usual port.
    own_port = port if scheme == "http" and port is not None else HTTP_PORT
    return _Broker(host, own_port, key, tls=parts.scheme.endswith("s"))


def _topics(broker: _Broker) -> Iterator[dict[str, object]]:
    after: str | None = ""
    while after is not None:
        path = f"/api/topics?limit={PAGE_SIZE}&after={quote(after, safe='')}"
        status, body = _asked(broker, path)
        try:
            if status != http.HTTPStatus.OK:
                said = msgspec.json.decode(body, type=_Refusal).error
                raise HttpError(f"{broker.place} answers {status}: {said}")
            page = msgspec.json.decode(body, type=_Page)
        except msgspec.DecodeError:
            raise HttpError(f"what listens on {broker.place} is not BraidMQ's HTTP") from None
        yield from page.topics
        after = page.next


def _asked(broker: _Broker, path: str) -> tuple[int, bytes]:
    kind = http.client.HTTPSConnection if broker.tls else http.client.HTTPConnection
    connection = kind(broker.host, broker.port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {broker.key}"})
        response = connection.getresponse()
        return response.status, response.read(ANSWER_BYTES_MAX)
    except OSError as error:
        reason = error.strerror or "no answer in time"
        raise HttpError(f"cannot reach HTTP on {broker.place}: {reason}") from None
    except http.client.HTTPException:
        raise HttpError(f"what listens on {broker.place} is not BraidMQ's HTTP") from None
    finally:
        connection.close()
