"""The names of topics in a range."""

from pathlib import Path

import pytest

from braidmq.base.errors import DamagedLogError
from braidmq.columnar.segments.names import topic_names
from tests.unit.columnar.logs import (
    NOTE,
    flip,
    log_of,
    message,
    retain_from,
    segment_files,
    write_log,
)

BODIES = [message(f"t{number // 10}", bytes(500)) for number in range(100)]
EVER = 2**62


def test_all_topics_are_named_over_all_segments(tmp_path: Path) -> None:
    """The growing segment's, too, and nothing that is no message."""
    write_log(tmp_path, [*BODIES, NOTE])

    assert len(segment_files(tmp_path)) > 5
    assert ({f"t{n}" for n in range(10)}, 102) == topic_names(tmp_path, 0, EVER)


def test_a_range_names_at_least_its_own(tmp_path: Path) -> None:
    """Segments that have nothing of the range are not looked at."""
    write_log(tmp_path, BODIES)
    names, behind = topic_names(tmp_path, 41, 51)

    assert 51 == behind
    assert "t4" in names
    assert not names & {"t0", "t8", "t9"}
    assert (set(), 0) == topic_names(tmp_path, 0, 0)


def test_what_retention_took_is_no_matter(tmp_path: Path) -> None:
    """Who reads the range is told; a name more or less is not loss."""
    with log_of(tmp_path, BODIES) as wal:
        retain_from(wal, 60)
        names, _ = topic_names(tmp_path, 1, EVER)

    assert {"t6", "t7", "t8", "t9"} <= names
    assert "t0" not in names


def test_the_names_of_a_growing_segment_are_verified(tmp_path: Path) -> None:
    """Its index is believed after a look at the records only."""
    write_log(tmp_path, BODIES[:5], segment_bytes=2**20)
    (segment,) = segment_files(tmp_path)
    flip(segment, 32 + 16 + 30)  # in the first record

    with pytest.raises(DamagedLogError):
        topic_names(tmp_path, 0, EVER)
