"""The bytes of every record type."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import UnknownRecordError
from braidmq.base.records import KIND_NAMES
from braidmq.broker import records
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.policy import Policy, of_values
from braidmq.broker.topics import ORIGIN_SPARK, Message, Topic, decode_headers, encode_headers
from tests.unit.broker.drive import body_of, message_of

MESSAGE = (
    "01 01 02 03 e803000000000000 d007000000000000 06000000"
    " 0100 6b 0100 76"  # headers: k, v
    " 0001 61 6869"  # topic a, payload hi
)
BARE_MESSAGE = "01 01 01 01 0100000000000000 0000000000000000 00000000 0002 c3a4"
DEAD_LETTER = (
    "02 01 02 03 e803000000000000 0000000000000000 06000000"
    " 0900000000000000 0a00000000000000 0c00000000000000"
    " 0100 6b 0100 76"
    " 0005 646c712e61 6869"  # topic dlq.a
)
SUBSCRIBE = "03 01 e803000000000000 0300 616461 6f7264657273"
UNSUBSCRIBE = "04 02 0900000000000000"
PROGRESS = (
    "05 02000000"
    " 0900000000000000 0c00000000000000 05000000 02000000"
    " 0900000000000000 0a00000000000000 0b00000000000000 0c00000000000000"
    " 01000000 0b00000000000000 03000000"
    " 0a00000000000000 0000000000000000 00000000 00000000 00000000"
)
DECLARE = (
    "06 e803000000000000 03 02 03 e803000000000000 0087930300000000 05000000"
    " 0500 6772617665 c3b672646572 73"  # dead letters to grave, of örders
)
DELETE = "07 0900000000000000"
FOLLOW = (
    "08 e803000000000000"
    " 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
    " 0400 6164c3a4 c3b672646572 73"  # adä, örders
)
SINK_ROW = (
    "09 01 02 05 e803000000000000 d007000000000000 06000000"
    " 0100 6b 0100 76"  # headers: k, v
    " 0001 61 6869"  # topic a, payload hi
)
INTENT = (
    "0a 0700000000000000 0400 6164c3a4 0200 7131 0000"  # batch 7, adä, q1, no sink
    " 02000000"
    " 000102030405060708090a0b0c0d0e0f e803000000000000"
    " 101112131415161718191a1b1c1d1e1f 0000000000000000"
)
DONE = "0b 0900000000000000"
CURSOR = "0c 00 0900000000000000 0c00000000000000 0400 6164c3a4 6e69676874"
REMOVED_CURSOR = "0c 01 0900000000000000 0c00000000000000 0400 6164c3a4 6e69676874"
FIRST_MESSAGE = (
    "0d 01 02 03 e803000000000000 d007000000000000 06000000"
    " 000102030405060708090a0b0c0d0e0f"  # account
    " 0100 6b 0100 76"  # headers: k, v
    " 0001 61 6869"  # topic a, payload hi
)
DECLARE_BY = f"0e 000102030405060708090a0b0c0d0e0f {DECLARE}"
END_TOPIC = "0f c3b672646572 73"  # örders
CLOCK = "10 d8ffffffffffffff e803000000000000"  # back by 40 us
GAP = "7f 0900000000000000 0b00000000000000"


ACCOUNT = bytes(range(16))


def progress_on_record() -> dict[int, Progress]:
    made = Progress()
    made.handed_id = 12
    made.settled_count = 5
    made.ranges = [(9, 10), (11, 12)]
    made.attempts = {11: 3}
    return {9: made, 10: Progress()}


def as_rows(progress: dict[int, Progress]) -> dict[int, tuple[object, ...]]:
    return {
        i: (made.handed_id, made.settled_count, made.ranges, made.attempts)
        for i, made in progress.items()
    }


def test_golden_bytes_of_a_step_of_the_clock() -> None:
    """The step has a sign; the index keeps nothing of it."""
    record = bytes.fromhex(CLOCK)

    assert record == records.encode_clock(-40, 1000)
    assert (-40, 1000) == records.read_clock(record)
    assert b"" == records.describe(record).topic


def test_golden_bytes_of_a_message() -> None:
    """The message encodes to the golden bytes, and they decode to the message."""
    block = encode_headers({"k": "v"})
    message = message_of(
        body_of("a", b"hi"), priority=2, origin=3, timestamp_us=1000, block=block
    )
    message.expires_us = 2000
    record = records.encode_message(message)
    read = records.StoredMessage(bytes.fromhex(MESSAGE))

    assert bytes.fromhex(MESSAGE) == record
    assert (1, 2, 3) == (read.qos, read.priority, read.origin)
    assert (1000, 2000) == (read.timestamp_us, read.expires_us)
    assert (block, "a", body_of("a", b"hi")) == (read.headers, read.topic, read.body)
    assert 0 == read.settles_subscription


def test_golden_bytes_of_a_message_without_headers_and_payload() -> None:
    """The record ends with the topic."""
    record = records.encode_message(message_of(body_of("ä")))
    read = records.StoredMessage(record)

    assert bytes.fromhex(BARE_MESSAGE) == record
    assert (b"", "ä", body_of("ä")) == (read.headers, read.topic, read.body)


def test_the_plain_encoder_matches_the_general_one() -> None:
    """It reuses the previous header; any field may change from one message to the next."""
    encoder = records.MessageEncoder()
    facts = [(1, 1, 5, 0), (1, 1, 5, 0), (2, 1, 5, 0), (2, 3, 5, 0), (2, 3, 6, 0), (2, 3, 6, 9)]
    for priority, origin, now_us, expires_us in facts:
        message = message_of(
            body_of("a", b"hi"), priority=priority, origin=origin, timestamp_us=now_us
        )
        message.expires_us = expires_us
        expected = records.encode_message(message)

        assert expected == encoder.encode_plain(message, now_us)


@pytest.mark.parametrize(
    ("record", "headers_at", "body_at"),
    [(MESSAGE, 24, 30), (BARE_MESSAGE, 24, 24), (DEAD_LETTER, 48, 54), (FIRST_MESSAGE, 40, 46)],
)
def test_a_head_locates_headers_and_body(record: str, headers_at: int, body_at: int) -> None:
    """A dead letter has more fields before its headers."""
    head = records.Head(bytes.fromhex(record))

    assert (headers_at, body_at) == (head.headers_at, head.body_at)


def test_golden_bytes_of_a_first_message() -> None:
    """It is a message that also names whose topic it is on."""
    block = encode_headers({"k": "v"})
    message = message_of(
        body_of("a", b"hi"), priority=2, origin=3, timestamp_us=1000, block=block
    )
    message.expires_us = 2000
    read = records.StoredMessage(bytes.fromhex(FIRST_MESSAGE))

    assert bytes.fromhex(FIRST_MESSAGE) == records.encode_first_message(message, ACCOUNT)
    assert (ACCOUNT, block, "a") == (read.account_id, read.headers, read.topic)
    assert (2000, 0) == (read.expires_us, read.settles_subscription)


def test_golden_bytes_of_an_owned_declaration_and_the_end_of_a_topic() -> None:
    """A declaration with an account before it, and a name."""
    account_id, declare = records.read_declare_by(bytes.fromhex(DECLARE_BY))

    assert (ACCOUNT, bytes.fromhex(DECLARE)) == (account_id, declare)
    assert bytes.fromhex(DECLARE_BY) == records.encode_declare_by(account_id, declare)
    assert bytes.fromhex(END_TOPIC) == records.encode_end_topic("örders")
    assert "örders" == records.read_end_topic(bytes.fromhex(END_TOPIC))


def test_golden_bytes_of_a_dead_letter() -> None:
    """It is a message that also names the message and subscription it settles."""
    letter = message_of(
        body_of("dlq.a", b"hi"),
        priority=2,
        origin=3,
        timestamp_us=1000,
        block=encode_headers({"k": "v"}),
    )
    record = records.encode_dead_letter(letter, subscription_id=9, after_id=10, message_id=12)
    read = records.StoredMessage(bytes.fromhex(DEAD_LETTER))

    assert bytes.fromhex(DEAD_LETTER) == record
    assert (9, 10, 12) == (read.settles_subscription, read.settles_after, read.settles_id)
    assert (1, 2, 3) == (read.qos, read.priority, read.origin)
    assert (1000, 0) == (read.timestamp_us, read.expires_us)
    assert {"k": "v"} == decode_headers(read.headers)
    assert ("dlq.a", body_of("dlq.a", b"hi")) == (read.topic, read.body)


def test_golden_bytes_of_a_subscription() -> None:
    """The record's id is the subscription's, so it holds none."""
    assert bytes.fromhex(SUBSCRIBE) == records.encode_subscribe(1, 1000, "ada", "orders")
    assert (1, 1000, "ada", "orders") == records.read_subscribe(bytes.fromhex(SUBSCRIBE))


def test_golden_bytes_of_an_unsubscribe() -> None:
    """It holds the reason."""
    assert bytes.fromhex(UNSUBSCRIBE) == records.encode_unsubscribe(9, records.ENDED_BY_LEASE)
    assert (9, records.ENDED_BY_LEASE) == records.read_unsubscribe(bytes.fromhex(UNSUBSCRIBE))


def declared() -> Policy:
    policy = Policy()
    policy.mode, policy.overflow, policy.max_size = 3, 2, 1000
    policy.ttl_us, policy.max_attempts = 60_000_000, 5
    policy.dead_letter_name = "grave"
    return policy


def test_golden_bytes_of_a_declaration() -> None:
    """The record's id is the queue's, so it holds none; flags hold the booleans."""
    name, policy, created_us = records.read_declare(bytes.fromhex(DECLARE))

    assert bytes.fromhex(DECLARE) == records.encode_declare("örders", declared(), 1000)
    assert ("örders", 1000) == (name, created_us)
    assert declared().values() == policy.values()


@given(
    st.builds(
        lambda *values: of_values(list(values)),
        st.integers(0, 3),
        st.integers(0, 2**63),
        st.integers(0, 3),
        st.integers(0, 2**63),
        st.booleans(),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.integers(0, 2**32 - 1),
        st.booleans(),
    )
)
def test_any_policy_survives_encoding(policy: Policy) -> None:
    """Every option is kept, with any value."""
    name, read, created_us = records.read_declare(records.encode_declare("q", policy, 2**60))

    assert ("q", policy.values(), 2**60) == (name, read.values(), created_us)


def test_golden_bytes_of_a_queue_deletion() -> None:
    """It names the queue by id: a later queue of the same name is another queue."""
    assert bytes.fromhex(DELETE) == records.encode_delete(9)
    assert 9 == records.read_delete(bytes.fromhex(DELETE))


def test_the_index_skips_queue_declarations_and_deletions() -> None:
    """They have no topic in it."""
    for record in (DECLARE, DELETE):
        described = records.describe(bytes.fromhex(record))

        assert (b"", 0) == (described.topic, described.payload_at)


def test_golden_bytes_of_a_follower() -> None:
    """Principal and topic may be any text; the key is 32 bytes."""
    key = bytes(range(32))

    assert bytes.fromhex(FOLLOW) == records.encode_follow(1000, key, "adä", "örders")
    assert (1000, key, "adä", "örders") == records.read_follow(bytes.fromhex(FOLLOW))


def test_golden_bytes_of_a_sink_row() -> None:
    """It differs from a message only in its type."""
    message = Message(Topic("a"), 1, body_of("a", b"hi"))
    message.priority, message.origin, message.expires_us = 2, ORIGIN_SPARK, 2000
    message.timestamp_us = 1000
    message.headers = encode_headers({"k": "v"})
    read = records.StoredMessage(bytes.fromhex(SINK_ROW))

    assert bytes.fromhex(SINK_ROW) == records.encode_message(message, records.SINK_ROW)
    assert ("a", b"\x00\x01ahi", 1000, 2000) == (
        read.topic,
        read.body,
        read.timestamp_us,
        read.expires_us,
    )
    assert (1, 2, 5, message.headers) == (read.qos, read.priority, read.origin, read.headers)
    assert (0, 0, 0) == (read.settles_subscription, read.settles_after, read.settles_id)


def test_golden_bytes_of_an_intent_and_its_completion() -> None:
    """Names may be any text or empty; a stage is a 16-byte id and a row count."""
    stages = [(bytes(range(16)), 1000), (bytes(range(16, 32)), 0)]

    assert bytes.fromhex(INTENT) == records.encode_intent("adä", "q1", "", 7, stages)
    assert ("adä", "q1", "", 7, stages) == records.read_intent(bytes.fromhex(INTENT))
    assert bytes.fromhex(DONE) == records.encode_done(9)
    assert 9 == records.read_done(bytes.fromhex(DONE))


@pytest.mark.parametrize(("record", "removed"), [(CURSOR, False), (REMOVED_CURSOR, True)])
def test_golden_bytes_of_a_cursor(record: str, *, removed: bool) -> None:
    """Initial offset, position, principal, and whether it was removed."""
    encoded = records.encode_cursor("night", "adä", initial=9, position=12, removed=removed)

    assert bytes.fromhex(record) == encoded
    assert ("night", "adä", 9, 12, removed) == records.read_cursor(encoded)


def test_golden_bytes_of_progress() -> None:
    """One record holds several subscriptions, even one without any progress."""
    read = records.read_progress(bytes.fromhex(PROGRESS))

    assert bytes.fromhex(PROGRESS) == records.encode_progress(progress_on_record())
    assert as_rows(progress_on_record()) == as_rows(read)


@given(
    st.dictionaries(
        st.integers(0, 2**64 - 1),
        st.tuples(
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**32 - 1),
            st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))),
            st.dictionaries(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)),
        ),
        max_size=4,
    )
)
def test_progress_of_any_size_survives_encoding(
    rows: dict[int, tuple[int, int, list[tuple[int, int]], dict[int, int]]],
) -> None:
    """With any number of ranges and redeliveries per subscription."""
    progress: dict[int, Progress] = {}
    for subscription_id, (handed_id, count, ranges, attempts) in rows.items():
        made = progress[subscription_id] = Progress()
        made.handed_id, made.settled_count = handed_id, count
        made.ranges, made.attempts = ranges, attempts

    assert rows == as_rows(records.read_progress(records.encode_progress(progress)))


@pytest.mark.parametrize(
    ("record", "topic", "payload"),
    [
        (MESSAGE, b"a", b"hi"),
        (BARE_MESSAGE, b"\xc3\xa4", b""),
        (DEAD_LETTER, b"dlq.a", b"hi"),
        (SINK_ROW, b"a", b"hi"),
        (FIRST_MESSAGE, b"a", b"hi"),
    ],
)
def test_the_index_finds_a_messages_topic_and_payload(
    record: str, topic: bytes, payload: bytes
) -> None:
    """The payload extends to the end of the record."""
    raw = bytes.fromhex(record)
    described = records.describe(raw)

    assert topic == described.topic
    assert payload == raw[described.payload_at :]
    assert records.StoredMessage(raw).timestamp_us == described.timestamp_us


def test_the_index_keeps_qos_priority_origin_and_time() -> None:
    """None is swapped with another."""
    described = records.describe(bytes.fromhex(MESSAGE))

    assert (1, 2, 3, 1000) == (
        described.qos,
        described.priority,
        described.origin,
        described.timestamp_us,
    )


@pytest.mark.parametrize(
    "record",
    [
        SUBSCRIBE,
        UNSUBSCRIBE,
        PROGRESS,
        FOLLOW,
        INTENT,
        DONE,
        CURSOR,
        DECLARE_BY,
        END_TOPIC,
        GAP,
    ],
)
def test_a_record_other_than_a_message_is_all_payload(record: str) -> None:
    """It has no topic and no timestamp."""
    described = records.describe(bytes.fromhex(record))

    assert (b"", 0, 0, 0, 0, 0) == (
        described.topic,
        described.payload_at,
        described.timestamp_us,
        described.qos,
        described.priority,
        described.origin,
    )


@pytest.mark.parametrize("kind", [0, 17, 126, 254])
def test_an_unknown_record_type_is_refused(kind: int) -> None:
    """A newer version's record is never guessed at; type 0 is never written."""
    with pytest.raises(UnknownRecordError, match=f"type {kind}$"):
        records.describe(bytes([kind]) + b"anything")


def test_every_type_has_the_name_of_its_constant() -> None:
    """A record whose type has no name is unknown, so a new one cannot be forgotten."""
    named = {name.upper().replace(" ", "_"): kind for kind, name in KIND_NAMES.items()}

    assert named == {name: getattr(records, name) for name in named}
    for kind in set(range(256)) - set(KIND_NAMES):
        with pytest.raises(UnknownRecordError):
            records.describe(bytes([kind]) + bytes(64))
