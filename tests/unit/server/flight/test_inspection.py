"""HTTP/2 in passing: frames by hand, whole and cut anywhere."""

import random
import struct
from typing import Final

import pytest

from braidmq.server.flight.inspection import (
    FLIGHT_FRAME,
    FLIGHT_STREAMS,
    PROGRESS_BYTES,
    STREAMS_MAX,
    Inspection,
)
from braidmq.server.flight.messages import FLIGHT_COMPRESSED, FLIGHT_MESSAGE
from braidmq.transport.relay import RefusedBytesError
from tests.unit.server.flight.frames import (
    BODY,
    DATA,
    END_STREAM,
    HEADERS,
    PADDED,
    RST_STREAM,
    SETTINGS,
    UNKNOWN,
    WINDOW_UPDATE,
    call,
    data,
    field,
    frame,
    message,
)

REQUEST: Final = message(field(1, b"{}"))


def seen(up: bytes = b"", down: bytes = b"", step: int = 2**20) -> Inspection:
    """Return an inspection that has seen both directions, in parts of *step* bytes."""
    found = Inspection()
    for sent, look in ((up, found.up), (down, found.down)):
        for at in range(0, len(sent), step):
            look(memoryview(sent)[at : at + step])
    return found


def reason(up: bytes, step: int = 2**20) -> str:
    with pytest.raises(RefusedBytesError) as caught:
        seen(up, step=step)
    return caught.value.reason


@pytest.mark.parametrize("step", [1, 4, 2**20])
def test_a_stream_is_open_from_its_headers_to_its_end(step: int) -> None:
    """Which is gRPC's, or a reset by either side; settings, pings and others open none."""
    up = frame(SETTINGS, 0, bytes(6)) + frame(UNKNOWN, 0, b"x" * 30)
    for stream in (1, 3, 5, 7):
        up += call(stream, "DoGet", "k") + data(stream, REQUEST)
    up += frame(RST_STREAM, 3, bytes(4))
    down = frame(SETTINGS, 0, bytes(12)) + frame(HEADERS, 1, b"x") + frame(DATA, 1, bytes(999))
    down += frame(HEADERS, 5, b"x", END_STREAM) + frame(RST_STREAM, 7, bytes(4))
    found = seen(up, down, step)

    assert [1] == list(found.streams)
    assert 1 == found.streams[1].messages.ended
    # Trailers for one that has ended do not open it again.
    found.up(memoryview(call(5, "DoGet", "k")))
    assert [1] == list(found.streams)


def test_a_connection_has_a_bounded_number_of_streams() -> None:
    """One that has ended makes room."""
    up = b"".join(call(1 + 2 * number, "DoPut", "k") for number in range(STREAMS_MAX))
    more = call(1 + 2 * STREAMS_MAX, "DoPut", "k")
    assert STREAMS_MAX == len(seen(up + frame(RST_STREAM, 1, bytes(4)) + more).streams)
    assert FLIGHT_STREAMS == reason(up + more)


def padded(stream: int, content: bytes, padding: int) -> bytes:
    payload = bytes([padding]) + content + bytes(padding)
    return frame(DATA, stream, payload, PADDED)


@pytest.mark.parametrize("step", [1, 3, 2**20])
def test_messages_are_followed_across_frames_padding_and_streams(step: int) -> None:
    """Interleaved; the padding is no part of them."""
    one = message(field(1, b"x" * 50))
    up = call(1, "DoPut", "k") + call(3, "DoPut", "k")
    for at in range(0, len(one), 7):
        up += padded(1, one[at : at + 7], at) + data(3, one[at : at + 7], ends=False)
        up += frame(DATA, 1) + padded(3, b"", 5)
    found = seen(up, step=step)

    assert [1, 1] == [stream.messages.ended for stream in found.streams.values()]
    assert 2 * len(one) == found.held_bytes
    compressed = message(b"x", compressed=True)
    assert FLIGHT_COMPRESSED == reason(call(1, "DoPut", "k") + padded(1, compressed, 9), step)


REFUSED: Final = [
    (frame(HEADERS, 2, b"x"), FLIGHT_FRAME),
    (frame(HEADERS, 0, b"x"), FLIGHT_FRAME),
    (frame(DATA, 1, b"", PADDED), FLIGHT_FRAME),
    (frame(DATA, 1, b"\x05abc", PADDED), FLIGHT_FRAME),
    (call(1, "DoAction", "k") + data(1, message(b"", size=2**30)), FLIGHT_MESSAGE),
]


@pytest.mark.parametrize(("up", "why"), REFUSED)
def test_what_breaks_the_protocol_is_refused(up: bytes, why: str) -> None:
    """And a message that is too long, at its first five bytes."""
    assert why == reason(up)
    assert why == reason(up, 1)


def test_bytes_are_held_until_they_are_taken() -> None:
    """What gRPC lets the peer send anew, it has handed on; the end of a stream frees all."""
    whole = message(field(BODY, bytes(10_000)))
    found = seen(call(1, "DoPut", "k") + data(1, whole, ends=False) + call(3, "DoPut", "k"))
    assert len(whole) == found.held_bytes
    for part in frame(WINDOW_UPDATE, 1, struct.pack(">I", 4_000)):
        found.down(memoryview(bytes([part])))
    assert len(whole) - 4_000 == found.held_bytes
    found.down(memoryview(frame(WINDOW_UPDATE, 0, struct.pack(">I", 9_000))))
    found.up(memoryview(data(3, whole[:5_000], ends=False)))
    assert len(whole) - 4_000 + 5_000 == found.held_bytes
    # An unfinished message is held whole, whatever gRPC lets the peer send ahead.
    found.down(memoryview(frame(WINDOW_UPDATE, 3, struct.pack(">I", 2**20))))
    assert len(whole) - 4_000 + 4_995 == found.held_bytes
    found.up(memoryview(frame(RST_STREAM, 1, bytes(4)) + frame(RST_STREAM, 3, bytes(4))))

    assert 0 == found.held_bytes


def test_only_calls_make_progress() -> None:
    """By the end of a message, 64 KiB of one, or an answer: not by frames that say nothing."""
    found = seen(call(1, "DoPut", "k"))
    stream = found.streams[1]
    assert [0.0, 5.0] == [stream.silent_s(now) for now in (10.0, 15.0)]
    moved = found.moved
    found.up(memoryview(frame(UNKNOWN, 0, b"x") + frame(UNKNOWN, 1, b"x")))
    found.up(memoryview(data(1, message(b"", size=2**20), ends=False)))
    assert 6.0 == stream.silent_s(16.0)
    assert moved + 5 == found.moved
    found.up(memoryview(data(1, field(BODY, bytes(PROGRESS_BYTES)), ends=False)))
    assert 0.0 == stream.silent_s(17.0)
    found.down(memoryview(frame(DATA, 1, bytes(PROGRESS_BYTES - 1))))
    assert 1.0 == stream.silent_s(18.0)
    found.down(memoryview(frame(DATA, 1, b"x")))
    assert 0.0 == stream.silent_s(19.0)
    found.down(memoryview(frame(HEADERS, 1, b"x")))
    assert 0.0 == stream.silent_s(20.0)


def test_noise_raises_nothing_else() -> None:
    """In either direction: an error of another kind would end the thread of many others."""
    dice = random.Random(7)
    seed = call(1, "DoPut", "k") + data(1, REQUEST, ends=False) + padded(1, REQUEST, 3)
    seed += frame(WINDOW_UPDATE, 1, bytes(4)) + frame(RST_STREAM, 1, bytes(4))
    reasons = set()
    for _ in range(3_000):
        noise = bytearray(seed if dice.random() < 0.8 else dice.randbytes(200))
        for _ in range(dice.randrange(1, 6)):
            noise[dice.randrange(len(noise))] = dice.randrange(256)
        step = dice.choice([1, 5, 2**20])
        seen(down=bytes(noise), step=step)
        try:
            seen(up=bytes(noise), step=step)
        except RefusedBytesError as error:
            reasons.add(error.reason)
    assert {FLIGHT_FRAME, FLIGHT_MESSAGE, FLIGHT_COMPRESSED} == reasons
