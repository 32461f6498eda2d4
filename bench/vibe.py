"""Load over Vibe: frames of dialect 1.1 written by hand, so that no client library is measured.

    u32 length | u8 flags | body      big-endian, docs/protocols/vibe.md

Each function makes one run against a broker that is new and returns what it took.
"""

import select
import socket
import time
from typing import Final

from bench.servers import Broker
from bench.streams import (
    RUN_S_MAX,
    SILENCE_S_MAX,
    BrokenRunError,
    Elapsed,
    ExpectedReplies,
    Requests,
    Sample,
    connect,
    exchange,
    read_exactly,
)

QUEUE: Final = "bench"
PAYLOAD: Final = b'"' + b"x" * 126 + b'"'
"""128 bytes of JSON: what the original's own load test sends."""

PUBLISHERS: Final = 4
SUBSCRIBERS: Final = 2
PREFETCH: Final = 1000
BLOCK_MESSAGES: Final = 500
QUEUES_BLOCK: Final = 1000

_CONNECT: Final = 0
_CONNECT_ACK: Final = 1
_PUBLISH: Final = 20
_PUBLISH_ACK: Final = 21
_SUBSCRIBE: Final = 22
_SUBSCRIBE_ACK: Final = 23
_ACK: Final = 30
_ID: Final = "m"


def frame(
    kind: int,
    message_id: str,
    queue: str = "",
    payload: bytes = b"",
    headers: dict[str, str] | None = None,
) -> bytes:
    """Return one frame."""
    given = headers or {}
    body = bytes([1, kind]) + _text(message_id) + _text(queue)
    body += len(payload).to_bytes(4, "big") + payload + len(given).to_bytes(2, "big")
    for key, value in given.items():
        body += _text(key) + _text(value)
    return len(body).to_bytes(4, "big") + b"\0" + body


def open_connection(broker: Broker) -> socket.socket:
    """Return a connection that has been let in."""
    connection = connect(broker.vibe)
    connection.sendall(frame(_CONNECT, "c", headers={"authToken": "dev-key"}))
    reply = _read_frame(connection)
    if reply[1] != _CONNECT_ACK:
        raise BrokenRunError(f"Connect was answered with {reply!r}")
    return connection


def publish(broker: Broker, messages: int) -> Sample:
    """Publish without waiting, until every message was acknowledged."""
    with open_connection(broker) as connection:
        requests = Requests(
            frame(_PUBLISH, _ID, QUEUE, PAYLOAD) * BLOCK_MESSAGES, messages // BLOCK_MESSAGES
        )
        replies = ExpectedReplies(_publish_ack(QUEUE) * messages)
        sample = broker.measure(
            messages, lambda: exchange(requests, connection, replies, connection)
        )
        replies.verify()
        return sample


def load(broker: Broker, messages: int) -> Sample:
    """Run the original's load test: publishers that await each reply, and subscribers."""
    subscribers = [_subscriber(broker) for _ in range(SUBSCRIBERS)]
    publishers = [open_connection(broker) for _ in range(PUBLISHERS)]
    try:
        return broker.measure(messages, lambda: _load(publishers, subscribers, messages))
    finally:
        for connection in (*publishers, *subscribers):
            connection.close()


def fill_queues(broker: Broker, count: int) -> None:
    """Publish one message to each of *count* queues, and wait until all are safe."""
    with open_connection(broker) as connection:
        for first in range(0, count, QUEUES_BLOCK):
            names = [f"queue-{n}" for n in range(first, min(first + QUEUES_BLOCK, count))]
            requests = Requests(b"".join(frame(_PUBLISH, _ID, n, PAYLOAD) for n in names))
            replies = ExpectedReplies(b"".join(_publish_ack(n) for n in names))
            exchange(requests, connection, replies, connection)
            replies.verify()


def _load(
    publishers: list[socket.socket], subscribers: list[socket.socket], messages: int
) -> Elapsed:
    request = frame(_PUBLISH, _ID, QUEUE, PAYLOAD)
    answer_bytes = len(_publish_ack(QUEUE))
    acknowledgement = frame(_ACK, _ID)
    deliver_bytes = 0
    held = dict.fromkeys((*publishers, *subscribers), 0)  # bytes of frames not yet whole
    sent = answered = delivered = 0
    started, cpu_started = time.perf_counter(), time.process_time()
    for publisher in publishers:
        publisher.sendall(request)
        sent += 1
    while answered < messages or delivered < messages:
        readable, _, _ = select.select(list(held), [], [], SILENCE_S_MAX)
        if not readable or time.perf_counter() - started > RUN_S_MAX:
            raise BrokenRunError(f"{answered} answered, {delivered} delivered of {messages}")
        for source in readable:
            data = source.recv(65_536)
            if not data:
                raise BrokenRunError("the server closed the connection")
            held[source] += len(data)
            if source in publishers:
                count, held[source] = divmod(held[source], answer_bytes)
                answered += count
                if count and sent < messages:
                    source.sendall(request)
                    sent += 1
                continue
            # Every Deliver is as long as the first: only the times in them differ.
            deliver_bytes = deliver_bytes or 5 + int.from_bytes(data[:4], "big")
            count, held[source] = divmod(held[source], deliver_bytes)
            delivered += count
            source.sendall(acknowledgement * count)
    return Elapsed(time.perf_counter() - started, time.process_time() - cpu_started)


def _subscriber(broker: Broker) -> socket.socket:
    connection = open_connection(broker)
    connection.sendall(
        frame(_SUBSCRIBE, "s", QUEUE, headers={"prefetch": str(PREFETCH)}),
    )
    reply = _read_frame(connection)
    if reply[1] != _SUBSCRIBE_ACK:
        raise BrokenRunError(f"Subscribe was answered with {reply!r}")
    return connection


def _publish_ack(queue: str) -> bytes:
    return frame(_PUBLISH_ACK, _ID, queue, headers={"messageId": _ID, "queueName": queue})


def _read_frame(source: socket.socket) -> bytes:
    head = read_exactly(source, 5)
    return read_exactly(source, int.from_bytes(head[:4], "big"))


def _text(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw
