"""Which messages a read wants."""

from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.columnar.segments.segments import Segment
from braidmq.columnar.selection import EVERYTHING, Selection
from tests.unit.columnar.logs import NOTE, message, write_log

BODIES = [
    message("a", b""),
    message("ab", b"", qos=0),
    NOTE,
    message("b", b""),
    message("a", b"", qos=0),
]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(), [0, 1, 3, 4]),
        (Selection(topics=["a"]), [0, 4]),
        (Selection(topics=["a", "b", "c"]), [0, 3, 4]),
        (Selection(topics=["c"]), []),
        (Selection(topics=[]), []),
        (Selection(topics=[""]), []),
        (Selection(topics=["\ud800", "b"]), [3]),
        (Selection(pattern="a"), [0, 4]),
        (Selection(pattern="a.*"), [0, 1, 4]),
        (Selection(pattern=".*"), [0, 1, 3, 4]),
        (Selection(qos=0), [1, 4]),
        (Selection(topics=["a"], qos=1), [0]),
        (Selection(allowed=lambda topic: topic != "ab"), [0, 3, 4]),
        (Selection(topics=["a", "b"], allowed=lambda topic: topic == "b"), [3]),
        (Selection(pattern="a.*", allowed=lambda topic: topic != "a"), [1]),
        (Selection(allowed=lambda _: False), []),
    ],
)
def test_rows_are_selected(tmp_path: Path, selection: Selection, expected: list[int]) -> None:
    """By topic, by a pattern of the whole name and by QoS; other records never are."""
    write_log(tmp_path, BODIES, segment_bytes=2**20)
    segment = Segment(tmp_path, 1, 5, sealed=False)

    assert expected == selection.rows(segment, 0, 5).tolist()
    assert [row for row in expected if row >= 2] == selection.rows(segment, 2, 5).tolist()


@pytest.mark.parametrize("topics", [3, 300, 70_000])
def test_a_sealed_index_has_a_separate_table_of_topics(tmp_path: Path, topics: int) -> None:
    """It selects the same rows, however many bytes a topic's number needs."""
    bodies = [message(f"t/{i % topics}", b"") for i in range(min(3 * topics, 70_010))]
    write_log(
        tmp_path, [*bodies, message("z", b"z" * 2**20)], segment_bytes=2**20, batch=99_999
    )
    segment = Segment(tmp_path, 1, len(bodies) + 1, sealed=True)
    assert segment.index.numbers is not None

    assert segment.rows["topic"].tolist() == segment.index.numbers.tolist()
    found = Selection(topics=["t/2"]).rows(segment, 0, len(bodies)).tolist()
    assert list(range(2, len(bodies), topics)) == found


@pytest.mark.parametrize("sealed", [True, False])
def test_a_sealed_segment_without_a_wanted_topic_is_skipped(
    tmp_path: Path, sealed: bool
) -> None:
    """Its list of topics is verified; a growing segment is searched row by row."""
    write_log(
        tmp_path, [*BODIES, message("z", b"z" * 4096)], segment_bytes=4096 if sealed else 2**20
    )
    segment = Segment(tmp_path, 1, 6, sealed=sealed)

    assert sealed == Selection(topics=["none"]).misses(segment)
    assert sealed == Selection(pattern="none").misses(segment)
    assert sealed == Selection(allowed=lambda _: False).misses(segment)
    assert not Selection(topics=["none", "z"]).misses(segment)
    assert not EVERYTHING.misses(segment)


def test_an_invalid_selection_is_refused() -> None:
    """A string is not a list of topics, and a pattern must be a regular expression."""
    for wrong in ({"topics": "abc"}, {"pattern": "["}, {"topics": ["a"], "pattern": "a"}):
        with pytest.raises(ConfigError):
            Selection(**wrong)
