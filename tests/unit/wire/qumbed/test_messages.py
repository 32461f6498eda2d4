"""Reading and writing the JSON of Qumbed frames."""

import json
from base64 import b64encode
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.qumbed import frames, messages
from braidmq.wire.qumbed.layout import BadFrameError
from braidmq.wire.qumbed.messages import (
    Ack,
    Discovery,
    Error,
    Frame,
    Message,
    Publish,
    Subscribe,
    Unsubscribe,
    quote,
    read_frame,
)
from braidmq.wire.qumbed.public_keys import LOW_ORDER_KEYS
from tests.unit.wire.qumbed.fields import fields_of
from tests.unit.wire.vectors import vectors

VECTORS = vectors("qumbed")
WIRE = {row["name"]: bytes.fromhex(row["hex"]) for row in VECTORS["frames"]}
SENDER = bytes.fromhex(VECTORS["sender_public"])
RECIPIENT = bytes.fromhex(VECTORS["recipient_public"])
SEALED = bytes.fromhex(VECTORS["sealed"])
TOPIC, SCHEMA = "sensors/temp", "sensor.Temperature"

WRITTEN: dict[str, Callable[[], bytes]] = {
    "publish": lambda: messages.publish(TOPIC, SEALED, SCHEMA, RECIPIENT[:8], SENDER),
    "subscribe": lambda: messages.subscribe(TOPIC, SCHEMA, RECIPIENT),
    "unsubscribe": lambda: messages.unsubscribe(TOPIC),
    "message": lambda: messages.message(quote(TOPIC), SEALED, SENDER),
    "ack": messages.ack,
    "error": lambda: messages.error("SCHEMA_UNKNOWN", "unknown schema: foo.Bar"),
    "discovery": lambda: messages.discovery(
        "alice", [TOPIC, "alerts"], RECIPIENT, "192.168.1.5:6121"
    ),
}
READ: dict[str, tuple[type[Frame], dict[str, object]]] = {
    "publish": (
        Publish,
        {
            "kind": 1,
            "topic": TOPIC,
            "payload": SEALED,
            "schema_id": SCHEMA,
            "recipient_key_id": RECIPIENT[:8],
            "sender_public_key": SENDER,
        },
    ),
    "subscribe": (
        Subscribe,
        {"kind": 2, "topic": TOPIC, "schema_id": SCHEMA, "public_key": RECIPIENT},
    ),
    "unsubscribe": (Unsubscribe, {"kind": 3, "topic": TOPIC}),
    "message": (
        Message,
        {
            "kind": 4,
            "topic": TOPIC,
            "encrypted_payload": SEALED,
            "sender_key_id": SENDER[:8],
            "sender_public_key": SENDER,
            "schema_id": "",
            "timestamp_ms": 0,
        },
    ),
    "ack": (
        Ack,
        {"kind": 5, "message_id": "", "ok": True, "delivered": None, "timestamp_ms": 0},
    ),
    "error": (
        Error,
        {"kind": 6, "code": "SCHEMA_UNKNOWN", "message": "unknown schema: foo.Bar"},
    ),
    "discovery": (
        Discovery,
        {
            "kind": 7,
            "node_id": "alice",
            "topics": [TOPIC, "alerts"],
            "public_key": RECIPIENT,
            "addr": "192.168.1.5:6121",
            "asks_times": False,
        },
    ),
}


def test_a_publisher_that_asks_is_told_the_time() -> None:
    """Both are keys that other peers ignore; without the question the Ack is as it was."""
    asked = messages.discovery("", (), b"", "", frame_id="1", asks_times=True)
    told = messages.ack("m", 2, 1_700_000_000_123)

    assert b'"addr":"","receipts":"timestamp","id":"1"}}' in asked
    assert told.endswith(b'"ok":true,"delivered":2,"timestamp_ms":1700000000123}}')
    (question, answer) = (read_frame(frame[4:]) for frame in (asked, told))
    assert isinstance(question, Discovery)
    assert isinstance(answer, Ack)
    assert (True, 1_700_000_000_123) == (question.asks_times, answer.timestamp_ms)


def read(wire: bytes) -> Frame:
    """Read one whole frame."""
    assert len(wire) - 4 == int.from_bytes(wire[:4], "big")
    return read_frame(wire[4:])


def problem(**fields: object) -> tuple[str, str]:
    """Return why a frame with these keys is refused, and under which id."""
    with pytest.raises(BadFrameError) as caught:
        read_frame(json.dumps(fields).encode())
    return str(caught.value), caught.value.id


def base64(data: bytes) -> str:
    """Return bytes as they are encoded on the wire."""
    return b64encode(data).decode()


@pytest.mark.parametrize("name", WIRE)
def test_golden_frames_are_written(name: str) -> None:
    """Byte for byte: field order, spacing, base64."""
    assert WIRE[name] == WRITTEN[name]()


@pytest.mark.parametrize("name", WIRE)
def test_golden_frames_are_read(name: str) -> None:
    """Field by field."""
    kind, fields = READ[name]
    frame = read(WIRE[name])

    assert kind is type(frame)
    assert {"id": "", "key": "", **fields} == fields_of(frame)


def test_extra_keys_follow_the_original_ones() -> None:
    """A client of the original protocol, which ignores unknown keys, reads the same frames."""
    publish = messages.publish("a", b"x", frame_id="n1", key="bk_1")
    message = messages.message(
        quote("a"), b"x", SENDER, message_id="7", schema_id=quote("s"), timestamp_ms=9
    )

    assert (
        b'{"t":1,"p":{"topic":"a","payload":"eA==","schema_id":"","recipient_key_id":null,'
        b'"sender_public_key":null,"id":"n1"},"k":"bk_1"}'
    ) == publish[4:]
    assert message.endswith(b'htHHw=","id":"7","schema_id":"s","timestamp_ms":9}}')
    assert b'{"t":5,"a":{"message_id":"7","ok":true,"delivered":0}}' == messages.ack("7", 0)[4:]
    assert (
        b'{"t":6,"e":{"code":"C","message":"m","id":"n1"}}'
        == messages.error("C", "m", "n1")[4:]
    )


def test_extra_keys_are_read_back() -> None:
    """Ids, keys, times and counts."""
    subscribe = read(messages.subscribe("a", "", RECIPIENT, frame_id="n2", key="k2"))
    unsubscribe = read(messages.unsubscribe("a", frame_id="n3", key="k3"))
    discovery = read(messages.discovery("", [], b"", "", frame_id="n4", key="k4"))
    message = read(
        messages.message(
            quote("a"), b"x", SENDER, message_id="7", schema_id=quote("s"), timestamp_ms=9
        )
    )
    ack = read(messages.ack("n1", 3))

    assert ("n2", "k2") == (subscribe.id, subscribe.key)
    assert ("n3", "k3") == (unsubscribe.id, unsubscribe.key)
    assert ("n4", "k4") == (discovery.id, discovery.key)
    assert isinstance(message, Message)
    assert ("7", "s", 9) == (message.id, message.schema_id, message.timestamp_ms)
    assert isinstance(ack, Ack)
    assert ("n1", 3) == (ack.message_id, ack.delivered)
    assert "n1" == read(messages.error("C", "m", "n1")).id


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(
    texts.filter(bool),
    st.binary(max_size=60),
    texts,
    st.sampled_from([(b"", b""), (RECIPIENT[:8], SENDER)]),
    st.tuples(texts, texts),
)
def test_any_publish_is_read_as_it_was_written(
    topic: str,
    payload: bytes,
    schema_id: str,
    keys: tuple[bytes, bytes],
    extra: tuple[str, str],
) -> None:
    """Quotes, control characters, any alphabet, any bytes."""
    recipient, sender = keys
    frame_id, key = extra
    frame = read(
        messages.publish(
            topic, payload, schema_id, recipient, sender, frame_id=frame_id, key=key
        )
    )

    assert {
        "kind": messages.PUBLISH,
        "id": frame_id,
        "key": key,
        "topic": topic,
        "payload": payload,
        "schema_id": schema_id,
        "recipient_key_id": recipient,
        "sender_public_key": sender,
    } == fields_of(frame)


@given(texts.filter(bool), st.binary(max_size=60), texts)
def test_a_message_is_never_longer_than_predicted(
    topic: str, payload: bytes, schema_id: str
) -> None:
    """With the largest id and time the prediction is exact, unless the payload is empty."""
    wire = messages.message(
        quote(topic),
        payload,
        SENDER,
        message_id=str(2**64 - 1),
        schema_id=quote(schema_id),
        timestamp_ms=2**63 - 1,
    )
    predicted = messages.message_bytes(quote(topic), len(payload), quote(schema_id))

    assert json.loads(wire[4:])["m"]["topic"] == topic
    assert predicted == len(wire) - 4 + (0 if payload else 2)


@pytest.mark.parametrize("kind", [0, 8, 99, -1, 2**70])
def test_an_unknown_type_is_refused(kind: int) -> None:
    """There are seven types."""
    assert ("unknown frame type", "n") == problem(t=kind, p={"topic": "a", "id": "n"})


@pytest.mark.parametrize("number", [b"1.0", b"1e0", b"1.5"])
def test_a_type_must_be_an_integer(number: bytes) -> None:
    """The original implementation refuses fractions and exponents too."""
    with pytest.raises(BadFrameError, match="not an integer"):
        read_frame(b'{"t":' + number + b',"p":{"topic":"a"}}')


@pytest.mark.parametrize("kind", range(1, 8))
def test_a_type_without_its_object_is_refused(kind: int) -> None:
    """Another type's object does not count, nor does one of an earlier frame."""
    other = {"u": {"topic": "a"}} if kind != messages.UNSUBSCRIBE else {"s": {"topic": "a"}}

    assert ("the object of the frame's type is missing", "") == problem(t=kind, **other)
    assert ("the object of the frame's type is missing", "") == problem(t=kind)


WITH_A_TOPIC = [
    (1, "p", {}),
    (2, "s", {"public_key": base64(RECIPIENT)}),
    (3, "u", {}),
]


@pytest.mark.parametrize(("kind", "name", "rest"), WITH_A_TOPIC)
@pytest.mark.parametrize("topic", ["", None])
def test_a_topic_must_not_be_empty(
    kind: int, name: str, rest: dict[str, object], topic: str | None
) -> None:
    """Null, absent and empty are all refused."""
    inner = {**rest, "id": "n", "topic": topic}
    absent = {**rest, "id": "n"}

    assert ("topic is empty", "n") == problem(t=kind, **{name: inner})
    assert ("topic is empty", "n") == problem(t=kind, **{name: absent})


@pytest.mark.parametrize(("kind", "name", "rest"), WITH_A_TOPIC)
@pytest.mark.parametrize("letter", ["a", "é", "😀"])
def test_a_topic_has_at_most_65535_bytes(
    kind: int, name: str, rest: dict[str, object], letter: str
) -> None:
    """Of UTF-8, however they are escaped."""
    size = len(letter.encode())
    longest = letter * (65_535 // size) + "x" * (65_535 % size)
    frame = read_frame(json.dumps({"t": kind, name: {**rest, "topic": longest}}).encode())

    assert longest == fields_of(frame)["topic"]
    assert ("topic is longer than 65535 bytes", "") == problem(
        t=kind, **{name: {**rest, "topic": longest + "x"}}
    )


def test_an_id_has_at_most_256_bytes() -> None:
    """It is kept until the frame is answered; a longer one is not echoed."""
    longest = "é" * 127 + "xx"

    assert longest == read(messages.publish("a", b"", frame_id=longest)).id
    assert ("id is longer than 256 bytes", "") == problem(
        t=1, p={"topic": "a", "id": longest + "x"}
    )


@pytest.mark.parametrize("size", [1, 7, 9, 32])
def test_a_recipient_key_id_has_8_bytes_or_is_empty(size: int) -> None:
    """Any other size is refused."""
    refused = {"topic": "a", "recipient_key_id": base64(bytes(size)), "id": "n"}
    empty = read_frame(b'{"t":1,"p":{"topic":"a","recipient_key_id":""}}')

    assert ("recipient_key_id is not 8 bytes", "n") == problem(t=1, p=refused)
    assert b"" == fields_of(empty)["recipient_key_id"]


WITH_A_KEY = [
    (1, "p", "sender_public_key"),
    (2, "s", "public_key"),
    (7, "d", "public_key"),
]


@pytest.mark.parametrize(("kind", "name", "field"), WITH_A_KEY)
@pytest.mark.parametrize("size", [1, 31, 33])
def test_a_public_key_has_32_bytes(kind: int, name: str, field: str, size: int) -> None:
    """In every frame that has one."""
    inner = {"topic": "a", "id": "n", field: base64(b"\x09" * size)}

    assert (f"{field} is not 32 bytes", "n") == problem(t=kind, **{name: inner})


@pytest.mark.parametrize(("kind", "name", "field"), WITH_A_KEY)
@pytest.mark.parametrize("key", sorted(LOW_ORDER_KEYS), ids=bytes.hex)
def test_a_public_key_is_not_of_low_order(kind: int, name: str, field: str, key: bytes) -> None:
    """In every frame that has one."""
    inner = {"topic": "a", "id": "n", field: base64(key)}

    assert (f"{field} is of low order", "n") == problem(t=kind, **{name: inner})


def test_only_a_subscriber_must_have_a_key() -> None:
    """Plain payloads have no sender key, and a Discovery needs none."""
    publish = read_frame(b'{"t":1,"p":{"topic":"a"}}')
    discovery = read_frame(b'{"t":7,"d":{}}')

    assert b"" == fields_of(publish)["sender_public_key"]
    assert b"" == fields_of(discovery)["public_key"]
    assert ("public_key is not 32 bytes", "") == problem(t=2, s={"topic": "a"})


def test_the_keys_of_a_message_are_not_checked() -> None:
    """A relay that forwards an invalid key must not end its client's stream."""
    frame = read_frame(b'{"t":4,"m":{"sender_public_key":"eA==","sender_key_id":"eA=="}}')

    assert b"x" == fields_of(frame)["sender_public_key"]


def test_a_long_error_text_is_truncated() -> None:
    """Lone surrogates are replaced."""
    frame = read(messages.error("C", "x" * 1000))
    odd = read(messages.error("C", "a\ud800b"))

    assert 200 == len(fields_of(frame)["message"])
    assert "a?b" == fields_of(odd)["message"]


def test_a_discovery_lists_at_most_a_thousand_topics() -> None:
    """The first ones, in order."""
    topics = [f"topic/{number}" for number in range(1_001)]
    frame = read(messages.discovery("n", topics, SENDER, "h:1"))

    assert topics[:1_000] == fields_of(frame)["topics"]


def test_a_discovery_fits_into_a_frame() -> None:
    """With long names it lists fewer topics; the other fields are complete."""
    topics = [f"{number:04}" + "\x01" * 65_531 for number in range(10)]
    wire = messages.discovery("n", topics, SENDER, "h:1")
    frame = read(wire)

    assert len(wire) - 4 <= frames.FRAME_MAX
    assert topics[:2] == fields_of(frame)["topics"]
    assert "h:1" == fields_of(frame)["addr"]
