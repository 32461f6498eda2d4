"""What a Vibe session sends: answers to Connect, replies and deliveries."""

import json

import pytest

from braidmq.wire.vibe import frames, messages
from braidmq.wire.vibe.frames import DIALECT_1_0, DIALECT_1_1
from braidmq.wire.vibe.session import AUTH_FAILED, CONNECTED, NEW, Request
from tests.unit.wire.vibe.peer import (
    ACCEPTED,
    BOTH_DIALECTS,
    VECTORS,
    frame,
    outcome,
    read,
    session_in,
)


@BOTH_DIALECTS
def test_the_fifth_refused_connect_ends_the_connection(dialect: int) -> None:
    """It is still answered."""
    peer = session_in(NEW)
    assert ACCEPTED == outcome(peer, frame(dialect, messages.CONNECT), dialect)
    answers = [peer.refused("c1") for _ in range(5)]

    assert [False] * 4 + [True] == [ends for _, ends in answers]
    for data, _ in answers:
        body = read(data, dialect)
        assert (messages.ERROR, "c1", AUTH_FAILED) == (body.type, body.id, body.error_code)
    assert NEW == peer.state


@BOTH_DIALECTS
def test_connect_is_answered_with_the_given_headers(dialect: int) -> None:
    """Under the same id; with empty error fields in dialect 1.0, without them in 1.1."""
    peer = session_in(NEW)
    outcome(peer, frame(dialect, messages.CONNECT, "c1"), dialect)
    headers = {"serverVersion": "1.0.0", "connectionId": "srv_456"}
    data = peer.connected("c1", headers)

    assert CONNECTED == peer.state
    assert frame(dialect, messages.CONNECT_ACK, "c1", headers=headers) == data


@pytest.mark.parametrize(
    ("listed", "chosen", "compression"),
    [
        ("brotli,gzip", "brotli", frames.BROTLI),
        ("gzip,brotli", "gzip", frames.GZIP),
        ("zstd, GZip ,brotli", "gzip", frames.GZIP),
        ("zstd", "", frames.RAW),
        ("none", "", frames.RAW),
        ("", "", frames.RAW),
        (None, "", frames.RAW),
    ],
)
def test_compression_is_the_first_supported_one_that_the_client_lists(
    listed: str | None, chosen: str, compression: int
) -> None:
    """The ConnectAck names it and is raw itself; later frames from 1 KiB on are compressed."""
    peer = session_in(NEW)
    headers = {} if listed is None else {"supported-compression": listed}
    outcome(peer, frame(DIALECT_1_1, messages.CONNECT, headers=headers))

    assert chosen == peer.negotiate(headers)
    assert frames.RAW == peer.compression
    data = peer.connected("c1", {"long": "x" * 2000})
    agreed = {"negotiated-compression": chosen} if chosen else {}
    assert frames.RAW == data[4]
    assert {"long": "x" * 2000, **agreed} == read(data, DIALECT_1_1).headers
    assert compression == peer.compression
    listing = peer.reply(messages.LIST_QUEUES, "l1", payload=b"[" + b" " * 2000 + b"]")
    assert compression == listing[4]
    assert b"[" + b" " * 2000 + b"]" == read(listing, DIALECT_1_1).payload
    assert frames.RAW == peer.reply(messages.PONG, "p1")[4]


def test_dialect_1_0_has_no_compression() -> None:
    """It has no flags byte."""
    peer = session_in(NEW)
    headers = {"supported-compression": "gzip"}
    outcome(peer, frame(DIALECT_1_0, messages.CONNECT, headers=headers), DIALECT_1_0)

    assert "" == peer.negotiate(headers)
    assert frame(DIALECT_1_0, messages.CONNECT_ACK, "c1") == peer.connected("c1", {})


def test_connecting_again_negotiates_again() -> None:
    """The second ConnectAck is raw too, and ends an earlier agreement."""
    peer = session_in(CONNECTED)
    peer.negotiate({"supported-compression": "gzip"})
    peer.connected("c1", {})
    assert frames.GZIP == peer.compression
    peer.negotiate({})
    data = peer.connected("c2", {"long": "x" * 2000})

    assert frames.RAW == data[4]
    assert {"long": "x" * 2000} == read(data, DIALECT_1_1).headers
    assert frames.RAW == peer.compression


@pytest.mark.parametrize("how", [frames.GZIP, frames.BROTLI])
def test_a_client_may_compress_without_negotiating(how: int) -> None:
    """Each frame says how it is compressed; the answers stay raw."""
    peer = session_in(CONNECTED)
    payload = json.dumps(["x"] * 1000).encode()
    body = messages.write_body(messages.PUBLISH, "m1", "q", payload, with_errors=False)
    peer.receive_data(frames.encode(DIALECT_1_1, body, how) * 2)

    for _ in range(2):
        command = peer.next_command()
        assert isinstance(command, Request)
        assert payload == command.payload
    assert frames.RAW == peer.compression


@BOTH_DIALECTS
def test_replies_are_the_golden_frames(dialect: int) -> None:
    """PublishAck, SubscribeAck, ListQueues and others, as in the vectors."""
    peer = session_in(CONNECTED, dialect)
    column = "dialect_1_0" if dialect == DIALECT_1_0 else "dialect_1_1"
    golden = {row["name"]: row for row in VECTORS["messages"]}

    for name in ("PublishAck", "SubscribeAck", "UnsubscribeAck", "ListQueues reply", "Ping"):
        row = golden[name]
        payload = (row["payload"] or "").encode()
        data = peer.reply(row["type"], row["id"], row["queue"] or "", payload, row["headers"])
        assert row[column] == data.hex()
    error = peer.error("err_123", AUTH_FAILED, "Invalid authentication token")
    assert golden["Error"][column] == error.hex()


@BOTH_DIALECTS
def test_a_delivery_is_the_golden_frame(dialect: int) -> None:
    """Built from the stored parts of a message."""
    row = next(row for row in VECTORS["messages"] if row["name"] == "Deliver")
    peer = session_in(CONNECTED, dialect)
    column = "dialect_1_0" if dialect == DIALECT_1_0 else "dialect_1_1"
    block = messages.encode_headers(row["headers"])

    assert (
        row[column]
        == peer.deliver(row["id"], row["queue"].encode(), row["payload"].encode(), block).hex()
    )


@BOTH_DIALECTS
@pytest.mark.parametrize("how", ["", "gzip", "brotli"])
@pytest.mark.parametrize("size", [0, 900, 1100, 100_000])
def test_deliveries_are_encoded_like_any_other_reply(dialect: int, how: str, size: int) -> None:
    """The fast path for a Deliver and the general one give the same bytes."""
    peer = session_in(CONNECTED, dialect)
    peer.negotiate({"supported-compression": how})
    peer.connected("c1", {})
    headers = {"deliveryAttempts": "2", "ключ": ""}
    payload = b"1" * size
    block = messages.encode_headers(headers)

    assert peer.reply(messages.DELIVER, "é1", "очередь", payload, headers) == peer.deliver(
        "é1", "очередь".encode(), payload, block
    )


def test_error_texts_are_truncated_and_can_always_be_sent() -> None:
    """A text may quote what a client sent, which may be long or contain lone surrogates."""
    peer = session_in(CONNECTED)

    assert "é" * 200 == read(peer.error("r", "C", "é" * 300), DIALECT_1_1).error_message
    assert "a?b" == read(peer.error("r", "C", "a\ud800b"), DIALECT_1_1).error_message
    assert "q" == read(peer.error("r", "C", "t", "q"), DIALECT_1_1).queue
