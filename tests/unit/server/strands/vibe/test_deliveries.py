"""What the broker stores of a Publish, and what a Deliver says of a message of any strand."""

import base64

import pytest

from braidmq.broker.delivery.channels import Delivery, Entry
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.broker.topics import (
    MESSAGE_ID_HEADER,
    ORIGIN_BLIP,
    ORIGIN_VIBE,
    Message,
    Topic,
    body_of,
    decode_headers,
    encode_headers,
)
from braidmq.server.strands.vibe.deliveries import Delivering, message_of
from braidmq.wire.vibe.session import Request, Session
from tests.integration.blip import peer as blip
from tests.integration.vibe import peer as vibe
from tests.integration.vibe.peer import DELIVER, V1_0, V1_1, body
from tests.integration.vibe_peer import create, subscribe
from tests.unit.server.strands.vibe.vibe_by_hand import VibeHand, kinds, taken

NOON_US = 1_800_000_000_123_456
NOON = "2027-01-15T08:00:00.123Z"
ROOM = 4096


def session_of(dialect: str, **headers: str) -> Session:
    """Return a session whose peer has connected."""
    session = Session(ROOM)
    session.receive_data(vibe.frame(dialect, body(0, "c", headers=headers)))
    request = session.next_command()
    assert isinstance(request, Request)
    session.negotiate(request.headers)
    session.connected("c", {})
    return session


def message(payload: bytes, origin: int = ORIGIN_VIBE, **kept: str) -> Message:
    topic = Topic("q")
    made = Message(topic, 1, body_of(topic, payload))
    made.id = 7
    made.origin = origin
    made.timestamp_us = NOON_US
    if origin == ORIGIN_VIBE:
        kept = {MESSAGE_ID_HEADER: "m", **kept}
    made.headers = encode_headers(kept)
    return made


def delivered(of: Message, attempts: int = 1, dialect: str = V1_1) -> vibe.Message:
    """Return the frame of a message that is delivered for the *attempts*-th time."""
    entry = Entry(Subscription(of.topic, 1, "", RULES), of, 0)
    entry.attempts = attempts
    frame = Delivering(session_of(dialect), ROOM).frame(Delivery(of, 0, 1, entry), 0)
    assert frame is not None
    head = 4 if dialect == V1_0 else 5
    return vibe.parse(dialect, frame[head:])


RULES = (
    VibeHand()
    .engine.broker.queues.new(Topic("q"), VibeHand().engine.broker.queues.new_policy("q"), 0)
    .rules
)


# Deliver.


@pytest.mark.parametrize("dialect", [V1_0, V1_1])
def test_a_delivery_has_the_publishers_id_payload_and_headers(dialect: str) -> None:
    """The broker adds the number of attempts and the time of the publish."""
    found = delivered(message(b'{ "a" : 1 }', key="value", empty=""), 2, dialect)

    assert (DELIVER, "m", "q", b'{ "a" : 1 }') == found[:4]
    added = {"deliveryAttempts": "2", "timestamp": NOON}
    assert {"key": "value", "empty": "", **added} == found.headers


@pytest.mark.parametrize("dialect", [V1_0, V1_1])
def test_a_delivery_without_headers_has_the_brokers_two(dialect: str) -> None:
    """Most messages take this shorter path; the result is the same."""
    found = delivered(message(b"1"), 3, dialect)

    assert ("m", {"deliveryAttempts": "3", "timestamp": NOON}) == (found.id, found.headers)


def test_messages_of_different_moments_and_attempts_do_not_share_headers() -> None:
    """Headers cached for one message are not sent with the next."""
    delivering = Delivering(session_of(V1_1), ROOM)
    seen = []
    for attempts, timestamp_us in [
        (1, NOON_US),
        (1, NOON_US),
        (2, NOON_US),
        (2, NOON_US + 1000),
    ]:
        of = message(b"1")
        of.timestamp_us = timestamp_us
        entry = Entry(Subscription(of.topic, 1, "", RULES), of, 0)
        entry.attempts = attempts
        frame = delivering.frame(Delivery(of, 0, 1, entry), 0)
        assert frame is not None
        seen.append(vibe.parse(V1_1, frame[5:]).headers)

    assert [("1", NOON), ("1", NOON), ("2", NOON), ("2", "2027-01-15T08:00:00.124Z")] == [
        (each["deliveryAttempts"], each["timestamp"]) for each in seen
    ]


def test_a_timestamp_of_the_publisher_is_kept() -> None:
    """The broker's own is only for messages without one."""
    found = delivered(message(b"1", timestamp="yesterday"))

    assert "yesterday" == found.headers["timestamp"]


def test_json_of_another_strand_is_passed_on_unchanged() -> None:
    """Byte for byte, with the broker's id."""
    found = delivered(message(b' {"a":  [1.0e+2, "\xc3\xa9"]}\n', ORIGIN_BLIP))

    assert ("7", b' {"a":  [1.0e+2, "\xc3\xa9"]}\n') == (found.id, found.payload)
    assert "contentEncoding" not in found.headers


@pytest.mark.parametrize("payload", [b"\xff\xfe", b"{", b"NaN", b"plain text", b"\x00", b"1 2"])
def test_anything_else_becomes_a_string_of_base64(payload: bytes) -> None:
    """With a header that says so."""
    found = delivered(message(payload, ORIGIN_BLIP))

    assert b'"' + base64.b64encode(payload) + b'"' == found.payload
    assert "base64" == found.headers["contentEncoding"]


def test_an_empty_payload_counts_as_absent() -> None:
    """It is not encoded either."""
    found = delivered(message(b"", ORIGIN_BLIP))

    assert (b"", {"deliveryAttempts": "1", "timestamp": NOON}) == (found.payload, found.headers)


def test_a_memory_only_message_is_numbered() -> None:
    """It has no id: its arrival number serves as one, and its time is now."""
    of = message(b"1", ORIGIN_BLIP)
    of.id = 0
    of.arrival = 12
    of.timestamp_us = 0
    frame = Delivering(session_of(V1_1), ROOM).frame(Delivery(of, 0, 0), NOON_US)
    assert frame is not None
    found = vibe.parse(V1_1, frame[5:])

    assert "m-12" == found.id
    assert {"deliveryAttempts": "1", "timestamp": NOON} == found.headers


@pytest.mark.parametrize(("dialect", "fixed"), [(V1_0, 14), (V1_1, 10)])
def test_a_body_may_be_as_large_as_the_limit_and_no_larger(dialect: str, fixed: int) -> None:
    """To the byte, by each dialect's own encoding."""
    added = 2 + (4 + 16 + 1) + (4 + 9 + 24)  # a count and two headers
    room = ROOM - fixed - len("mq") - added
    delivering = Delivering(session_of(dialect), ROOM)
    fits = delivering.frame(Delivery(message(b"1" * room), 0, 1), 0)
    too_large = delivering.frame(Delivery(message(b"1" * (room + 1)), 0, 1), 0)

    assert fits is not None
    assert ROOM == int.from_bytes(fits[:4], "big")
    assert None is too_large


def test_the_limit_holds_before_compression() -> None:
    """The peer applies the same limit after decompression."""
    session = session_of(V1_1, **{"supported-compression": "gzip"})
    delivering = Delivering(session, ROOM)
    fits = delivering.frame(Delivery(message(b"1" * 3000), 0, 1), 0)

    assert fits is not None
    assert len(fits) < 1000
    assert None is delivering.frame(Delivery(message(b"1" * ROOM), 0, 1), 0)


# Publish.


def published(**headers: str) -> Message:
    return message_of(Request(20, "m", "q", b"1", headers), Topic("q"))


@pytest.mark.parametrize(
    ("text", "priority"),
    [
        ("low", 0),
        ("Normal", 1),
        ("HIGH", 2),
        ("cRiTiCaL", 3),
        ("", 1),
        ("urgent", 1),
        ("99", 1),
        ("0", 1),
    ],
)
def test_a_priority_is_a_name(text: str, priority: int) -> None:
    """Case does not matter; any other text means Normal."""
    assert priority == published(priority=text).priority


def test_without_headers_a_message_is_normal_and_has_its_id() -> None:
    """The broker stores the id that the publisher chose."""
    made = published()

    assert (1, {"": "m"}) == (made.priority, decode_headers(made.headers))


def test_headers_of_the_broker_are_not_taken_from_a_publisher() -> None:
    """Attempts, encoding and death are the broker's; all others are kept, even empty ones."""
    made = published(
        deliveryAttempts="9", contentEncoding="gzip", deathReason="x", deaths="2", kept=""
    )

    assert {"": "m", "kept": ""} == decode_headers(made.headers)


# Messages that are too large for a frame.

HUGE = b"1" * (ROOM + 1)


def test_a_message_too_large_for_a_frame_becomes_a_dead_letter() -> None:
    """With the reason `tooLarge`; the message behind it is delivered."""
    hand = VibeHand(body_max=ROOM)
    connection, wire = hand.vibe()
    other, _ = hand.connect()
    connection.receive(subscribe("1", "q"))
    hand.settle()
    other.receive(blip.publish(1, "q", HUGE) + blip.publish(2, "q", b"2"))
    hand.settle()

    assert [b"2"] == [frame.payload for frame in taken(wire) if frame.kind == DELIVER]
    queues = hand.engine.broker.queues.by_name
    assert [0, 1] == [queues[name].waiting() for name in ("q", "dlq.q")]
    assert 1 == hand.engine.broker.stats.dead_lettered


def test_a_dead_letter_too_large_for_a_frame_stays() -> None:
    """It is skipped: neither lost nor in the way of the messages behind it."""
    hand = VibeHand(body_max=ROOM)
    connection, wire = hand.vibe()
    other, _ = hand.connect()
    connection.receive(subscribe("1", "dlq.q", 1))
    hand.settle()
    other.receive(blip.publish(1, "dlq.q", HUGE) + blip.publish(2, "dlq.q", b"2"))
    hand.settle()

    assert [b"2"] == [frame.payload for frame in taken(wire) if frame.kind == DELIVER]
    queue = hand.engine.broker.queues.by_name["dlq.q"]
    assert (1, 1) == (queue.waiting(), queue.in_flight_count())
    assert {} == hand.engine.broker.stats.dropped.by_reason


def test_a_memory_only_message_too_large_for_a_frame_is_counted() -> None:
    """It cannot become a dead letter, but it does not vanish silently."""
    hand = VibeHand(body_max=ROOM)
    connection, wire = hand.vibe()
    other, _ = hand.connect()
    connection.receive(create("1", "q", durable="false"))
    hand.settle()
    connection.receive(subscribe("2", "q"))
    hand.settle()
    kinds(wire)
    other.receive(blip.publish(1, "q", HUGE, 0))
    hand.settle()

    assert [] == kinds(wire)
    assert {"tooLarge": 1} == hand.engine.broker.stats.dropped.by_reason


def test_a_message_too_large_for_a_frame_takes_no_room_in_the_output() -> None:
    """A message larger than the output buffer does not stop the messages behind it."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    other, _ = hand.connect()
    connection.receive(subscribe("1", "q"))
    hand.settle()
    taken(wire)
    other.receive(blip.publish(1, "q", b"1" * (2 << 20)) + blip.publish(2, "q", b"2"))
    hand.settle()

    assert [b"2"] == [frame.payload for frame in taken(wire)]
