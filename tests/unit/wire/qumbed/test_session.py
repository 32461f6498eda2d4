"""A Qumbed session on the server's side."""

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.qumbed import frames, messages
from braidmq.wire.qumbed.messages import Error, Publish, quote, read_frame
from braidmq.wire.qumbed.session import (
    BAD_FRAME,
    FRAME_TOO_LARGE,
    REPLY,
    SEAL_BYTES,
    Command,
    Reply,
    Session,
)
from tests.unit.wire.qumbed.fields import fields_of
from tests.unit.wire.vectors import vectors

VECTORS = vectors("qumbed")
WIRE = {row["name"]: bytes.fromhex(row["hex"]) for row in VECTORS["frames"]}
KEY = bytes.fromhex(VECTORS["sender_public"])
FROM_CLIENTS = ["publish", "subscribe", "unsubscribe", "discovery"]
FROM_SERVERS = ["message", "ack", "error"]
GOOD = messages.unsubscribe("good", frame_id="g")


def commands(chunks: Iterable[bytes]) -> list[Command]:
    """Feed a new session, asking for commands after every chunk."""
    session = Session()
    taken: list[Command] = []
    for chunk in chunks:
        session.receive_data(chunk)
        while (command := session.next_command()) is not None:
            taken.append(command)
    return taken


def shown(command: Command) -> tuple[type, dict[str, object]]:
    """Return all fields of a command, for comparison."""
    if isinstance(command, Reply):
        return Reply, {"data": command.data, "closes": command.closes}
    return type(command), fields_of(command)


def refusal(command: Command) -> tuple[str, str, bool]:
    """Return the code and id of a refusal, and whether it closes the stream."""
    assert isinstance(command, Reply)
    assert REPLY == command.kind
    frame = read_frame(command.data[4:])
    assert isinstance(frame, Error)
    assert frame.message
    return frame.code, frame.id, command.closes


def frame_of(**fields: object) -> bytes:
    """Return a frame with these keys."""
    return frames.encode(json.dumps(fields).encode())


@pytest.mark.parametrize("name", FROM_CLIENTS)
def test_golden_frames_of_clients_are_commands(name: str) -> None:
    """Each is returned as it was read, without a reply."""
    [command] = commands([WIRE[name]])

    assert shown(command) == (type(command), fields_of(read_frame(WIRE[name][4:])))
    assert FROM_CLIENTS.index(name) == [1, 2, 3, 7].index(command.kind)


BAD_FRAMES: dict[str, tuple[bytes, str]] = {
    "length 0": (bytes(4), ""),
    "not JSON": (frames.encode(b"{"), ""),
    "an array": (frames.encode(b"[]"), ""),
    "not UTF-8": (frames.encode(b'{"t":3,"u":{"topic":"\xff"}}'), ""),
    "a lone surrogate": (frames.encode(b'{"t":3,"u":{"topic":"\\ud800"}}'), ""),
    "33 levels": (
        frames.encode(b'{"t":3,"u":{"topic":"a"},"x":' + b"[" * 32 + b"]" * 32 + b"}"),
        "",
    ),
    "no type": (frame_of(p={"topic": "a", "id": "n"}), "n"),
    "a type in quotes": (frame_of(t="1", p={"topic": "a", "id": "n"}), "n"),
    "a fraction": (frame_of(t=1.0, p={"topic": "a", "id": "n"}), "n"),
    "an unknown type": (frame_of(t=9, p={"id": "n"}), "n"),
    "no object": (frame_of(t=1), ""),
    "null for an object": (frame_of(t=1, p=None), ""),
    "another type's object": (frame_of(t=1, s={"topic": "a", "id": "n"}), "n"),
    "a message": (WIRE["message"], ""),
    "an ack": (WIRE["ack"], ""),
    "an error": (messages.error("C", "m", "n"), "n"),
    "no topic": (frame_of(t=3, u={"id": "n"}), "n"),
    "an empty topic": (frame_of(t=3, u={"topic": "", "id": "n"}), "n"),
    "a long topic": (frame_of(t=3, u={"topic": "a" * 65_536, "id": "n"}), "n"),
    "a topic that is a number": (frame_of(t=3, u={"topic": 5, "id": "n"}), "n"),
    "base64 without padding": (
        frame_of(t=1, p={"topic": "a", "payload": "YQ", "id": "n"}),
        "n",
    ),
    "a short key": (frame_of(t=2, s={"topic": "a", "public_key": "YQ==", "id": "n"}), "n"),
    "no key": (frame_of(t=2, s={"topic": "a", "id": "n"}), "n"),
    "a key of low order": (messages.subscribe("a", "", bytes(32), frame_id="n"), "n"),
    "a sender key of low order": (
        messages.publish("a", b"", sender_public_key=b"\x01" + bytes(31), frame_id="n"),
        "n",
    ),
    "7 bytes of a key id": (
        messages.publish("a", b"", recipient_key_id=bytes(7), frame_id="n"),
        "n",
    ),
    "an id that is a number": (frame_of(t=1, p={"topic": "a", "id": 5}), ""),
    "an API key that is a number": (frame_of(t=3, u={"topic": "a", "id": "n"}, k=5), "n"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_bad_frame_ends_the_stream(name: str) -> None:
    """Earlier frames are commands; then comes the Error with the frame's id, and no more."""
    wire, frame_id = BAD_FRAMES[name]
    first, last = commands([GOOD + wire + GOOD, GOOD])

    assert "g" == fields_of(first)["id"]
    assert (BAD_FRAME, frame_id, True) == refusal(last)


@pytest.mark.parametrize("length", [frames.FRAME_MAX + 1, 2**31, 2**32 - 1])
def test_a_frame_that_is_too_large_is_refused_by_its_length(length: int) -> None:
    """Before any of its payload arrives; then the stream ends."""
    first, last = commands([GOOD + length.to_bytes(4, "big"), GOOD])

    assert "g" == fields_of(first)["id"]
    assert (FRAME_TOO_LARGE, "", True) == refusal(last)


def test_an_ended_stream_holds_nothing() -> None:
    """Data after a bad frame takes no memory, however much it is."""
    session = Session()
    session.receive_data(bytes(4) + GOOD * 100)
    reply = session.next_command()
    session.receive_data(GOOD * 100)

    assert reply is not None
    assert (BAD_FRAME, "", True) == refusal(reply)
    assert session.next_command() is None
    assert 0 == session.held_bytes


def test_held_bytes_are_those_not_yet_returned() -> None:
    """A frame counts until it is returned as a command."""
    session = Session()
    session.receive_data(GOOD + GOOD[:9])

    assert len(GOOD) + 9 == session.held_bytes
    assert session.next_command() is not None
    assert 9 == session.held_bytes
    assert session.next_command() is None


def test_no_field_outlives_its_frame() -> None:
    """A field missing from a frame is empty, not that of the frame before."""
    first, last = commands([WIRE["publish"] + frame_of(t=1, p={"topic": "b"})])

    assert isinstance(first, Publish)
    assert isinstance(last, Publish)
    assert ("b", b"", "", b"", b"") == (
        last.topic,
        last.payload,
        last.schema_id,
        last.recipient_key_id,
        last.sender_public_key,
    )


def largest_payload(topic: str, *, sealed_by_us: bool) -> int:
    """Return the size of the largest payload whose Message fits into a frame."""
    room = frames.FRAME_MAX - messages.message_bytes(quote(topic), 1) + len("AA==")
    return room // 4 * 3 - (SEAL_BYTES if sealed_by_us else 0)


@pytest.mark.parametrize(
    ("filler", "sender", "sealed_by_us"),
    [
        (b"\xff", KEY, False),  # a box
        (b"\xff", b"", True),  # opaque: it names no sender
        (b"7", KEY, True),  # JSON: plain
        (b"x", KEY, True),  # UTF-8, so it may be JSON
    ],
)
def test_a_publish_whose_message_would_not_fit_is_refused(
    filler: bytes, sender: bytes, sealed_by_us: bool
) -> None:
    """One byte decides; the stream continues. A payload that we must seal needs 40 more."""
    largest = largest_payload("a", sealed_by_us=sealed_by_us)

    def wire(size: int) -> bytes:
        return messages.publish("a", filler * size, sender_public_key=sender, frame_id="n")

    fits, refused, after = commands([wire(largest) + wire(largest + 1) + GOOD])

    assert isinstance(fits, Publish)
    assert largest == len(fits.payload)
    assert (FRAME_TOO_LARGE, "n", False) == refusal(refused)
    assert "g" == fields_of(after)["id"]


@pytest.mark.parametrize("sealed_by_us", [False, True])
def test_the_message_of_the_largest_publish_fits_into_a_frame(sealed_by_us: bool) -> None:
    """Every accepted publish can be delivered, even with the largest id and time."""
    size = largest_payload("a", sealed_by_us=sealed_by_us)
    wire = messages.message(
        quote("a"),
        bytes(size + (SEAL_BYTES if sealed_by_us else 0)),
        KEY,
        message_id=str(2**64 - 1),
        timestamp_ms=2**63 - 1,
    )

    assert frames.FRAME_MAX - 4 < len(wire) - 4 <= frames.FRAME_MAX


def test_a_publish_of_exactly_a_mebibyte_is_read() -> None:
    """If only its Message would be too large, the stream stays open."""
    start, end = b'{"t":1,"p":{"topic":"a","id":"n"},"x":"', b'"}'
    small = frames.encode(start + b"x" * (frames.FRAME_MAX - len(start + end)) + end)
    large = messages.publish("a", b"\xff" * 786_300, frame_id="n")
    read, refused = commands([small, large])

    assert frames.FRAME_MAX + 4 == len(small)
    assert "n" == fields_of(read)["id"]
    assert (FRAME_TOO_LARGE, "n", False) == refusal(refused)


def test_an_escaped_topic_counts_with_its_escapes() -> None:
    """Control characters take six bytes in a Message."""
    topic = "\x01" * 65_535
    largest = largest_payload(topic, sealed_by_us=False)
    fits, refused = commands(
        [
            messages.publish(topic, b"\xff" * largest, sender_public_key=KEY),
            messages.publish(topic, b"\xff" * (largest + 1), sender_public_key=KEY),
        ]
    )

    assert isinstance(fits, Publish)
    assert (FRAME_TOO_LARGE, "", False) == refusal(refused)


wires = st.sampled_from(
    [*(WIRE[name] for name in FROM_CLIENTS), GOOD]
    + [wire for name, (wire, _) in BAD_FRAMES.items() if name != "a long topic"]
)


@given(st.lists(wires, max_size=4), st.lists(st.integers(0, 1_500), max_size=8))
def test_the_stream_may_be_split_anywhere(stream: list[bytes], cuts: list[int]) -> None:
    """However the network splits it, the same commands come out."""
    whole = b"".join(stream)
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    chunks = [whole[start:end] for start, end in pairwise(edges)]

    assert list(map(shown, commands([whole]))) == list(map(shown, commands(chunks)))


@given(
    st.lists(st.binary(max_size=40) | st.binary(min_size=1, max_size=40).map(frames.encode)),
)
def test_noise_never_raises(noise: list[bytes]) -> None:
    """The session replies at most once; after that it ignores the data."""
    taken = commands(noise)

    assert all(not isinstance(command, Reply) for command in taken[:-1])


@given(
    st.sampled_from(sorted(WIRE)),
    st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=2)), min_size=1),
)
def test_damaged_frames_never_raise(name: str, damages: list[tuple[int, bytes]]) -> None:
    """A frame with overwritten JSON is a command or ends the stream."""
    body = WIRE[name][4:]
    for at, with_bytes in damages:
        body = body[:at] + with_bytes + body[at + len(with_bytes) :]
    [command] = commands([frames.encode(body)])

    if isinstance(command, Reply):
        code, _, closes = refusal(command)
        assert (BAD_FRAME, True) == (code, closes)
