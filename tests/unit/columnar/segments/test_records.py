"""Index rows made from records, for a read that wants few of many."""

from pathlib import Path

import numpy as np
import pytest

from braidmq import columnar
from braidmq.base.errors import DamagedLogError
from braidmq.columnar.segments.layout import ends_at
from braidmq.columnar.segments.segments import SPARSE_ROWS, Need, Segment
from braidmq.columnar.segments.verifying import rows_of_records
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
    assert len(segment.rows) == len(segment.index.numbers)
    return segment


def rare_rows(segment: Segment) -> np.ndarray:
    number = segment.names.index("rare")
    return np.nonzero(segment.rows["topic"] == number)[0]


def positions(segment: Segment, chosen: np.ndarray) -> list[np.ndarray]:
    return [segment.starts(chosen), ends_at(segment.rows, chosen)]


def test_rows_of_records_are_the_rows_of_the_index(tmp_path: Path) -> None:
    """For messages, dead letters and rows of a sink alike."""
    segment = sealed_log(tmp_path)
    chosen = rare_rows(segment)

    found = segment.verified(lambda: chosen, Need.RECORDS)

    assert 3 == len(chosen)
    assert not segment._blocks.verified.any()  # noqa: SLF001 - only tests look at it
    assert segment.rows[chosen].tolist() == found.rows.tolist()


def test_only_an_intact_message_has_a_row(tmp_path: Path) -> None:
    """A wrong position, a wrong id, too long a topic and another kind of record have none."""
    segment = sealed_log(tmp_path)
    chosen = rare_rows(segment)
    of_rare = positions(segment, chosen)
    note = np.array([len(COMMON) + 1])
    known = {
        "ids": chosen + 1,
        "topics": segment.rows["topic"][chosen],
        "name_bytes": segment.name_bytes,
    }

    assert rows_of_records(segment.buffer, *of_rare, **known) is not None
    for wrong in (
        [at + 1 for at in of_rare],
        [at + segment.buffer.size for at in of_rare],
        [of_rare[0], of_rare[0] + 17],
        [of_rare[0], np.append(of_rare[1][1:], segment.buffer.size)],
    ):
        assert rows_of_records(segment.buffer, *wrong, **known) is None
    other = {**known, "ids": chosen}
    assert rows_of_records(segment.buffer, *of_rare, **other) is None
    long_names = {**known, "name_bytes": segment.name_bytes + 5000}
    assert rows_of_records(segment.buffer, *of_rare, **long_names) is None
    of_note = {**known, "ids": note + 1, "topics": segment.rows["topic"][note]}
    assert rows_of_records(segment.buffer, *positions(segment, note), **of_note) is None


def test_records_that_are_too_many_for_one_copy_are_read_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is the same, and memory is bounded however long the payloads are."""
    segment = sealed_log(tmp_path)
    expected = columnar.read(tmp_path, headers=True, topics=["rare"])
    assert segment.verified(lambda: rare_rows(segment), Need.RECORDS).copied is not None

    monkeypatch.setattr("braidmq.columnar.segments.verifying.GROUP_RECORDS", 2)

    assert segment.verified(lambda: rare_rows(segment), Need.RECORDS).copied is None
    assert expected == columnar.read(tmp_path, headers=True, topics=["rare"])


def test_a_copy_is_cut_into_batches(tmp_path: Path) -> None:
    """Each batch has its own part of it."""
    sealed_log(tmp_path)
    expected = columnar.read(tmp_path, headers=True, topics=["rare"])

    found = list(columnar.batches(tmp_path, headers=True, topics=["rare"], batch_rows=1))

    assert 3 == len(found)
    assert expected.to_pylist() == [row for batch in found for row in batch.to_pylist()]


@pytest.mark.parametrize("which", ["index", "segment"])
def test_no_flipped_bit_changes_what_is_read_of_a_rare_topic(
    tmp_path: Path, which: str
) -> None:
    """For every byte: the rows are those that were written, or the damage is reported.

    Records of other topics are not read, so only some of their bytes are tried. Their rows of
    the index are all alike: of each some bytes are tried, and every byte of some.
    """
    segment = sealed_log(tmp_path)
    path = segment_files(tmp_path)[0]
    path = path.with_suffix(".idx") if which == "index" else path
    intact = path.read_bytes()
    expected = [row for row in plain_rows(tmp_path) if row["topic"] == "rare"]
    positions = set(range(len(intact)))
    others = set(range(len(segment.rows))) - set(rare_rows(segment).tolist())
    if which == "segment":
        starts = segment.starts(np.arange(len(segment.rows))).tolist()
        records = [*zip(starts, [*starts[1:], len(intact)], strict=True)]
        positions -= {at for other in others for at in range(*records[other]) if at % 16}
    else:
        size = segment.rows.itemsize
        rows = {other: range(32 + size * other, 32 + size * (other + 1)) for other in others}
        positions -= {at for other in others for at in rows[other] if (at + other) % 8}
    found_damage = 0

    for at in sorted(positions):
        flip(path, at)
        try:
            found = columnar.read(tmp_path, headers=True, topics=["rare"]).to_pylist()
            assert expected == found, at
        except DamagedLogError:
            found_damage += 1
        path.write_bytes(intact)
    assert (found_damage > 0) == (which == "segment")


def test_few_columns_of_a_rare_topic_are_verified_by_the_index(tmp_path: Path) -> None:
    """A read without payloads does not read the segment."""
    segment = sealed_log(tmp_path)
    path = segment_files(tmp_path)[0].with_suffix(".idx")
    expected = columnar.read(tmp_path, topics=["rare"], columns=["offset", "timestamp"])
    assert (segment.rows[rare_rows(segment)]["id"].tolist()) == expected["offset"].to_pylist()

    flip(path, 32 + 32 * 5 + 9)  # the time in the row of another topic's message
    assert expected == columnar.read(tmp_path, topics=["rare"], columns=["offset", "timestamp"])
    assert 3 == columnar.cut(tmp_path, topics=["rare"])[0].messages


def test_messages_of_a_rare_topic_are_counted_without_verifying_rows(tmp_path: Path) -> None:
    """Their number is verified; their sizes only decide where to cut."""
    segment = sealed_log(tmp_path)
    path = segment_files(tmp_path)[0].with_suffix(".idx")
    end = len(BODIES) + 2
    expected = [columnar.Part(1, end, 3, len(b"onetwothree"))]
    assert expected == columnar.cut(tmp_path, topics=["rare"])
    flip(path, 32 + 32 * 5 + 9)  # in a row that is not wanted
    assert expected == columnar.cut(tmp_path, topics=["rare"])

    flip(path, 32 + 32 * int(rare_rows(segment)[1]) + 22)  # now it is 1 MiB long
    (found,) = columnar.cut(tmp_path, topics=["rare"])
    assert (1, end, 3) == found[:3]
    assert found.payload_bytes > 2**20
