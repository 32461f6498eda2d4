"""Columns of Spark's Kafka source, from index and segment; test_reading has most of them."""

from pathlib import Path

import numpy as np
import pytest

from braidmq.base.errors import ConfigError, DamagedLogError
from braidmq.broker import records
from braidmq.columnar.decoding.columns import ORIGINS, PRIORITIES, TYPES, Columns, column_names
from braidmq.columnar.segments.segments import Picked, Segment
from tests.unit.broker.drive import message_of
from tests.unit.columnar.logs import message, write_log


def columns_of(root: Path, bodies: list[bytes]) -> Columns:
    write_log(root, bodies, segment_bytes=2**20)
    segment = Segment(root, 1, len(bodies), sealed=False)
    return Columns(segment, Picked(np.arange(len(bodies)), segment.rows))


def test_the_default_columns_are_all_but_the_headers() -> None:
    """Headers are included on request, in their place."""
    everything = list(TYPES)

    assert everything == column_names(None, headers=True)
    assert [name for name in everything if name != "headers"] == column_names(
        None, headers=False
    )
    assert ["headers", "offset"] == column_names(["headers", "offset"], headers=False)
    with pytest.raises(ConfigError):
        column_names(["nothing"], headers=False)


def test_numbers_without_a_name_are_shown_as_numbers(tmp_path: Path) -> None:
    """A newer broker's origin is not hidden."""
    columns = columns_of(tmp_path, [message("t", b"", priority=3, origin=9), message("t", b"")])
    batch = columns.batch(["priority", "origin"])

    assert [
        {"priority": "critical", "origin": "9"},
        {"priority": "normal", "origin": "blip"},
    ] == (batch.to_pylist())
    assert 256 == len(PRIORITIES) == len(ORIGINS)


def test_any_header_can_be_read_by_its_name(tmp_path: Path) -> None:
    """A name that is a prefix of another does not match it."""
    columns = columns_of(
        tmp_path,
        [
            message("t", b"", kept={"ab": "1", "a": "2"}),
            message("t", b""),
            message("t", b"", kept={"abc": "3"}),
        ],
    )

    assert [b"1", None, None] == columns.named_header(b"ab").to_pylist()
    assert [b"2", None, None] == columns.named_header(b"a").to_pylist()
    assert [None, None, b"3"] == columns.named_header(b"abc").to_pylist()


def test_headers_that_the_broker_never_writes_are_damage(tmp_path: Path) -> None:
    """The record is intact, but its content is not what a record may hold."""
    name = b"\x00\x01t"
    broken = records.encode_message(message_of(name + b"payload", block=b"\x09\x00x"))
    columns = columns_of(tmp_path, [broken])

    assert [b"payload"] == columns.value().to_pylist()
    for column in ("headers", "key"):
        with pytest.raises(DamagedLogError, match="malformed headers"):
            columns.batch([column])


def test_headers_whose_keys_are_not_text_are_damage(tmp_path: Path) -> None:
    """They cannot be shown as text."""
    name = b"\x00\x01t"
    broken = records.encode_message(
        message_of(name + b"payload", block=b"\x01\x00\xff\x00\x00")
    )

    with pytest.raises(DamagedLogError, match="malformed headers"):
        columns_of(tmp_path, [broken]).batch(["headers"])
