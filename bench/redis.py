"""Load over RESP, the protocol of Redis: streams with a consumer group.

A request is an array of strings: *count CRLF, then for each $size CRLF bytes CRLF. The server
appends to its file and fsyncs it every second, its own default for durability.
"""

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
)

PROGRAM: Final = "redis-server"
AHEAD_MESSAGES: Final = 1024
"""Unanswered requests, as many as our consumer may have."""

BLOCK_MESSAGES: Final = 500


def start(directory: Path) -> Peer:
    """Start a server that keeps its append-only file in *directory*."""
    port = free_port()
    command = [PROGRAM, "--bind", HOST, "--port", str(port), "--dir", str(directory)]
    command += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
    return Peer(command, directory, port)


def read_group(server: Peer, messages: int) -> Sample:
    """Read a stream's messages one by one, without acknowledging them."""
    with connect(server.address) as connection:
        _fill(connection, messages)
        request = _command(b"XREADGROUP GROUP g c COUNT 1 STREAMS bench >")
        requests = Requests(request * BLOCK_MESSAGES, messages // BLOCK_MESSAGES)
        replies = CountedReplies(b"$%d\r\n" % len(PAYLOAD), messages)
        allowed = requests.ahead_of(AHEAD_MESSAGES, request_bytes=len(request))
        return server.measure(
            messages, lambda: exchange(requests, connection, replies, allowed=allowed)
        )


def _fill(connection: socket.socket, messages: int) -> None:
    add = _command(b"XADD bench * m " + PAYLOAD)
    replies = CountedReplies(b"-", messages)  # every id has one
    requests = Requests(add * BLOCK_MESSAGES, messages // BLOCK_MESSAGES)
    exchange(requests, connection, replies)
    connection.sendall(_command(b"XGROUP CREATE bench g 0"))
    reply = connection.recv(64)
    # The last XADD's line may end here: the count above stops at the dash in its id.
    if reply not in {b"+OK\r\n", b"\r\n+OK\r\n"}:
        raise BrokenRunError(f"the group was not created: {reply!r}")


def _command(words: bytes) -> bytes:
    parts = words.split(b" ")
    strings = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%s" % (len(parts), strings)
