"""Load over Blip: frames written by hand, so that no client library is measured.

    u32 length | u8 type | u64 correlation id | payload      big-endian, docs/protocols/blip.md

Each function makes one run against a broker that is new and returns what it took.
"""

import socket
import struct
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

KEY: Final = b"dev-key"
TOPIC: Final = b"bench"
PAYLOAD: Final = b"x" * 100
POLL_BLOCK: Final = 500
"""POLL frames in one write."""

IN_FLIGHT_MAX: Final = 1024
"""The broker's default `delivery.window`: at most so many are with a consumer."""

FENCE_MESSAGES: Final = 5_000
"""A publisher asks for a durable confirmation after so many messages."""

ANSWER_MESSAGES: Final = 256
"""A consumer acknowledges, and polls again, in groups of so many."""

RELAY_AHEAD_MESSAGES: Final = 6_000
"""Published and not yet received; all of it fits the broker's output buffer of 1 MiB."""

_HELLO: Final = 0x01
_AUTH: Final = 0x02
_PUBLISH: Final = 0x03
_SUBSCRIBE: Final = 0x04
_ACK: Final = 0x05
_PING: Final = 0x07
_PONG: Final = 0x08
_POLL: Final = 0x09
_CREDIT: Final = 0x0C

_HEADER: Final = struct.Struct(">IBQ")
_HEADER_LENGTH: Final = 9  # what `length` counts before the payload


def frame(kind: int, correlation_id: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return _HEADER.pack(_HEADER_LENGTH + len(payload), kind, correlation_id) + payload


def publish_frame(correlation_id: int, qos: int, topic: bytes = TOPIC) -> bytes:
    """Return a PUBLISH; a delivery has the same form."""
    head = bytes([qos]) + len(topic).to_bytes(2, "big")
    return frame(_PUBLISH, correlation_id, head + topic + PAYLOAD)


def open_connection(broker: Broker) -> socket.socket:
    """Return a connection that has been let in."""
    connection = connect(broker.blip)
    hello = frame(_HELLO, 1, b"\0\1")
    auth = frame(_AUTH, 2, len(KEY).to_bytes(2, "big") + KEY)
    accepted = frame(_ACK, 1, bytes(8)) + frame(_ACK, 2, bytes(8))
    _ask(connection, hello + auth, accepted)
    return connection


def subscribe(connection: socket.socket, qos: int) -> int:
    """Make a subscription and return its id."""
    request = len(TOPIC).to_bytes(2, "big") + TOPIC + bytes([qos])
    connection.sendall(frame(_SUBSCRIBE, 3, request))
    reply = read_exactly(connection, 21)
    if reply[:13] != frame(_ACK, 3, bytes(8))[:13]:
        raise BrokenRunError(f"SUBSCRIBE was answered with {reply!r}")
    return int.from_bytes(reply[13:], "big")


def publish_each(connection: socket.socket, topics: Sequence[bytes]) -> None:
    """Publish one message durably to each of *topics*."""
    frames = b"".join(publish_frame(7, 1, topic) for topic in topics)
    _ask(connection, frames + frame(_PING, 8), frame(_PONG, 8))


def publish_all(connection: socket.socket, messages: int) -> Elapsed:
    """Publish durably, with fences; return the time until the last fence was answered."""
    assert messages % FENCE_MESSAGES == 0
    fences = messages // FENCE_MESSAGES
    block = publish_frame(7, 1) * FENCE_MESSAGES + frame(_PING, 8)
    replies = ExpectedReplies(frame(_PONG, 8) * fences)
    elapsed = exchange(Requests(block, fences), connection, replies, connection)
    replies.verify()
    return elapsed


def publish(broker: Broker, messages: int) -> Sample:
    """Durable publishing, until the last fence says that everything is committed."""
    with open_connection(broker) as connection:
        return broker.measure(messages, lambda: publish_all(connection, messages))


def poll(broker: Broker, messages: int) -> Sample:
    """Hand out messages one by one; nothing is acknowledged, so the window must hold them."""
    with open_connection(broker) as connection:
        polled = subscribe(connection, 1)
        publish_all(connection, messages)
        tags = range(polled + 1, polled + 1 + messages)
        request = frame(_POLL, 9, polled.to_bytes(8, "big"))
        delivery = len(publish_frame(0, 1))
        requests = Requests(request * POLL_BLOCK, messages // POLL_BLOCK)
        replies = ExpectedReplies(b"".join(publish_frame(tag, 1) for tag in tags))

        def allowed(received_bytes: int) -> int:
            ahead = received_bytes // delivery + IN_FLIGHT_MAX
            return min(requests.goal, ahead * len(request))

        sample = broker.measure(
            messages, lambda: exchange(requests, connection, replies, connection, allowed)
        )
        replies.verify()
        return sample


def poll_and_credit(broker: Broker, messages: int) -> tuple[Sample, Sample]:
    """Consume a backlog twice, each message acknowledged: asked for by POLL, and by CREDIT."""
    with open_connection(broker) as connection:
        polled = subscribe(connection, 1)
        credited = subscribe(connection, 1)
        publish_all(connection, messages)
        # Nothing else was recorded meanwhile, so that the ids are known beforehand.
        tags = range(credited + 1, credited + 1 + messages)
        by_poll = broker.measure(messages, lambda: _poll(connection, polled, tags))
        by_credit = broker.measure(messages, lambda: _credit(connection, credited, tags))
        return by_poll, by_credit


def relay(broker: Broker, messages: int) -> Sample:
    """QoS 0 from one connection to another, until the last message has arrived."""
    with open_connection(broker) as publisher, open_connection(broker) as subscriber:
        subscription = subscribe(subscriber, 0)
        credit = struct.pack(">QI", subscription, messages)
        _ask(subscriber, frame(_CREDIT, 4, credit) + frame(_PING, 5), frame(_PONG, 5))
        request = publish_frame(6, 0)
        delivery = publish_frame(4, 0)
        requests = Requests(request * 100, messages // 100)
        replies = ExpectedReplies(delivery * messages)

        def allowed(received_bytes: int) -> int:
            ahead = received_bytes // len(delivery) + RELAY_AHEAD_MESSAGES
            return min(requests.goal, ahead * len(request))

        def run() -> Elapsed:
            return exchange(requests, publisher, replies, subscriber, allowed)

        sample = broker.measure(messages, run)
        replies.verify()
        return sample


def _poll(connection: socket.socket, subscription: int, tags: range) -> Elapsed:
    target = subscription.to_bytes(8, "big")
    poll = frame(_POLL, 9, target)
    pairs = [frame(_ACK, tag, target) + poll for tag in tags]
    return _consume(connection, poll * IN_FLIGHT_MAX, pairs, tags)


def _credit(connection: socket.socket, subscription: int, tags: range) -> Elapsed:
    first = frame(_CREDIT, 9, struct.pack(">QI", subscription, len(tags)))
    target = subscription.to_bytes(8, "big")
    acks = [frame(_ACK, tag, target) for tag in tags]
    return _consume(connection, first, acks, tags)


def _consume(
    connection: socket.socket, first: bytes, answers: list[bytes], tags: range
) -> Elapsed:
    """Send *first*, then each message's answer once it is there, then a fence."""
    delivery = len(publish_frame(0, 1))
    requests = Requests(first + b"".join(answers) + frame(_PING, 9))
    replies = ExpectedReplies(b"".join(publish_frame(tag, 1) for tag in tags) + frame(_PONG, 9))

    def allowed(received_bytes: int) -> int:
        received = received_bytes // delivery
        if received == len(tags):
            return requests.goal
        answered = received // ANSWER_MESSAGES * ANSWER_MESSAGES
        return len(first) + answered * len(answers[0])

    elapsed = exchange(requests, connection, replies, connection, allowed)
    replies.verify()
    return elapsed


def _ask(connection: socket.socket, request: bytes, expected: bytes) -> None:
    connection.sendall(request)
    reply = read_exactly(connection, len(expected))
    if reply != expected:
        raise BrokenRunError(f"{request!r} was answered with {reply!r}")
