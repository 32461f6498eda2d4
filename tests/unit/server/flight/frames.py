"""HTTP/2 and Flight's messages by hand, for tests of what no client would send."""

import struct
from typing import Final

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
WINDOW_UPDATE: Final = 8
UNKNOWN: Final = 0xFA
END_STREAM: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
INITIAL_WINDOW: Final = 4  # a setting

HEADER: Final = 2  # fields of FlightData
APP_METADATA: Final = 3
BODY: Final = 1000

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVICE: Final = "/arrow.flight.protocol.FlightService/"


def frame(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


def varint(number: int) -> bytes:
    found = b""
    while number >= 128:
        found += bytes([number % 128 + 128])
        number //= 128
    return found + bytes([number])


def field(number: int, value: bytes) -> bytes:
    """Return a field of protobuf that holds bytes."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(content: bytes, *, compressed: bool = False, size: int | None = None) -> bytes:
    """Return a message of gRPC; *size* is what it says of its length."""
    return struct.pack(">BI", compressed, len(content) if size is None else size) + content


def call(stream: int, method: str, key: str) -> bytes:
    """Return the headers that begin a call, none of them indexed."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": SERVICE + method,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
        "authorization": f"Bearer {key}",
    }
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )
    return frame(HEADERS, stream, block, END_HEADERS)


def data(stream: int, content: bytes, *, ends: bool = True) -> bytes:
    return frame(DATA, stream, content, END_STREAM if ends else 0)
