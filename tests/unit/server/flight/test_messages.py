"""Messages of gRPC and what is in them, whole and cut anywhere."""

import random
import struct
from typing import Final

import pyarrow as pa
import pytest

from braidmq.server.flight.messages import (
    FIELD_BYTES_MAX,
    FLIGHT_COMPRESSED,
    FLIGHT_MESSAGE,
    HEADER_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MessageError,
    Messages,
)
from tests.unit.server.flight.frames import (
    APP_METADATA,
    BODY,
    HEADER,
    field,
    message,
    varint,
)

SCHEMA: Final = pa.schema([("value", pa.binary())])
BATCH: Final = pa.record_batch([pa.array([bytes(1000)] * 10, pa.binary())], schema=SCHEMA)
WORDS: Final = pa.array(["a" * 100] * 10).dictionary_encode()


def headers_of(batch: pa.RecordBatch, codec: str | None = None) -> list[bytes]:
    """Return the headers of what Arrow writes for a batch: schema, dictionaries, rows."""
    return [one.metadata.to_pybytes() for one in written(batch, codec)]


def written(batch: pa.RecordBatch, codec: str | None) -> list[pa.Message]:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return list(pa.ipc.MessageReader.open_stream(sink.getvalue()))


def header(codec: str | None = None) -> bytes:
    return headers_of(BATCH, codec)[1]


def taken(data: bytes, step: int = 2**20) -> Messages:
    """Return what is known after *data* has come in parts of *step* bytes."""
    found = Messages()
    for at in range(0, len(data), step):
        found.take(memoryview(data)[at : at + step])
    return found


def reason(data: bytes, step: int = 2**20) -> str:
    with pytest.raises(MessageError) as caught:
        taken(data, step)
    return caught.value.reason


DESCRIPTOR: Final = b"\x08\x02" + field(2, b'{"topic":"t"}')
GOOD: Final = [
    message(b""),
    message(field(1, b"{}")),  # a ticket
    message(DESCRIPTOR),
    message(field(1, b"offsets") + field(2, b'{"a":1}')),  # an action
    message(field(1, DESCRIPTOR) + field(HEADER, headers_of(BATCH)[0])),  # a schema
    message(field(HEADER, header()) + field(BODY, bytes(70_000))),
    message(field(BODY, b"x") + field(APP_METADATA, b"{}") + field(HEADER, header())),
]


@pytest.mark.parametrize("step", [1, 2, 7, 2**20])
def test_what_clients_send_is_taken(step: int) -> None:
    """However it is cut: requests, schemas and batches, with fields in any order."""
    found = taken(b"".join(GOOD), step)

    assert (len(GOOD), 0) == (found.ended, found.unfinished_bytes)


def test_what_is_unfinished_is_counted() -> None:
    """From the first byte of a message to its last."""
    whole = message(field(BODY, bytes(1000)))
    counts = [taken(whole[:end], 1).unfinished_bytes for end in range(len(whole) + 1)]

    assert [0, 1, 2, 3, 4] == counts[:5]
    assert counts[:-1] == sorted(counts[:-1])
    assert len(whole) - 6 <= counts[-2] <= len(whole)
    assert 0 == counts[-1]


DICTIONARIES: Final = headers_of(pa.record_batch([WORDS], names=["w"]), "zstd")[1:]
EXPERIMENTAL: Final = header() + b"ARROW:experimental_compression"
COMPRESSED: Final = [
    message(field(1, b"x"), compressed=True),
    message(field(HEADER, header("zstd")) + field(BODY, b"x")),
    message(field(HEADER, header("lz4")) + field(BODY, b"x")),
    message(field(BODY, b"x") + field(HEADER, header("lz4"))),
    message(field(HEADER, header()) + field(HEADER, header("zstd"))),
    message(field(HEADER, header("zstd")) + field(HEADER, header())),
    message(field(HEADER, EXPERIMENTAL)),
    *(message(field(HEADER, one)) for one in DICTIONARIES),
    # Field 1 as a number, which Arrow takes for a length.
    message(b"\x08\x02" + field(3, b"") + field(HEADER, header("zstd"))),
]


@pytest.mark.parametrize("step", [1, 3, 2**20])
@pytest.mark.parametrize("data", COMPRESSED)
def test_what_would_have_to_be_unpacked_is_refused(data: bytes, step: int) -> None:
    """Before the last byte of it: Arrow unpacks a batch before any handler can judge it."""
    assert FLIGHT_COMPRESSED == reason(data, step)
    assert FLIGHT_COMPRESSED == reason(data + b"\0", step)


def test_a_refusal_comes_before_the_body() -> None:
    """What Arrow could act on has not been passed on."""
    found = Messages()
    start = message(field(HEADER, header("zstd")), size=10_000)
    with pytest.raises(MessageError):
        found.take(memoryview(start))


BAD: Final = {
    "too long": message(b"", size=MESSAGE_BYTES_MAX + 1),
    "a long request": message(varint(2 << 3 | 2) + varint(FIELD_BYTES_MAX + 1), size=2**25),
    "a long header": message(
        varint(2 << 3 | 2) + varint(HEADER_BYTES_MAX + 1) + struct.pack("<I", 100), size=2**25
    ),
    "a header of another type": message(b"\x10\x05"),
    "a body of another type": message(varint(1000 << 3) + b"\x05"),
    "a group": message(b"\x0b\x0c"),
    "a fixed number": message(b"\x0d1234"),
    "no field": message(b"\x00\x00"),
    "a long tag": message(b"\x92\x80\x80\x80\x80\x00\x00"),
    "a tag beyond 32 bits": message(b"\x92\x80\x80\x80\x10\x00"),
    "a field beyond the message": message(b"\x0a\x7fxx"),
    "half a tag": message(b"\x92"),
    "half a field": message(b"\x0a"),
    "an offset outside": message(field(HEADER, struct.pack("<Ii", 4, -100))),
    "fields outside": message(field(HEADER, struct.pack("<Ii", 4, 100))),
}


@pytest.mark.parametrize("step", [1, 2**20])
@pytest.mark.parametrize("case", BAD)
def test_what_no_client_sends_is_refused(case: str, step: int) -> None:
    """What is too long, as soon as it says so; what Arrow may read in another way."""
    assert FLIGHT_MESSAGE == reason(BAD[case], step)


def test_the_longest_message_and_request_are_taken() -> None:
    """A batch as large as a stage may have, and JSON of four MiB in field 2."""
    size = MESSAGE_BYTES_MAX - 7
    found = taken(message(varint(BODY << 3 | 2) + varint(size) + bytes(size)))
    assert (1, 0) == (found.ended, found.unfinished_bytes)
    text = b'{"topics":["' + bytes(97 for _ in range(FIELD_BYTES_MAX - 15)) + b'"]}'

    assert 1 == taken(message(field(2, text))).ended


def test_noise_raises_nothing_else() -> None:
    """Whatever is flipped in a message, and in the header of a batch most of all."""
    dice = random.Random(19)
    seeds = [*GOOD, *COMPRESSED]
    outcomes = set()
    for _ in range(4_000):
        data = bytearray(dice.choice(seeds)[:2_000])
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            taken(bytes(data), dice.choice([1, 13, 2**20]))
        except MessageError as error:
            outcomes.add(error.reason)
    assert {FLIGHT_COMPRESSED, FLIGHT_MESSAGE} == outcomes


def test_no_flip_in_a_header_hides_that_it_is_compressed_from_us_alone() -> None:
    """If Arrow still reads a batch as compressed, so do we: each bit of the header, flipped."""
    whole = written(BATCH, "zstd")[1]
    head, body = whole.metadata.to_pybytes(), whole.body.to_pybytes()
    missed = []
    for at in range(8 * len(head)):
        flipped = bytearray(head)
        flipped[at // 8] ^= 1 << at % 8
        try:
            taken(message(field(HEADER, bytes(flipped))))
        except MessageError:
            continue
        framed = b"\xff\xff\xff\xff" + struct.pack("<I", len(flipped)) + bytes(flipped) + body
        try:
            found = pa.ipc.read_record_batch(pa.py_buffer(framed), SCHEMA)
        except (pa.ArrowException, OSError, EOFError, TypeError):
            continue
        if found.nbytes > len(body):
            missed.append(at)
    assert [] == missed
