"""Publishing over Qumbed: plain and sealed messages, schemas, limits."""

from itertools import count

import pytest

from braidmq.client.answers import Receipt
from braidmq.client.connection import Post
from braidmq.client.errors import InvalidArgument, OutcomeUnknown
from braidmq.client.qumbed.publishing import (
    QumbedPosting,
    Sealing,
)
from braidmq.client.qumbed.schemas import Schemas
from braidmq.wire.qumbed import frames, messages
from braidmq.wire.qumbed.layout import Ack
from braidmq.wire.qumbed.session import Reply, Session
from tests.unit.client.qumbed.people import ALICE, BOB

SCHEMAS = Schemas()


def posting(
    topic: str = "orders", schema: str = "", sealing: Sealing | None = None
) -> QumbedPosting:
    numbers = count(1)
    return QumbedPosting(
        topic,
        lambda: f"{64 * 'x'}"[:62] + f"{next(numbers):02}",
        schema=schema,
        schemas=SCHEMAS,
        sealing=sealing,
    )


def for_bob() -> Sealing:
    return Sealing(
        BOB.public_key, ALICE.public_key, lambda payload: ALICE.seal(payload, BOB.public_key)
    )


def read(post: Post) -> messages.Publish:
    """Read a frame as a broker does, and check that the broker accepts it."""
    session = Session()
    session.receive_data(post.data)
    command = session.next_command()
    assert not isinstance(command, Reply), command.data
    assert isinstance(command, messages.Publish)
    return command


def test_a_plain_message_names_no_sender() -> None:
    """With a sender's key the broker would take the payload for a sealed box."""
    post = posting().lay_out(b"\x00" * 100)
    publish = read(post)

    assert ("orders", bytes(100), "", b"", b"") == (
        publish.topic,
        publish.payload,
        publish.schema_id,
        publish.recipient_key_id,
        publish.sender_public_key,
    )
    assert post.id == publish.id
    assert len(post.data) == len(post)


def test_a_sealed_message_names_both_ends() -> None:
    """Only the recipient can read the payload."""
    publish = read(posting(sealing=for_bob()).lay_out(b"secret"))

    assert (BOB.key_id, ALICE.public_key) == (
        publish.recipient_key_id,
        publish.sender_public_key,
    )
    assert b"secret" == BOB.open(publish.payload, ALICE.public_key)


def test_each_message_has_its_own_id() -> None:
    """The broker uses it to drop duplicates."""
    one = posting()

    assert one.lay_out(b"1").id != one.lay_out(b"1").id


@pytest.mark.parametrize("sealing", [None, for_bob()], ids=["plain", "sealed"])
def test_a_payload_is_validated_before_sealing(sealing: Sealing | None) -> None:
    """The broker cannot validate a sealed payload; the error quotes no value."""
    commands = posting(schema="control.Command", sealing=sealing)
    with pytest.raises(InvalidArgument, match=r"schema 'control.Command': \$.action breaks"):
        commands.lay_out(b'{"action": ""}')
    publish = read(commands.lay_out(b'{"action": "on"}'))

    assert "control.Command" == publish.schema_id


def test_a_schema_unknown_to_the_client_is_left_to_the_broker() -> None:
    """The client need not have every schema that the broker has."""
    assert "our.Own" == read(posting(schema="our.Own").lay_out(b"\xff")).schema_id


@pytest.mark.parametrize("sealing", [None, for_bob()], ids=["plain", "sealed"])
@pytest.mark.parametrize("topic", ["t", "\n" * 60_000], ids=["short", "long"])
def test_the_broker_accepts_the_largest_message(topic: str, sealing: Sealing | None) -> None:
    """The client refuses one byte more, and the error says the limit."""
    one = posting(topic, sealing=sealing)
    low, high = 0, frames.FRAME_MAX
    while high - low > 1:
        middle = (low + high) // 2
        try:
            one.lay_out(bytes(middle))
            low = middle
        except InvalidArgument:
            high = middle

    read(one.lay_out(bytes(low)))
    assert low > (700_000 if topic == "t" else 600_000)
    with pytest.raises(InvalidArgument, match=f"at most {frames.FRAME_MAX}"):
        one.lay_out(bytes(high))


def test_the_size_is_checked_again_after_sealing() -> None:
    """An envelope takes space too."""
    sealing = Sealing(BOB.public_key, ALICE.public_key, lambda payload: bytes(frames.FRAME_MAX))
    with pytest.raises(InvalidArgument, match="does not fit"):
        posting(sealing=sealing).lay_out(b"1")


@pytest.mark.parametrize("payload", [bytearray(b"1"), memoryview(b"1")])
def test_any_bytes_like_payload_is_published(payload: bytearray | memoryview) -> None:
    """Unchanged."""
    assert b"1" == read(posting().lay_out(payload)).payload


def test_the_shortest_and_the_longest_schema_id_are_accepted() -> None:
    """An empty one means no schema."""
    posting(schema="")
    posting(schema="x" * 65_535)


@pytest.mark.parametrize("topic", ["", "x" * 65_536, "é" * 32_768, "\ud800"])
def test_an_invalid_topic_is_refused(topic: str) -> None:
    """A topic is 1 to 65,535 bytes of UTF-8, as on every strand."""
    with pytest.raises(InvalidArgument, match="a topic"):
        posting(topic)


def test_a_receipt_holds_the_values_of_the_ack() -> None:
    """The client's id, and the number of subscribers that the message was delivered to."""
    one = posting()
    answer = messages.Ack(Ack("ours-1", ok=True, delivered=3))
    receipt = one.outcome(one.lay_out(b"1"), answer, repeated=True)

    assert Receipt("orders", 1, True, "ours-1", True, 3) == receipt


def test_a_negative_ack_leaves_the_outcome_unknown() -> None:
    """Only `ok` is a confirmation."""
    one = posting()
    answer = messages.Ack(Ack("ours-1", ok=False, delivered=0))

    assert OutcomeUnknown is type(one.outcome(one.lay_out(b"1"), answer, repeated=False))
