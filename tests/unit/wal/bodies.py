"""Record bodies for the log tests, and logs on a fake disk. These are not the broker's records.

0      1     2          3        4            12           14
+------+-----+----------+--------+------------+------------+-------+---------+
| kind | qos | priority | origin | timestamp  | topic size | topic | payload |
+------+-----+----------+--------+------------+------------+-------+---------+
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from braidmq.base.errors import UnknownRecordError
from braidmq.base.records import Description
from braidmq.testing.disk import FakeDisk
from braidmq.wal.disk import Disk
from braidmq.wal.format import SEGMENT_MAGIC, encode_header, encode_record
from braidmq.wal.options import WalOptions
from braidmq.wal.segment import SegmentInfo
from braidmq.wal.wal import Wal

MESSAGE: Final = 1
NOTE: Final = 2
"""A record that is not a message."""
_MESSAGE: Final = Struct("<BBBBQH")
SMALL: Final = 4096
"""The smallest segment size, so that the log rotates soon."""
FIRST: Final = "wal/00000000000000000001.wal"
FIRST_INDEX: Final = "wal/00000000000000000001.idx"


def message(topic: bytes, payload: bytes, timestamp_us: int = 5, *, priority: int = 2) -> bytes:
    return _MESSAGE.pack(MESSAGE, 1, priority, 3, timestamp_us, len(topic)) + topic + payload


def note(text: bytes) -> bytes:
    return bytes([NOTE]) + text


def describe(body: bytes) -> Description:
    if body[0] == NOTE:
        return Description(b"", 0, 0, 0, 0, 0)
    if body[0] != MESSAGE:
        raise UnknownRecordError(body[0])
    _, qos, priority, origin, timestamp_us, size = _MESSAGE.unpack_from(body)
    end = _MESSAGE.size + size
    return Description(body[_MESSAGE.size : end], end, timestamp_us, qos, priority, origin)


def open_log(
    files: FakeDisk | Disk,
    seen: list[tuple[int, bytes]] | None = None,
    *,
    fsync: str = "always",
    segment_bytes: int = SMALL,
    after_id: int = 0,
    now_us: int = 1000,
    **retention: float,
) -> Wal:
    options = WalOptions(
        fsync=fsync,
        segment_bytes=segment_bytes,
        retention_hours=retention.get("hours", 168.0),
        retention_bytes=int(retention.get("limit", 0)),
        retention_force=bool(retention.get("force", 0)),
    )
    found = [] if seen is None else seen
    return Wal.open(
        files,
        options,
        describe,
        now_us=now_us,
        after_id=after_id,
        visit=lambda record_id, body: found.append((record_id, body)),
    )


def write(wal: Wal, *batches: list[bytes], now_us: int = 1000) -> None:
    """Append and commit each batch separately."""
    for batch in batches:
        wal.append(batch)
        wal.commit(now_us)


def numbered(count: int, topic: bytes = b"t", size: int = 100) -> list[bytes]:
    return [message(topic, b"%06d" % i + bytes([65 + i % 26]) * size) for i in range(count)]


def batches_of(bodies: list[bytes], size: int) -> list[list[bytes]]:
    return [bodies[i : i + size] for i in range(0, len(bodies), size)]


def sealed_log() -> tuple[FakeDisk, SegmentInfo]:
    """Return the disk of a log of 60 records, and its first segment, which is sealed."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, *batches_of(numbered(60), 5))
    return disk, wal.segments()[0]


def tiny_log() -> FakeDisk:
    """Return the disk of a log with two segments, small enough to flip every bit."""
    disk = FakeDisk()
    at = 1
    for batch in (numbered(3, size=5), [message(b"u", b"other"), note(b"n")]):
        records = [encode_record(at + i, body, fence=not i) for i, body in enumerate(batch)]
        header = encode_header(SEGMENT_MAGIC, at, 1000 + at)
        disk.put(f"wal/{at:020}.wal", header + b"".join(records))
        at += len(batch)
    open_log(disk).close()
    return disk


def flip_bit(data: bytes, bit: int) -> bytes:
    """Return *data* with one bit flipped."""
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def remove(*paths: str) -> Callable[[FakeDisk], None]:
    """Return a disaster: these files are gone."""

    def damage(disk: FakeDisk) -> None:
        for path in paths:
            disk.remove(path)

    return damage


def read_everything(wal: Wal, topic: bytes | None = None) -> list[tuple[int, bytes]]:
    """Read a topic, or the whole log, to the end in small steps."""
    records: list[tuple[int, bytes]] = []
    reached = 0
    while reached < wal.committed_id:
        found = wal.read(
            reached, topic=topic, up_to=wal.committed_id, count_max=7, bytes_max=2000
        )
        records += found.records
        assert found.reached_id > reached
        reached = found.reached_id
    return records
