"""Load over Vibe 1.1: frames are built before the clock starts, so that no client is measured.

Each function makes one run against a new broker and returns its sample.
"""

import select
import socket
from typing import Final

from bench.servers import Broker
from bench.streams import (
    RUN_S_MAX,
    SILENCE_S_MAX,
    BrokenRunError,
    Clock,
    Elapsed,
    ExpectedReplies,
    Requests,
    Sample,
    connect,
    exchange,
    read_exactly,
)
from braidmq.wire.vibe import frames
from braidmq.wire.vibe import messages as wire

QUEUE: Final = "bench"
PAYLOAD: Final = b'"' + b"x" * 126 + b'"'
"""128 bytes of JSON, as the original's own load test sends."""

PUBLISHERS: Final = 4
SUBSCRIBERS: Final = 2
PREFETCH: Final = 1000
BLOCK_MESSAGES: Final = 500
QUEUES_BLOCK: Final = 1000

_ID: Final = "m"


def frame(
    kind: int,
    message_id: str,
    queue: str = "",
    payload: bytes = b"",
    headers: dict[str, str] | None = None,
) -> bytes:
    """Return one frame."""
    body = wire.write_body(kind, message_id, queue, payload, headers, with_errors=False)
    return frames.encode(frames.DIALECT_1_1, body)


def open_connection(broker: Broker) -> socket.socket:
    """Return an authenticated connection."""
    connection = connect(broker.vibe)
    _ask(connection, wire.CONNECT_ACK, wire.CONNECT, {"authToken": "dev-key"})
    return connection


def publish(broker: Broker, messages: int) -> Sample:
    """Publish without waiting, until every message is confirmed."""
    with open_connection(broker) as connection:
        requests = Requests(
            frame(wire.PUBLISH, _ID, QUEUE, PAYLOAD) * BLOCK_MESSAGES,
            messages // BLOCK_MESSAGES,
        )
        replies = ExpectedReplies(_publish_ack(QUEUE) * messages)
        return broker.measure(messages, lambda: exchange(requests, connection, replies))


def load(broker: Broker, messages: int) -> Sample:
    """Run the original's load test: publishers that wait for each reply, and subscribers."""
    subscribers = [_subscriber(broker) for _ in range(SUBSCRIBERS)]
    publishers = [open_connection(broker) for _ in range(PUBLISHERS)]
    try:
        return broker.measure(messages, lambda: _load(publishers, subscribers, messages))
    finally:
        for connection in (*publishers, *subscribers):
            connection.close()


def fill_queues(broker: Broker, count: int) -> None:
    """Publish one message to each of *count* queues, and wait until all are durable."""
    with open_connection(broker) as connection:
        for first in range(0, count, QUEUES_BLOCK):
            names = [f"queue-{n}" for n in range(first, min(first + QUEUES_BLOCK, count))]
            requests = Requests(b"".join(frame(wire.PUBLISH, _ID, n, PAYLOAD) for n in names))
            replies = ExpectedReplies(b"".join(_publish_ack(n) for n in names))
            exchange(requests, connection, replies)


def _load(
    publishers: list[socket.socket], subscribers: list[socket.socket], messages: int
) -> Elapsed:
    request = frame(wire.PUBLISH, _ID, QUEUE, PAYLOAD)
    answer_bytes = len(_publish_ack(QUEUE))
    acknowledgement = frame(wire.ACK, _ID)
    deliver_bytes = 0
    held = dict.fromkeys((*publishers, *subscribers), 0)  # bytes of frames not yet whole
    sent = answered = delivered = 0
    clock = Clock()
    for publisher in publishers:
        publisher.sendall(request)
        sent += 1
    while answered < messages or delivered < messages:
        readable, _, _ = select.select(list(held), [], [], SILENCE_S_MAX)
        if not readable or clock.elapsed().seconds > RUN_S_MAX:
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
            # Every Deliver has the same length: only the times in them differ. 5 bytes are
            # the head of a frame: the length of the body, and the flags.
            deliver_bytes = deliver_bytes or 5 + int.from_bytes(data[:4], "big")
            count, held[source] = divmod(held[source], deliver_bytes)
            delivered += count
            source.sendall(acknowledgement * count)
    return clock.elapsed()


def _subscriber(broker: Broker) -> socket.socket:
    connection = open_connection(broker)
    _ask(connection, wire.SUBSCRIBE_ACK, wire.SUBSCRIBE, {"prefetch": str(PREFETCH)}, QUEUE)
    return connection


def _publish_ack(queue: str) -> bytes:
    return frame(wire.PUBLISH_ACK, _ID, queue, headers={"messageId": _ID, "queueName": queue})


def _ask(
    connection: socket.socket,
    expected: int,
    kind: int,
    headers: dict[str, str],
    queue: str = "",
) -> None:
    connection.sendall(frame(kind, "r", queue, headers=headers))
    head = read_exactly(connection, 5)
    reply = read_exactly(connection, int.from_bytes(head[:4], "big"))
    if reply[1] != expected:
        raise BrokenRunError(f"message type {kind} was answered with {reply!r}")
