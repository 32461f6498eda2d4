"""Connections to an endpoint."""

import pickle
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from braidmq.base.errors import BraidError, ConfigError, NotAllowedError
from braidmq.columnar.flight.connections import Connection
from braidmq.columnar.flight.failures import (
    EndpointFailedError,
    UnauthenticatedError,
    UnavailableError,
    encode_failure,
)
from tests.unit.columnar.endpoints import Text, scripted

HI = b'{"text":"hi"}'
ADDRESSES = {
    "grpc://h:1": True,
    "grpc://[::1]:8815": True,
    "grpc+tls://h.example:65535": True,
    "": False,
    "h:1": False,
    "h": False,
    "grpc://h": False,
    "grpc://:1": False,
    "grpc://h:x": False,
    "grpc://h:65536": False,
    "http://h:1": False,
    "grpc://h:1/path": False,
    "grpc://key@h:1": False,
}


@pytest.mark.parametrize(("address", "fits"), ADDRESSES.items())
def test_an_address_is_validated_before_it_is_used(address: str, fits: bool) -> None:
    """The error says what an address looks like."""
    if fits:
        assert address == Connection(address, "key", None).address
        return
    with pytest.raises(ConfigError, match="is not grpc://host:port or grpc\\+tls://host:port"):
        Connection(address, "key", None)


@pytest.mark.parametrize("key", ["", "a\nb", "schlüssel"])
def test_an_invalid_key_is_refused_without_repeating_it(key: str) -> None:
    """A header carries plain characters only; the error does not contain the key."""
    with pytest.raises(ConfigError, match=r"^api_key: ") as caught:
        Connection("grpc://h:1", key, None)
    assert not key or key not in str(caught.value)


def test_answers_are_decoded() -> None:
    """One for `ask`, several for `answers`; anything else is the endpoint's fault."""
    with scripted(answers=[HI]) as server:
        assert Text("hi") == server.connection().ask("x", Text("?"), Text)
    with scripted(answers=[HI, HI]) as server:
        connection = server.connection()
        assert 2 * [Text("hi")] == list(connection.answers("x", Text("?"), Text))
        with pytest.raises(EndpointFailedError, match="gave 2 answers to x"):
            connection.ask("x", Text("?"), Text)
    with scripted(answers=[b"[]"]) as server, pytest.raises(EndpointFailedError, match="Text"):
        server.connection().ask("x", Text("?"), Text)


REFUSALS: list[tuple[Exception, type[BraidError], str]] = [
    (
        fl.FlightUnauthorizedError("no", encode_failure(NotAllowedError("subscribe", "t"))),
        NotAllowedError,
        "this API key may not subscribe 't'",
    ),
    (fl.FlightUnauthenticatedError("who"), UnauthenticatedError, "ADDRESS: who"),
    (fl.FlightUnavailableError("later"), UnavailableError, "ADDRESS: later"),
    (fl.FlightInternalError("ouch"), EndpointFailedError, "ADDRESS: ouch"),
    (fl.FlightServerError("bad", b"{}"), EndpointFailedError, "ADDRESS: bad"),
    (pa.ArrowInvalid("rubbish"), EndpointFailedError, "ADDRESS: rubbish"),
    (NotImplementedError("what"), EndpointFailedError, "ADDRESS: what"),
]


@pytest.mark.parametrize(("raised", "kind", "text"), REFUSALS)
def test_an_error_of_an_endpoint_becomes_one_of_ours(
    raised: Exception, kind: type[BraidError], text: str
) -> None:
    """Typed and in one line, even if the server knows nothing of our errors."""
    with scripted(error=raised) as server:
        with pytest.raises(BraidError) as caught:
            server.connection().ask("x", Text("?"), Text)

        assert kind is type(caught.value)
        assert text.replace("ADDRESS", server.address) == str(caught.value)


def test_an_endpoint_that_does_not_listen_is_unavailable() -> None:
    """The error is one line, and a later attempt may succeed."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        connection = Connection(f"grpc://127.0.0.1:{taken.getsockname()[1]}", "key", None)
        with pytest.raises(UnavailableError, match="Connection refused") as caught:
            connection.ask("x", Text("?"), Text)
    assert "\n" not in str(caught.value)


def test_a_peer_that_does_not_speak_flight_is_unavailable() -> None:
    """The caller gets an error of ours, and no traceback of the library's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                with peer:
                    peer.sendall(b"HTTP/1.1 400 no\r\n\r\n")

        thread = Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(UnavailableError):
            Connection(f"grpc://127.0.0.1:{port}", "key", None).ask("x", Text("?"), Text)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_connection_is_closed_and_opened_again() -> None:
    """Closing twice is fine, and the next call connects again."""
    with scripted(answers=[HI]) as server:
        connection = server.connection()
        for _ in range(2):
            assert Text("hi") == connection.ask("x", Text("?"), Text)
            connection.close()
            connection.close()


class Breaking:
    """A way to a server that resets connections when their next bytes come from the client."""

    def __init__(self, port: int, listening: socket.socket) -> None:
        self.address = f"grpc://127.0.0.1:{listening.getsockname()[1]}"
        self.connections = 0
        self.breaks = 0  # connections that are still to be reset
        self._port = port
        self._listening = listening

    def run(self) -> None:
        with suppress(OSError):  # the test has ended
            while True:
                peer, _ = self._listening.accept()
                self.connections += 1
                server = socket.create_connection(("127.0.0.1", self._port))
                for way in ((peer, server, True), (server, peer, False)):
                    Thread(target=self._pass_on, args=way, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if from_client and self.breaks > 0:
                    self.breaks -= 1
                    linger = struct.pack("ii", 1, 0)
                    for end in (source, sink):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def breaking(port: int) -> Iterator[Breaking]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        way = Breaking(port, listening)
        thread = Thread(target=way.run, daemon=True)
        thread.start()
        try:
            yield way
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


SCHEMA = pa.schema([("n", pa.int64())])
ROWS = pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA)


@pytest.mark.parametrize("streams", [False, True])
def test_a_request_is_repeated_if_a_connection_in_use_breaks(streams: bool) -> None:
    """An endpoint may close an idle connection while a request is on its way to it."""
    with (
        scripted(answers=[HI], schema=SCHEMA, stream=[ROWS]) as server,
        breaking(server.port) as way,
    ):
        connection = Connection(way.address, "key", None)
        for _ in range(3):
            assert Text("hi") == connection.ask("x", Text("?"), Text)
            way.breaks = 1
            if streams:
                assert ROWS == connection.get(Text("?")).read_all().to_batches()[0]

        assert Text("hi") == connection.ask("x", Text("?"), Text)
        assert 4 == way.connections
        assert 0 == way.breaks


def test_a_request_is_repeated_once_and_never_on_a_new_connection() -> None:
    """What breaks again and again is unavailable, and the caller decides when to try again."""
    with scripted(answers=[HI]) as server, breaking(server.port) as way:
        connection = Connection(way.address, "key", None)
        connection.ask("x", Text("?"), Text)
        way.breaks = 1_000_000
        for _ in range(2):
            with pytest.raises(UnavailableError):
                connection.ask("x", Text("?"), Text)


def test_a_cursor_is_removed_at_most_once() -> None:
    """Its removal is not repeated: the answer would be that there is no such cursor."""
    with scripted(answers=[HI]) as server, breaking(server.port) as way:
        connection = Connection(way.address, "key", None)
        connection.ask("remove_cursor", Text("?"), Text)
        way.breaks = 1
        with pytest.raises(UnavailableError):
            connection.ask("remove_cursor", Text("?"), Text)

        assert Text("hi") == connection.ask("remove_cursor", Text("?"), Text)


def test_a_connection_can_be_pickled_even_while_it_is_open() -> None:
    """Only what is needed to connect is pickled."""
    with scripted(answers=[HI]) as server:
        connection = server.connection()
        connection.ask("x", Text("?"), Text)
        other = pickle.loads(pickle.dumps(connection))  # noqa: S301 - our own

        assert Text("hi") == other.ask("x", Text("?"), Text)
