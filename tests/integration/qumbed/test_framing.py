"""Frames over a real connection: cut anywhere, too large, malformed; what each error closes."""

import asyncio
import json
from pathlib import Path
from typing import Final

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.qumbed.peer import (
    ALICE,
    BOB,
    DISCOVERY,
    FRAME_MAX,
    Json,
    Peer,
    ack,
    b64,
    connected,
    core,
    discovery,
    frame,
    opened,
    public,
    publish,
    raw,
    subscribe,
    unb64,
    unsubscribe,
)

pytestmark = pytest.mark.asyncio

VECTORS: Final = json.loads(
    (Path(__file__).parents[2] / "vectors" / "qumbed.json").read_text("utf-8")
)
PUBLIC: Final = b64(public(ALICE))
LOW_ORDER: Final = bytes(31) + b"\x80"  # zero, with the one bit that X25519 ignores


def deep(levels: int) -> Json:
    """Return a Discovery whose unknown key brings its depth to *levels*."""
    value: object = 1
    for _ in range(levels - 1):
        value = [value]
    return {"t": 7, "d": {}, "x": value}


def of(kind: int, name: str, **body: object) -> bytes:
    return frame({"t": kind, name: body})


BAD: Final[dict[str, bytes]] = {
    "length 0": raw(b""),
    "not JSON": raw(b"{"),
    "not UTF-8": raw(b'{"t":7,"d":{"addr":"\xff"}}'),
    "two JSON texts": raw(b'{"t":7,"d":{}} {}'),
    "not an object": raw(b"[]"),
    "too deep": frame(deep(33)),
    "no type": frame({"d": {}}),
    "unknown type": frame({"t": 8, "d": {}}),
    "type 0": frame({"t": 0}),
    "a type that is a string": frame({"t": "7", "d": {}}),
    "a type that is a float": raw(b'{"t":7.0,"d":{}}'),
    "a key in upper case": frame({"T": 7, "d": {}}),
    "the object is missing": frame({"t": 1, "s": {"topic": "t"}}),
    "the object is null": frame({"t": 3, "u": None}),
    "a Message": of(4, "m", topic="t", encrypted_payload=None),
    "an Ack": of(5, "a", message_id="", ok=True),
    "an Error": of(6, "e", code="X", message="x"),
    "a topic that is a number": of(1, "p", topic=1, payload=None),
    "no topic": of(1, "p", payload=None),
    "an empty topic": of(3, "u", topic=""),
    "a topic of 65,536 bytes": of(3, "u", topic="é" * 32_768),
    "a lone surrogate": raw(b'{"t":3,"u":{"topic":"\\ud800"}}'),
    "a payload that is not base64": of(1, "p", topic="t", payload="*"),
    "base64 without padding": of(1, "p", topic="t", payload="YQ"),
    "a sender key of 31 bytes": of(1, "p", topic="t", sender_public_key=b64(bytes(31))),
    "a sender key of low order": of(1, "p", topic="t", sender_public_key=b64(LOW_ORDER)),
    "a recipient of 7 bytes": of(1, "p", topic="t", recipient_key_id=b64(b"1234567")),
    "a recipient of 32 bytes": of(1, "p", topic="t", recipient_key_id=PUBLIC),
    "a subscriber without a key": of(2, "s", topic="t"),
    "a subscriber's key of 33 bytes": of(2, "s", topic="t", public_key=b64(bytes(33))),
    "a subscriber's key of low order": of(2, "s", topic="t", public_key=b64(LOW_ORDER)),
    "a Discovery key of 8 bytes": of(7, "d", public_key=b64(b"12345678")),
    "a key that is a number": frame({"t": 7, "d": {}, "k": 1}),
}


@pytest.mark.parametrize("row", BAD)
async def test_a_bad_frame_ends_its_stream(peer: Peer, row: str) -> None:
    """The broker answers earlier frames, sends BAD_FRAME, closes, and drops the rest."""
    other = peer.open()
    await other.publish("before", b"1")
    stream = peer.open()
    stream.send(publish("t", b"1"), BAD[row], publish("t", b"2"), raw(b"garbage"))
    assert 1 == int((await stream.answer())["a"]["message_id"]) - 1
    await stream.expect_error("BAD_FRAME")
    await stream.expect_end()

    assert "3" == (await other.publish("after", b"1"))["message_id"]
    assert not peer.is_closed


@pytest.mark.parametrize("size", [FRAME_MAX + 1, 2**31, 2**32 - 1])
async def test_a_frame_that_is_too_large_is_refused_on_its_length(
    peer: Peer, size: int
) -> None:
    """FRAME_TOO_LARGE before any byte of it arrives; earlier frames are answered."""
    stream = peer.open()
    stream.send(publish("t", b"1"), size.to_bytes(4, "big"))
    await stream.expect(ack("1", 0))
    await stream.expect_error("FRAME_TOO_LARGE")
    await stream.expect_end()


async def test_a_frame_at_the_limit_is_accepted(peer: Peer) -> None:
    """Exactly 1 MiB; whether a Message fits is another matter."""
    stream = peer.open()
    start = frame({"t": 7, "d": {}, "x": ""})
    stream.send(frame({"t": 7, "d": {}, "x": "x" * (FRAME_MAX - len(start) + 4)}))

    assert DISCOVERY == (await stream.answer())["t"]


async def test_streams_with_bad_frames_do_not_affect_each_other(peer: Peer) -> None:
    """All at once, on streams of one connection: each gets its own Error."""
    streams = {row: peer.open() for row in BAD}
    good = peer.open()
    for row, stream in streams.items():
        stream.send(discovery(), BAD[row], discovery())
        good.send(discovery())
    for stream in streams.values():
        assert DISCOVERY == (await stream.answer())["t"]
        await stream.expect_error("BAD_FRAME")
        await stream.expect_end()
    for _ in streams:
        assert DISCOVERY == (await good.answer())["t"]


async def test_the_error_of_a_bad_frame_names_the_frame(peer: Peer) -> None:
    """The Error echoes the frame's id, if it had one, and nothing else of it."""
    stream = peer.open()
    stream.send(of(1, "p", topic="t", payload="SECRET*", id="mine"))
    text = await stream.expect_error("BAD_FRAME", "mine")

    assert "SECRET" not in text


async def test_depth_32_is_accepted(peer: Peer) -> None:
    """The frame's own object counts as one level."""
    stream = peer.open()

    assert DISCOVERY == (await stream.ask(frame(deep(32))))["t"]


async def test_frames_may_arrive_in_any_pieces(peer: Peer) -> None:
    """Byte by byte, or many frames at once."""
    stream = peer.open()
    for byte in publish("t", b"1", frame_id="a"):
        stream.send(bytes([byte]))
        await asyncio.sleep(0)
    await stream.expect(ack("a", 0))
    stream.send(*(publish("t", b"1", frame_id=f"{n}") for n in range(500)))
    await stream.expect(*(ack(f"{n}", 0) for n in range(500)))


async def test_unknown_keys_are_ignored_and_null_is_absent(peer: Peer) -> None:
    """Unknown keys allow extensions; every field may be null."""
    stream = peer.open()
    request = {"t": 7, "d": {"node_id": None, "topics": None, "x": [1]}, "p": None, "y": {}}
    assert DISCOVERY == (await stream.ask(frame(request)))["t"]
    body = {"topic": "t", "payload": None, "schema_id": None, "id": None}

    assert ack("1", 0) == await stream.ask(frame({"t": 1, "p": body}))


async def test_frames_of_one_stream_are_answered_in_order(peer: Peer) -> None:
    """Whatever their kind and outcome."""
    stream = peer.open()
    stream.send(
        publish("t", b"1", frame_id="1"),
        subscribe("t", public(ALICE), "no.such"),
        publish("t", b"2", frame_id="2"),
        subscribe("t", public(ALICE), frame_id="s"),
        publish("t", b"x", "sensor.Humidity", frame_id="3"),
        unsubscribe("t", frame_id="u"),
        publish("t", b"3", frame_id="4"),
        discovery(),
    )
    await stream.expect(ack("1", 0))
    await stream.expect_error("SCHEMA_UNKNOWN")
    await stream.expect(ack("2", 0), ack("s"))
    await stream.expect_error("SCHEMA_INVALID", "3")
    await stream.expect(ack("u"), ack("4", 0))

    assert DISCOVERY == (await stream.next())["t"]


async def test_every_frame_before_a_fin_is_answered(broker: RunningBroker, peer: Peer) -> None:
    """Then the broker ends the stream; it drops a partial frame."""
    stream = peer.open()
    stream.finish(publish("t", b"1"), publish("t", b"2"), publish("t", b"3")[:-1])
    await stream.expect(ack("1", 0), ack("2", 0))
    await stream.expect_end()

    assert 2 == core(broker).stats.published


async def test_a_real_broker_understands_the_golden_frames(broker: RunningBroker) -> None:
    """The original's client can publish and subscribe, and open what it gets."""
    golden = {one["name"]: bytes.fromhex(one["hex"]) for one in VECTORS["frames"]}
    async with connected(broker) as peer:
        stream = peer.open()
        assert ack() == await stream.ask(golden["subscribe"])
        assert ack("1", 1) == await stream.ask(golden["publish"])
        message = await stream.message()

        assert VECTORS["sealed"] == unb64(message["m"]["encrypted_payload"]).hex()
        assert VECTORS["plaintext"].encode() == opened(message, BOB)
        assert VECTORS["sender_public"] == unb64(message["m"]["sender_public_key"]).hex()
        assert ack() == await stream.ask(golden["unsubscribe"])
