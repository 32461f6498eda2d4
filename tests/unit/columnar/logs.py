"""Real logs of the broker's records, and a plain reader of them.

The plain reader goes through the segment files record by record and never uses an index.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from braidmq.broker.records import (
    DEAD_LETTER,
    FIRST_MESSAGE,
    MESSAGE,
    SINK_ROW,
    StoredMessage,
    describe,
    encode_dead_letter,
    encode_first_message,
    encode_message,
    encode_unsubscribe,
)
from braidmq.broker.topics import ORIGIN_SPARK, Message, Topic, decode_headers, encode_headers
from braidmq.wal.disk import Disk
from braidmq.wal.format import HEADER_BYTES, scan
from braidmq.wal.options import WalOptions
from braidmq.wal.wal import Wal

SMALL: Final = 4096
"""The smallest segment size, so that the log rotates soon."""
NOTE: Final = encode_unsubscribe(7, 1)
"""A record that is not a message."""

Row = dict[str, Any]

PRIORITIES: Final = ("low", "normal", "high", "critical")
ORIGINS: Final = ("0", "blip", "vibe", "qumbed", "http", "spark")


def body_of(topic: str, payload: bytes) -> bytes:
    name = topic.encode()
    return len(name).to_bytes(2, "big") + name + payload


def message(
    topic: str,
    payload: bytes,
    timestamp_us: int = 1_000,
    *,
    qos: int = 1,
    priority: int = 1,
    origin: int = 1,
    kept: dict[str, str] | None = None,
) -> bytes:
    made = Message(Topic(topic), qos, body_of(topic, payload))
    made.priority, made.origin, made.timestamp_us = priority, origin, timestamp_us
    made.headers = encode_headers(kept or {})
    return encode_message(made)


def dead_letter(
    topic: str, payload: bytes, timestamp_us: int = 1_000, kept: dict[str, str] | None = None
) -> bytes:
    letter = Message(Topic(topic), 1, body_of(topic, payload))
    letter.priority, letter.origin = 2, 2
    letter.timestamp_us = timestamp_us
    letter.headers = encode_headers(kept or {})
    return encode_dead_letter(letter, subscription_id=3, after_id=4, message_id=5)


def first_message(
    topic: str, payload: bytes, timestamp_us: int = 1_000, kept: dict[str, str] | None = None
) -> bytes:
    first = Message(Topic(topic), 1, body_of(topic, payload))
    first.timestamp_us = timestamp_us
    first.headers = encode_headers(kept or {})
    return encode_first_message(first, bytes(range(16)))


def sink_row(
    topic: str, payload: bytes, timestamp_us: int = 1_000, kept: dict[str, str] | None = None
) -> bytes:
    row = Message(Topic(topic), 1, body_of(topic, payload))
    row.origin = ORIGIN_SPARK
    row.headers = encode_headers(kept or {})
    row.timestamp_us = timestamp_us
    return encode_message(row, SINK_ROW)


def open_log(root: Path, *, segment_bytes: int = SMALL, fsync: str = "always") -> Wal:
    root.mkdir(exist_ok=True)
    options = WalOptions(
        fsync=fsync, segment_bytes=segment_bytes, retention_bytes=1, retention_force=True
    )
    return Wal.open(Disk(root), options, describe, now_us=1, after_id=0, visit=lambda *_: None)


@contextmanager
def log_of(
    root: Path, bodies: Iterable[bytes], *, segment_bytes: int = SMALL, batch: int = 7
) -> Iterator[Wal]:
    """A log that is still open, with *bodies* committed in batches."""
    wal = open_log(root, segment_bytes=segment_bytes)
    write(wal, list(bodies), batch=batch)
    yield wal
    wal.close()


def write(wal: Wal, bodies: list[bytes], *, batch: int = 7) -> None:
    for at in range(0, len(bodies), batch):
        wal.append(bodies[at : at + batch])
        wal.commit(1)


def write_log(
    root: Path, bodies: Iterable[bytes], *, segment_bytes: int = SMALL, batch: int = 7
) -> Path:
    """Write a log and close it; return its data directory."""
    with log_of(root, bodies, segment_bytes=segment_bytes, batch=batch):
        return root


def retain_from(wal: Wal, first_id: int) -> None:
    """Delete the segments whose ids are all below *first_id*, as retention does."""
    wal.retain(first_id, 1, recovery_id=first_id)


def segment_files(root: Path) -> list[Path]:
    return sorted((root / "wal").glob("*.wal"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def plain_records(root: Path) -> Iterator[tuple[int, bytes]]:
    for path in segment_files(root):
        found = scan(path.read_bytes()[HEADER_BYTES:], int(path.stem))
        assert not found.problem
        yield from found.records


def plain_rows(root: Path) -> list[Row]:
    """Every message of the log with all columns, in a list of dicts."""
    return [
        _row(record_id, body)
        for record_id, body in plain_records(root)
        if body[0] in {MESSAGE, DEAD_LETTER, SINK_ROW, FIRST_MESSAGE}
    ]


def _row(record_id: int, body: bytes) -> Row:
    stored = StoredMessage(body)
    kept = decode_headers(stored.headers)
    kept.pop("", None)
    key = kept.get("key")
    return {
        "key": None if key is None else key.encode(),
        "value": stored.body[2 + len(stored.topic.encode()) :],
        "topic": stored.topic,
        "partition": 0,
        "offset": record_id,
        "timestamp": datetime(1970, 1, 1, tzinfo=UTC)
        + timedelta(microseconds=stored.timestamp_us),
        "timestampType": 1,
        "headers": [{"key": k, "value": v.encode()} for k, v in kept.items()] or None,
        "qos": stored.qos,
        "priority": PRIORITIES[stored.priority],
        "origin": ORIGINS[stored.origin],
    }


def offsets_of(table: pa.Table) -> list[int]:
    found: list[int] = table.column("offset").to_pylist()
    return found
