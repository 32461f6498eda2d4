"""Rows made of records, for a read that wants few of many."""

from pathlib import Path

import numpy as np
import pytest

from braidmq import columnar
from braidmq.base.errors import DamagedLogError
from braidmq.columnar.records import rows_of_records
from braidmq.columnar.segments import SPARSE_ROWS, Need, Segment
from tests.unit.columnar.logs import (
    NOTE,
    dead_letter,
    flip,
    message,
    plain_rows,
    segment_files,
    sink_row,
    write_log,
)

COMMON = [message("often", b"x") for _ in range(SPARSE_ROWS)]
RARE = [
    message("rare", b"one", 11, qos=0, priority=3, origin=2, kept={"key": "k", "o": "ö"}),
    dead_letter("rare", b"two", 12, {"a": "b"}),
    sink_row("rare", b"three", 13, {"k": "v"}),
]
BODIES = [RARE[0], *COMMON, NOTE, *COMMON, RARE[1], *COMMON, *COMMON, RARE[2]]


def sealed_log(root: Path) -> Segment:
    write_log(root, [*BODIES, message("z", b"z" * 4096)], segment_bytes=4096, batch=99)
    segment = Segment(root, 1, len(BODIES) + 1, sealed=True)
    assert segment.index.numbers is not None
    return segment


def rare_rows(segment: Segment) -> np.ndarray:
    number = segment.names.index("rare")
    return np.nonzero(segment.rows["topic"] == number)[0]


def test_rows_of_records_are_the_rows_of_the_index(tmp_path: Path) -> None:
    """Of messages, dead letters and rows of a sink alike."""
    segment = sealed_log(tmp_path)
    chosen = rare_rows(segment)

    found = segment.verified(lambda: chosen, Need.RECORDS)

    assert 3 == len(chosen)
    assert 0 == segment.blocks_verified
    assert segment.rows[chosen].tolist() == found.rows.tolist()


def test_what_is_no_intact_message_there_has_no_row(tmp_path: Path) -> None:
    """Another place, another id, a topic whose name is too long, or what is no message."""
    segment = sealed_log(tmp_path)
    chosen = rare_rows(segment)
    starts, topics = segment.starts(chosen), segment.rows["topic"][chosen].astype(np.int64)
    note = np.array([len(COMMON) + 1])
    known = {"ids": chosen + 1, "topics": topics, "name_bytes": segment.name_bytes}

    assert None is not rows_of_records(segment.buffer, starts, **known)
    assert None is rows_of_records(segment.buffer, starts + 1, **known)
    assert None is rows_of_records(segment.buffer, starts + segment.buffer.size, **known)
    assert None is rows_of_records(segment.buffer, starts, **{**known, "ids": chosen})
    long_names = segment.name_bytes + 5000
    assert None is rows_of_records(
        segment.buffer, starts, **{**known, "name_bytes": long_names}
    )
    of_note = {"ids": note + 1, "topics": note * 0, "name_bytes": segment.name_bytes}
    assert None is rows_of_records(segment.buffer, segment.starts(note), **of_note)


@pytest.mark.parametrize("which", ["index", "segment"])
def test_no_flipped_bit_changes_what_is_read_of_a_rare_topic(
    tmp_path: Path, which: str
) -> None:
    """Of every byte: the rows are those that were written, or the damage is told.

    Of the records of other topics, which are not read, only of some.
    """
    segment = sealed_log(tmp_path)
    path = segment_files(tmp_path)[0]
    path = path.with_suffix(".idx") if which == "index" else path
    intact = path.read_bytes()
    expected = [row for row in plain_rows(tmp_path) if row["topic"] == "rare"]
    places = set(range(len(intact)))
    if which == "segment":
        starts = segment.starts(np.arange(len(segment.rows))).tolist()
        records = [*zip(starts, [*starts[1:], len(intact)], strict=True)]
        others = set(range(len(records))) - set(rare_rows(segment).tolist())
        places -= {at for other in others for at in range(*records[other]) if at % 16}
    found_damage = 0

    for at in sorted(places):
        flip(path, at)
        try:
            found = columnar.read(tmp_path, headers=True, topics=["rare"]).to_pylist()
            assert expected == found, at
        except DamagedLogError:
            found_damage += 1
        path.write_bytes(intact)
    assert (found_damage > 0) == (which == "segment")


def test_few_columns_of_a_rare_topic_are_verified_by_the_index(tmp_path: Path) -> None:
    """Whoever wants no payload does not have the segment read."""
    segment = sealed_log(tmp_path)
    path = segment_files(tmp_path)[0].with_suffix(".idx")
    expected = columnar.read(tmp_path, topics=["rare"], columns=["offset", "timestamp"])
    assert (segment.rows[rare_rows(segment)]["id"].tolist()) == expected["offset"].to_pylist()

    flip(path, 32 + 32 * 5 + 9)  # the time in the row of another topic's message
    assert expected == columnar.read(tmp_path, topics=["rare"], columns=["offset", "timestamp"])
    assert 3 == columnar.cut(tmp_path, topics=["rare"])[0].messages


def test_messages_of_a_rare_topic_are_counted_without_verifying_rows(tmp_path: Path) -> None:
    """Their number is verified; what they hold only says where to cut."""
    segment = sealed_log(tmp_path)
    path = segment_files(tmp_path)[0].with_suffix(".idx")
    behind = len(BODIES) + 2
    expected = [columnar.Part(1, behind, 3, len(b"onetwothree"))]
    assert expected == columnar.cut(tmp_path, topics=["rare"])
    flip(path, 32 + 32 * 5 + 9)  # in a row that nobody has asked for
    assert expected == columnar.cut(tmp_path, topics=["rare"])

    flip(path, 32 + 32 * int(rare_rows(segment)[1]) + 22)  # now it is 1 MiB long
    (found,) = columnar.cut(tmp_path, topics=["rare"])
    assert (1, behind, 3) == found[:3]
    assert found.payload_bytes > 2**20
