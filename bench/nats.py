"""Load over NATS, core and JetStream: its text protocol written by hand.

    PUB subject [reply] size CRLF payload CRLF        what a publisher sends
    MSG subject sid [reply] size CRLF payload CRLF    what a subscriber gets

JetStream answers a publish on its reply subject with a line of JSON that names the sequence
number. Its file store writes and does not fsync each message.
"""

import json
import socket
from pathlib import Path
from typing import Final

from bench.blip import PAYLOAD
from bench.servers import HOST, Peer, free_port
from bench.streams import (
    BrokenRunError,
    CountedReplies,
    Requests,
    Sample,
    connect,
    exchange,
    read_until,
)

PROGRAM: Final = "nats-server"
AHEAD_MESSAGES: Final = 200_000
"""Published but not yet received; well below NATS's limit for slow consumers (64 MiB)."""

BLOCK_MESSAGES: Final = 500
_CONNECT: Final = b'CONNECT {"verbose":false,"pedantic":false,"lang":"bench"}\r\nPING\r\n'
_PONG: Final = b"PONG\r\n"
_STREAM: Final = {
    "name": "bench",
    "subjects": ["bench"],
    "retention": "limits",
    "storage": "file",
    "num_replicas": 1,
    "discard": "old",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
}


def start(directory: Path) -> Peer:
    """Start a server, with JetStream in *directory*."""
    port = free_port()
    command = [PROGRAM, "-a", HOST, "-p", str(port), "-js", "-sd", str(directory)]
    return Peer(command, directory, port)


def publish(server: Peer, messages: int) -> Sample:
    """Publish to JetStream until every message is acknowledged."""
    with _open(server) as connection:
        _make_stream(connection)
        block = _publish_line(b" _INBOX.bench.ack") * BLOCK_MESSAGES
        requests = Requests(block, messages // BLOCK_MESSAGES)
        replies = CountedReplies(b'"seq":', messages)
        return server.measure(messages, lambda: exchange(requests, connection, replies))


def relay(server: Peer, messages: int) -> Sample:
    """Relay over core NATS from one connection to another, until the last message arrives."""
    with _open(server) as publisher, _open(server) as subscriber:
        subscriber.sendall(b"SUB bench 1\r\nPING\r\n")
        read_until(subscriber, _PONG)
        request = _publish_line(b"")
        requests = Requests(request * BLOCK_MESSAGES, messages // BLOCK_MESSAGES)
        replies = CountedReplies(b"MSG bench 1 %d\r\n" % len(PAYLOAD), messages)
        allowed = requests.ahead_of(AHEAD_MESSAGES, request_bytes=len(request))
        return server.measure(
            messages, lambda: exchange(requests, publisher, replies, subscriber, allowed)
        )


def _publish_line(reply: bytes) -> bytes:
    return b"PUB bench%s %d\r\n%s\r\n" % (reply, len(PAYLOAD), PAYLOAD)


def _open(server: Peer) -> socket.socket:
    connection = connect(server.address)
    read_until(connection, b"\r\n")  # INFO
    connection.sendall(_CONNECT)
    read_until(connection, _PONG)
    return connection


def _make_stream(connection: socket.socket) -> None:
    body = json.dumps(_STREAM).encode()
    connection.sendall(
        b"SUB _INBOX.bench.* 1\r\n"
        b"PUB $JS.API.STREAM.CREATE.bench _INBOX.bench.made %d\r\n%s\r\n" % (len(body), body)
    )
    reply = read_until(connection, b"}\r\n")
    if b'"did_create":true' not in reply:
        raise BrokenRunError(f"the stream was not created: {reply!r}")
