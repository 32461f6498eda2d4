"""What a Qumbed publisher sends."""

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
    """Read a frame as a broker does, which must not refuse it."""
    session = Session()
    session.receive_data(post.data)
    command = session.next_command()
    assert not isinstance(command, Reply), command.data
    assert isinstance(command, messages.Publish)
    return command


def test_a_plain_message_names_no_sender() -> None:
    """With a sender's key the broker would take bytes for sealed."""
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
    """And holds nothing that others can read."""
    publish = read(posting(sealing=for_bob()).lay_out(b"secret"))

    assert (BOB.key_id, ALICE.public_key) == (
        publish.recipient_key_id,
        publish.sender_public_key,
    )
    assert b"secret" == BOB.open(publish.payload, ALICE.public_key)


def test_each_message_has_an_id_of_its_own() -> None:
    """So that what is sent again is stored once, and nothing else."""
    one = posting()

    assert one.lay_out(b"1").id != one.lay_out(b"1").id


@pytest.mark.parametrize("sealing", [None, for_bob()], ids=["plain", "sealed"])
def test_a_schema_is_held_before_sealing(sealing: Sealing | None) -> None:
    """Nobody on the way could do it later; the text repeats no value."""
    commands = posting(schema="control.Command", sealing=sealing)
    with pytest.raises(InvalidArgument, match=r"schema 'control.Command': \$.action breaks"):
        commands.lay_out(b'{"action": ""}')
    publish = read(commands.lay_out(b'{"action": "on"}'))

    assert "control.Command" == publish.schema_id


def test_a_schema_that_only_the_broker_knows_is_left_to_it() -> None:
    """The client need not have every file that the broker has."""
    assert "our.Own" == read(posting(schema="our.Own").lay_out(b"\xff")).schema_id


@pytest.mark.parametrize("sealing", [None, for_bob()], ids=["plain", "sealed"])
@pytest.mark.parametrize("topic", ["t", "\n" * 60_000], ids=["short", "long"])
def test_the_largest_message_is_one_that_the_broker_takes(
    topic: str, sealing: Sealing | None
) -> None:
    """One byte more is refused here, and named with its size."""
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


def test_what_is_sealed_to_be_longer_is_measured_again() -> None:
    """An envelope takes room too."""
    sealing = Sealing(BOB.public_key, ALICE.public_key, lambda payload: bytes(frames.FRAME_MAX))
    with pytest.raises(InvalidArgument, match="does not fit"):
        posting(sealing=sealing).lay_out(b"1")


@pytest.mark.parametrize("payload", [bytearray(b"1"), memoryview(b"1")])
def test_anything_that_is_bytes_is_published(payload: bytearray | memoryview) -> None:
    """As it is."""
    assert b"1" == read(posting().lay_out(payload)).payload


def test_an_empty_schema_id_is_none() -> None:
    """And the longest one fits."""
    posting(schema="")
    posting(schema="x" * 65_535)


@pytest.mark.parametrize("topic", ["", "x" * 65_536, "é" * 32_768, "\ud800"])
def test_what_is_no_topic_is_refused(topic: str) -> None:
    """1 to 65,535 bytes of UTF-8, as on every strand."""
    with pytest.raises(InvalidArgument, match="a topic"):
        posting(topic)


def test_a_receipt_says_what_the_ack_said() -> None:
    """The id that we chose, and how many it was passed on to."""
    one = posting()
    answer = messages.Ack(Ack("ours-1", ok=True, delivered=3))
    receipt = one.outcome(one.lay_out(b"1"), answer, repeated=True)

    assert Receipt("orders", 1, True, "ours-1", True, 3) == receipt


def test_an_ack_that_confirms_nothing_leaves_the_outcome_open() -> None:
    """Only `ok` is a confirmation."""
    one = posting()
    answer = messages.Ack(Ack("ours-1", ok=False, delivered=0))

    assert OutcomeUnknown is type(one.outcome(one.lay_out(b"1"), answer, repeated=False))
