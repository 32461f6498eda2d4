"""A connection to a Flight endpoint: opened on first use, with typed errors.

It carries requests and answers, which are JSON messages of `columnar.flight.requests`.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from threading import Lock
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as fl

from braidmq.base.errors import BraidError, ConfigError
from braidmq.base.limits import MIB
from braidmq.columnar.flight.failures import (
    EndpointFailedError,
    UnauthenticatedError,
    UnavailableError,
    decode_failure,
)
from braidmq.columnar.flight.requests import (
    AnyMessage,
    BadRequestError,
    Message,
    decode,
    encode,
)

ANSWER_BYTES_MAX: Final = 256 * MIB
"""The longest answer: a page of topics, the parts of a range, the end mark of a stream."""

KEEPALIVE_MS: Final = 310_000
"""How often an idle connection is pinged; gRPC servers allow it every five minutes."""

KEEPALIVE_PATIENCE_MS: Final = 20_000

_SCHEMES: Final = ("grpc", "grpc+tls")
_OPTIONS: Final = [
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_PATIENCE_MS),
    ("grpc.http2.max_pings_without_data", 0),  # no limit: a commit may take its time
    # Each endpoint gets its own connection; gRPC would share one within the process.
    ("grpc.use_local_subchannel_pool", 1),
]
_PASSING: Final = (
    fl.FlightUnavailableError,
    fl.FlightTimedOutError,
    fl.FlightCancelledError,
    OSError,
)
"""What the library raises if the connection failed rather than the endpoint."""

_NOT_REPEATED: Final = frozenset({"remove_cursor"})
"""Requests whose repetition could be answered differently: the cursor is gone by then."""

_Given = TypeVar("_Given")

# Texts of gRPC carry a preamble and debug context that mean nothing to a user.
_NOISE: Final = re.compile(r"\.? (?:Detail|gRPC client debug context): .*", re.DOTALL)
_PREAMBLE: Final = re.compile(r"^Flight returned [a-z ]+ error, with message: ")


class Connection:
    """The address and key of an endpoint, and the connection once it is open; for any thread.

    Raises:
        ConfigError: The address or the key is not valid.
    """

    def __init__(self, address: str, api_key: str, roots: bytes | None) -> None:
        _check(address, api_key)
        self.address = address
        self._api_key = api_key
        self._roots = roots
        self._client: fl.FlightClient | None = None
        self._has_answered = False
        self._lock = Lock()

    def __reduce__(self) -> tuple[type["Connection"], tuple[Any, ...]]:
        return Connection, (self.address, self._api_key, self._roots)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            client, self._client = self._client, None
            self._has_answered = False
        if client is not None:
            client.close()  # outside the lock: it may wait for the network

    def _connected(self, broken: fl.FlightClient | None = None) -> fl.FlightClient:
        """Return the open connection, or a new one if there is none but a *broken* one."""
        with self._lock:
            # The old one is not closed: streams of other threads may still end on it.
            if self._client is None or self._client is broken:
                self._client = fl.FlightClient(
                    self.address, tls_root_certs=self._roots, generic_options=_OPTIONS
                )
            return self._client

    def _call(self) -> fl.FlightCallOptions:
        bearer = f"Bearer {self._api_key}".encode()
        return fl.FlightCallOptions(headers=[(b"authorization", bearer)])

    def _called(
        self, call: Callable[[fl.FlightClient], _Given], *, repeats: bool = True
    ) -> _Given:
        """Return what a call gives first; repeat it if a connection that was in use breaks.

        The endpoint closes idle connections, and a call may be on its way at that moment. A
        new connection that breaks is a failure, and so is the second attempt.
        """
        client = self._connected()
        was_in_use = self._has_answered
        try:
            given = call(client)
        except (fl.FlightUnavailableError, OSError) as error:
            # An endpoint that is busy or shuts down says so in an error of its own.
            if not (repeats and was_in_use) or getattr(error, "extra_info", None):
                raise
            self._has_answered = False
            # On a new connection: gRPC may not have noticed yet that the old one is gone.
            given = call(self._connected(broken=client))
        self._has_answered = True
        return given

    def ask(self, action: str, request: Message, kind: type[AnyMessage]) -> AnyMessage:
        """Return the only answer to a request.

        Raises:
            BraidError: The endpoint's error.
        """
        answers = list(self.answers(action, request, kind))
        if len(answers) != 1:
            raise EndpointFailedError(f"{self.address} gave {len(answers)} answers to {action}")
        return answers[0]

    def answers(
        self, action: str, request: Message, kind: type[AnyMessage]
    ) -> Iterator[AnyMessage]:
        """Yield the answers to a request.

        Raises:
            BraidError: The endpoint's error.
        """
        with self.typed_errors():
            asked = fl.Action(action, encode(request))

            def begin(client: fl.FlightClient) -> Iterator[fl.Result]:
                results = iter(client.do_action(asked, self._call()))
                first = next(results, None)  # errors come with it
                return results if first is None else chain((first,), results)

            for result in self._called(begin, repeats=action not in _NOT_REPEATED):
                yield self.decoded(kind, result.body)

    def decoded(self, kind: type[AnyMessage], data: pa.Buffer) -> AnyMessage:
        """Return an answer, decoded.

        Raises:
            EndpointFailedError: It is not an answer of that kind.
        """
        try:
            return decode(kind, data.to_pybytes(), bytes_max=ANSWER_BYTES_MAX)
        except BadRequestError as error:
            raise EndpointFailedError(f"{self.address}: the answer {error}") from None

    def get(self, request: Message) -> fl.FlightStreamReader:
        """Return the requested stream; use it inside `typed_errors`.

        Raises:
            BraidError: The endpoint's error.
        """
        ticket = fl.Ticket(encode(request))
        with self.typed_errors():
            return self._called(lambda client: client.do_get(ticket, self._call()))

    def put(
        self, request: Message, schema: pa.Schema
    ) -> tuple[fl.FlightStreamWriter, fl.FlightMetadataReader]:
        """Return a stream to write to and the one of answers; use them inside `typed_errors`.

        Raises:
            BraidError: The endpoint's error.
        """
        descriptor = fl.FlightDescriptor.for_command(encode(request))
        with self.typed_errors():
            opened: tuple[fl.FlightStreamWriter, fl.FlightMetadataReader] = (
                self._connected().do_put(descriptor, schema, self._call())
            )
        return opened

    @contextmanager
    def typed_errors(self) -> Iterator[None]:
        """Raise a Flight error as the exception that the endpoint raised."""
        try:
            yield
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> BraidError:
        # The endpoint sends its typed error along. Without one, the failure comes from the
        # library or from something in between, and only the class of the error tells.
        sent = decode_failure(getattr(error, "extra_info", b"") or b"", self.address)
        if sent is not None:
            return sent
        text = _PREAMBLE.sub("", _NOISE.sub("", str(error))).partition("\n")[0]
        if isinstance(error, fl.FlightUnauthenticatedError):
            return UnauthenticatedError(f"{self.address}: {text}")
        if isinstance(error, _PASSING):
            return UnavailableError(f"{self.address}: {text}")
        return EndpointFailedError(f"{self.address}: {text}")


def _check(address: str, api_key: str) -> None:
    try:
        parts = urlsplit(address)
        fits = parts.scheme in _SCHEMES and parts.hostname and parts.port is not None
        rest = parts.path or parts.query or parts.fragment or parts.username is not None
    except ValueError:
        fits, rest = False, ""
    if not fits or rest:
        problem = f"{address!r} is not grpc://host:port or grpc+tls://host:port"
        raise ConfigError("endpoint", problem)
    if not api_key:
        raise ConfigError("api_key", "is missing: the endpoint requires an API key")
    if not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError("api_key", "contains characters that no API key has")
