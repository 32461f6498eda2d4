"""Load over Blip: frames are built before the clock starts, so that no client is measured.

Each function makes one run against a new broker and returns its sample.
"""

import socket
from collections.abc import Sequence
from typing import Final

from bench.servers import Broker
from bench.streams import (
    BrokenRunError,
    Elapsed,
    ExpectedReplies,
    Requests,
    Sample,
    connect,
    exchange,
    read_exactly,
)
from braidmq.wire.blip import frames
from braidmq.wire.blip.messages import (
    encode_ack,
    encode_auth,
    encode_credit,
    encode_hello,
    encode_poll,
    encode_publish,
    encode_subscribe,
)

KEY: Final = "dev-key"
TOPIC: Final = "bench"
PAYLOAD: Final = b"x" * 100
POLL_BLOCK: Final = 500
"""POLL frames in one write."""

IN_FLIGHT_MAX: Final = 1024
"""The broker's default `delivery.window`, which bounds the deliveries in flight."""

FENCE_MESSAGES: Final = 5_000
"""Messages after which a publisher sends a PING for a durable confirmation."""

ANSWER_MESSAGES: Final = 256
"""Messages per group that a consumer acknowledges, and polls for, together."""

RELAY_AHEAD_MESSAGES: Final = 6_000
"""Published but not yet received; all of it fits the broker's output buffer of 1 MiB."""


def publish_frame(correlation_id: int, qos: int, topic: str = TOPIC) -> bytes:
    """Return a PUBLISH; a delivery has the same form."""
    return encode_publish(correlation_id, qos, topic, PAYLOAD)


def ping(correlation_id: int) -> bytes:
    """Return a PING."""
    return frames.encode(frames.PING, correlation_id)


def pong(correlation_id: int) -> bytes:
    """Return a PONG."""
    return frames.encode(frames.PONG, correlation_id)


def open_connection(broker: Broker) -> socket.socket:
    """Return an authenticated connection."""
    connection = connect(broker.blip)
    _ask(connection, encode_hello(1) + encode_auth(2, KEY), encode_ack(1, 0) + encode_ack(2, 0))
    return connection


def subscribe(connection: socket.socket, qos: int) -> int:
    """Make a subscription and return its id."""
    connection.sendall(encode_subscribe(3, TOPIC, qos))
    expected = encode_ack(3, 0)  # but for the id at its end
    reply = read_exactly(connection, len(expected))
    if reply[:-8] != expected[:-8]:
        raise BrokenRunError(f"SUBSCRIBE was answered with {reply!r}")
    return int.from_bytes(reply[-8:], "big")


def publish_each(connection: socket.socket, topics: Sequence[str]) -> None:
    """Publish one message durably to each of *topics*."""
    published = b"".join(publish_frame(7, 1, topic) for topic in topics)
    _ask(connection, published + ping(8), pong(8))


def publish_all(connection: socket.socket, messages: int) -> Elapsed:
    """Publish durably, with PINGs in between; return the time until the last PONG."""
    assert messages % FENCE_MESSAGES == 0
    fences = messages // FENCE_MESSAGES
    block = publish_frame(7, 1) * FENCE_MESSAGES + ping(8)
    replies = ExpectedReplies(pong(8) * fences)
    return exchange(Requests(block, fences), connection, replies)


def publish(broker: Broker, messages: int) -> Sample:
    """Publish durably until the last PONG confirms that everything is committed."""
    with open_connection(broker) as connection:
        return broker.measure(messages, lambda: publish_all(connection, messages))


def poll(broker: Broker, messages: int) -> Sample:
    """Poll messages one by one, without acknowledging: the window must hold them all."""
    with open_connection(broker) as connection:
        polled = subscribe(connection, 1)
        publish_all(connection, messages)
        tags = range(polled + 1, polled + 1 + messages)
        request = encode_poll(9, polled)
        delivery = len(publish_frame(0, 1))
        requests = Requests(request * POLL_BLOCK, messages // POLL_BLOCK)
        replies = ExpectedReplies(b"".join(publish_frame(tag, 1) for tag in tags))
        allowed = requests.ahead_of(
            IN_FLIGHT_MAX, request_bytes=len(request), reply_bytes=delivery
        )
        return broker.measure(
            messages, lambda: exchange(requests, connection, replies, allowed=allowed)
        )


def poll_and_credit(broker: Broker, messages: int) -> tuple[Sample, Sample]:
    """Consume a backlog twice, acknowledging each message: by POLL, then by CREDIT."""
    with open_connection(broker) as connection:
        polled = subscribe(connection, 1)
        credited = subscribe(connection, 1)
        publish_all(connection, messages)
        # Nothing else is written to the log meanwhile, so the ids are known in advance.
        tags = range(credited + 1, credited + 1 + messages)
        by_poll = broker.measure(messages, lambda: _poll(connection, polled, tags))
        by_credit = broker.measure(messages, lambda: _credit(connection, credited, tags))
        return by_poll, by_credit


def relay(broker: Broker, messages: int) -> Sample:
    """Relay QoS 0 from one connection to another, until the last message arrives."""
    with open_connection(broker) as publisher, open_connection(broker) as subscriber:
        subscription = subscribe(subscriber, 0)
        _ask(subscriber, encode_credit(4, subscription, messages) + ping(5), pong(5))
        request = publish_frame(6, 0)
        delivery = publish_frame(4, 0)
        requests = Requests(request * 100, messages // 100)
        replies = ExpectedReplies(delivery * messages)
        allowed = requests.ahead_of(
            RELAY_AHEAD_MESSAGES, request_bytes=len(request), reply_bytes=len(delivery)
        )
        return broker.measure(
            messages, lambda: exchange(requests, publisher, replies, subscriber, allowed)
        )


def _poll(connection: socket.socket, subscription: int, tags: range) -> Elapsed:
    poll = encode_poll(9, subscription)
    pairs = [encode_ack(tag, subscription) + poll for tag in tags]
    return _consume(connection, poll * IN_FLIGHT_MAX, pairs, tags)


def _credit(connection: socket.socket, subscription: int, tags: range) -> Elapsed:
    first = encode_credit(9, subscription, len(tags))
    acks = [encode_ack(tag, subscription) for tag in tags]
    return _consume(connection, first, acks, tags)


def _consume(
    connection: socket.socket, first: bytes, answers: list[bytes], tags: range
) -> Elapsed:
    """Send *first*, then the answer to each message that arrives, then a PING."""
    delivery = len(publish_frame(0, 1))
    requests = Requests(first + b"".join(answers) + ping(9))
    replies = ExpectedReplies(b"".join(publish_frame(tag, 1) for tag in tags) + pong(9))

    def allowed(received_bytes: int) -> int:
        received = received_bytes // delivery
        if received == len(tags):
            return requests.goal
        answered = received // ANSWER_MESSAGES * ANSWER_MESSAGES
        return len(first) + answered * len(answers[0])

    return exchange(requests, connection, replies, allowed=allowed)


def _ask(connection: socket.socket, request: bytes, expected: bytes) -> None:
    connection.sendall(request)
    reply = read_exactly(connection, len(expected))
    if reply != expected:
        raise BrokenRunError(f"{request!r} was answered with {reply!r}")
