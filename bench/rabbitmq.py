"""Load over RabbitMQ: AMQP 0-9-1 frames written by hand.

    u8 type | u16 channel | u32 size | payload | 0xCE      big-endian

Messages are persistent, the queue is durable and classic, and the channel confirms; a confirm
may stand for several messages.
"""

import os
import socket
import struct
import subprocess
from pathlib import Path
from typing import Final

from bench.servers import HOST, Peer, free_port
from bench.streams import (
    CHUNK_BYTES,
    BrokenRunError,
    Requests,
    Sample,
    connect,
    exchange,
    read_exactly,
)
from bench.vibe import BLOCK_MESSAGES, PAYLOAD

PROGRAM: Final = "rabbitmq-server"
PATH: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""The program itself; the one on the PATH is a wrapper that switches users."""

_METHOD: Final = 1
_HEADER: Final = 2
_BODY: Final = 3
_END: Final = b"\xce"
_QUEUE: Final = b"bench"
_PERSISTENT: Final = 2

_FRAME: Final = struct.Struct(">BHI")
_CONFIRM: Final = struct.Struct(
    ">BHI"  # frame head
    "HH"  # class and method
    "Q"  # delivery tag
    "B"  # multiple
    "B"  # frame end
)
_BASIC_ACK: Final = (60, 80)


_LIBRARIES: Final = Path("/usr/lib/rabbitmq/lib")


def version(_program: str) -> str:
    """Return the version from its directory's name: asking the server would start it."""
    return ", ".join(sorted(path.name for path in _LIBRARIES.glob("rabbitmq_server-*")))


class RabbitMQ(Peer):
    """A node in a directory, with its own name service, both on loopback."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        port, self._names_port = free_port(), free_port()
        settings = {
            "HOME": str(directory),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1}"
            ),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self._names_port),
        }
        command = ["env", *(f"{name}={value}" for name, value in settings.items()), PATH]
        super().__init__(command, directory, port)

    def stop(self) -> None:
        """Stop the node and the name service that it started."""
        super().stop()
        subprocess.run(
            ["epmd", "-port", str(self._names_port), "-kill"], check=False, capture_output=True
        )


class Confirms:
    """Publisher confirms; each covers one message, or all up to its tag."""

    def __init__(self, goal: int) -> None:
        self.goal = goal
        self.progress = 0
        self._held = b""
        self._up_to = 0
        self._singles: set[int] = set()

    def receive(self, source: socket.socket) -> None:
        """Read what is available."""
        data = source.recv(CHUNK_BYTES)
        if not data:
            raise BrokenRunError("the server closed the connection")
        data = self._held + data
        whole = len(data) - len(data) % _CONFIRM.size
        self._held = data[whole:]
        for _, _, _, kind, method, tag, multiple, _ in _CONFIRM.iter_unpack(data[:whole]):
            if (kind, method) != _BASIC_ACK:
                raise BrokenRunError(f"method {kind}.{method} instead of a confirm")
            if multiple:
                self._up_to = max(self._up_to, tag)
                self._singles = {one for one in self._singles if one > tag}
            else:
                self._singles.add(tag)
        self.progress = self._up_to + len(self._singles)

    def verify(self) -> None:
        """Raise BrokenRunError if there were more than expected."""
        if self.progress != self.goal:
            raise BrokenRunError(f"{self.progress} confirms, expected {self.goal}")


def publish(server: Peer, messages: int) -> Sample:
    """Publish without waiting, until every message is confirmed."""
    with _open(server) as connection:
        requests = Requests(_publish_frames() * BLOCK_MESSAGES, messages // BLOCK_MESSAGES)
        replies = Confirms(messages)
        return server.measure(messages, lambda: exchange(requests, connection, replies))


def _open(server: Peer) -> socket.socket:
    connection = connect(server.address)
    connection.sendall(b"AMQP\x00\x00\x09\x01")
    _expect(connection, 10, 10)  # Connection.Start
    plain = b"\0guest\0guest"
    start_ok = _long(b"") + _short(b"PLAIN") + _long(plain) + _short(b"en_US")
    connection.sendall(_method(0, 10, 11, start_ok))
    tune = _expect(connection, 10, 30)
    connection.sendall(_method(0, 10, 31, tune[:6] + b"\0\0"))  # as offered, no heartbeat
    connection.sendall(_method(0, 10, 40, _short(b"/") + b"\0\0"))  # Connection.Open
    _expect(connection, 10, 41)
    connection.sendall(_method(1, 20, 10, b"\0"))  # Channel.Open
    _expect(connection, 20, 11)
    durable = b"\x02"
    # Queue.Declare
    connection.sendall(_method(1, 50, 10, b"\0\0" + _short(_QUEUE) + durable + _long(b"")))
    _expect(connection, 50, 11)
    connection.sendall(_method(1, 85, 10, b"\0"))  # Confirm.Select
    _expect(connection, 85, 11)
    return connection


def _publish_frames() -> bytes:
    publish_method = _method(1, 60, 40, b"\0\0" + _short(b"") + _short(_QUEUE) + b"\0")
    delivery_mode = 1 << 12
    # class, weight, body size, flags of the properties that follow, delivery mode
    properties = struct.pack(">HHQHB", 60, 0, len(PAYLOAD), delivery_mode, _PERSISTENT)
    return publish_method + _frame(_HEADER, 1, properties) + _frame(_BODY, 1, PAYLOAD)


def _method(channel: int, kind: int, method: int, arguments: bytes) -> bytes:
    return _frame(_METHOD, channel, struct.pack(">HH", kind, method) + arguments)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + _END


def _expect(source: socket.socket, kind: int, method: int) -> bytes:
    """Read one method and return its arguments."""
    head = read_exactly(source, _FRAME.size)
    size = _FRAME.unpack(head)[2]
    payload = read_exactly(source, size + 1)[:-1]
    if struct.unpack_from(">HH", payload) != (kind, method):
        raise BrokenRunError(f"expected method {kind}.{method}, got {payload[:32]!r}")
    return payload[4:]


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _long(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text
