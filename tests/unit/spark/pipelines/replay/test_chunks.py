"""A replay's checkpoint: written before the rows of a chunk are sent."""

from pathlib import Path

import msgspec
import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.replay.chunks import (
    CHUNK,
    SUBJECT,
    Chunk,
    ReplayCheckpoint,
    Subject,
)
from braidmq.spark.pipelines.replay.inputs import TableFile

SUBJECT_A = Subject(name="a", source="path=data", to_topic=None, first=1, end=100)


def changed(**fields: object) -> Subject:
    return msgspec.structs.replace(SUBJECT_A, **fields)


def test_a_replay_keeps_the_end_it_began_with(tmp_path: Path) -> None:
    """A later run may see a longer log; the replay's own end does not move."""
    checkpoint = ReplayCheckpoint(tmp_path / "new")

    assert checkpoint.begun() is None
    assert SUBJECT_A == checkpoint.subject(SUBJECT_A)
    assert SUBJECT_A == checkpoint.subject(changed(end=200))
    assert SUBJECT_A == ReplayCheckpoint(tmp_path / "new").begun()


@pytest.mark.parametrize(
    "other", [{"name": "b"}, {"source": "path=other"}, {"to_topic": "x"}], ids=str
)
def test_a_checkpoint_refuses_a_different_replay(
    other: dict[str, object], tmp_path: Path
) -> None:
    """The error names the field that differs."""
    checkpoint = ReplayCheckpoint(tmp_path)
    checkpoint.subject(SUBJECT_A)

    with pytest.raises(ConfigError, match=rf"--checkpoint: .* {next(iter(other))} .* another"):
        checkpoint.subject(changed(**other))


def test_the_query_name_depends_on_the_whole_subject() -> None:
    """A name that is reused for other rows must not make them look already sent."""
    files = [TableFile("a", 1, 2, 3)]

    assert SUBJECT_A.query == changed().query
    assert SUBJECT_A.query.startswith("replay a ")
    others = [changed(end=2), changed(to_topic="x"), changed(files=files), SUBJECT_A]
    assert 4 == len({subject.query for subject in others})


def test_the_last_chunk_is_remembered(tmp_path: Path) -> None:
    """Begun or done, as it was last written."""
    checkpoint = ReplayCheckpoint(tmp_path)
    before = checkpoint.last()
    checkpoint.keep(Chunk(1, 1, 51))
    begun = checkpoint.last()
    checkpoint.keep(Chunk(1, 1, 51, done=True))

    assert before is None
    assert Chunk(1, 1, 51) == begun
    assert Chunk(1, 1, 51, done=True) == ReplayCheckpoint(tmp_path).last()
    checkpoint.subject(SUBJECT_A)
    assert {CHUNK, SUBJECT} == {path.name for path in tmp_path.iterdir()}
