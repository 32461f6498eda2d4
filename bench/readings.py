"""A long log of readings, written straight into a data directory: what Arrow and Spark read.

Every payload is a JSON object of 100 bytes that fits the built-in schema `sensor.Temperature`;
topics follow each other at random, so that each of them is everywhere in the log.
"""

import random
from pathlib import Path
from typing import Final

from braidmq.broker.records import describe, encode_message
from braidmq.broker.topics import Message, Topic
from braidmq.wal.disk import Disk
from braidmq.wal.options import WalOptions
from braidmq.wal.wal import Wal

TOPICS: Final = 100
SCHEMA: Final = "sensor.Temperature"
ONE_TOPIC: Final = "sensors/42"
PAYLOAD_BYTES: Final = 100

BATCH_MESSAGES: Final = 10_000
_START_MS: Final = 1_700_000_000_000
_SENSORS: Final = 1_000


def write(directory: Path, messages: int) -> None:
    """Write a log of readings, a millisecond apart, to *directory*."""
    directory.mkdir(parents=True)
    options = WalOptions(fsync="every_n:100000")
    wal = Wal.open(
        Disk(directory), options, describe, now_us=1, after_id=0, visit=lambda *_: None
    )
    dice = random.Random(1)  # the same log every time
    for first in range(0, messages, BATCH_MESSAGES):
        numbers = range(first, min(first + BATCH_MESSAGES, messages))
        wal.append([_record(number, dice) for number in numbers])
        wal.commit(1)
    wal.close()


def _record(number: int, dice: random.Random) -> bytes:
    room = dice.randrange(TOPICS)
    topic = Topic(f"sensors/{room:02d}")
    moment_ms = _START_MS + number
    payload = (
        b'{"celsius":%05.2f,"timestamp_ms":%d,'
        b'"sensor_id":"building-07/floor-03/room-%02d/sensor-%03d"}'
        % (10 + 20 * dice.random(), moment_ms, room, number % _SENSORS)
    )
    assert len(payload) == PAYLOAD_BYTES
    message = Message(topic, 1, len(topic.raw).to_bytes(2, "big") + topic.raw + payload)
    message.timestamp_us = moment_ms * 1_000
    return encode_message(message)
