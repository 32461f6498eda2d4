"""The durable log at one moment."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import pytest

from braidmq import columnar
from braidmq.base.errors import DamagedLogError, LogReadError, LogScarceError
from braidmq.columnar.logs import DirectoryLog
from braidmq.columnar.loss import DataLossError, Losses
from braidmq.columnar.segments.views import DurableView, topic_names
from braidmq.wal.format import encode_mark
from tests.unit.columnar.logs import (
    log_of,
    message,
    offsets_of,
    retain_from,
    segment_files,
    write,
    write_log,
)

BODIES = [message("t", b"x" * 100) for _ in range(200)]


def test_sealed_segments_count_even_if_the_mark_is_old(tmp_path: Path) -> None:
    """They were synced before they were sealed; only the last segment is then in doubt."""
    write_log(tmp_path, BODIES)
    last = int(segment_files(tmp_path)[-1].stem)
    (tmp_path / "wal/durable").write_bytes(encode_mark(3))

    assert last == DurableView(tmp_path).latest
    assert list(range(1, last)) == offsets_of(columnar.read(tmp_path))


QUERIES: Final[dict[str, Callable[[Path], object]]] = {
    "read": columnar.read,
    "offsets": columnar.offsets,
    "topic_counts": columnar.topic_counts,
    "cut": columnar.cut,
    "advance": lambda path: columnar.advance(path, 1),
    "offset_at": lambda path: DirectoryLog(path).offset_at(1),
    "topic_names": lambda path: topic_names(path, 1, 10),
}


@pytest.mark.parametrize("query", QUERIES)
def test_without_a_valid_mark_there_is_an_error_and_not_fewer_rows(
    tmp_path: Path, query: str
) -> None:
    """Flipped, cut, empty, zero or missing; a start of the broker writes it anew."""
    write_log(tmp_path, BODIES)
    mark = tmp_path / "wal/durable"
    whole = mark.read_bytes()
    flipped = [bytes([*whole[:i], whole[i] ^ 4, *whole[i + 1 :]]) for i in range(len(whole))]
    for content in (*flipped, whole[:7], b"", bytes(12)):
        mark.write_bytes(content)
        with pytest.raises(LogReadError, match="wal/durable"):
            QUERIES[query](tmp_path)
    mark.unlink()
    with pytest.raises(LogReadError, match="start the broker"):
        QUERIES[query](tmp_path)
    mark.write_bytes(whole)
    QUERIES[query](tmp_path)


def test_without_a_mark_a_log_without_records_is_empty(tmp_path: Path) -> None:
    """As the broker makes it, moments before its first mark."""
    write_log(tmp_path, [])
    (tmp_path / "wal/durable").unlink()

    assert 1 == DurableView(tmp_path).latest
    assert [] == offsets_of(columnar.read(tmp_path))


def test_segments_are_found_by_ids(tmp_path: Path) -> None:
    """Those that have an id in the range, and no others."""
    write_log(tmp_path, BODIES)
    first_ids = [int(path.stem) for path in segment_files(tmp_path)]
    view = DurableView(tmp_path)

    assert first_ids == view.first_ids(0, 1000)
    assert first_ids[:1] == view.first_ids(1, first_ids[1])
    assert first_ids[:2] == view.first_ids(first_ids[1] - 1, first_ids[1] + 1)
    assert first_ids[1:2] == view.first_ids(first_ids[1], first_ids[1] + 1)
    assert first_ids[-1:] == view.first_ids(200, 2000)


def test_a_missing_segment_in_the_middle_is_damage(tmp_path: Path) -> None:
    """Retention deletes the oldest first, so this was not retention."""
    write_log(tmp_path, BODIES)
    segment_files(tmp_path)[1].unlink()

    with pytest.raises(DamagedLogError):
        columnar.read(tmp_path)
    with pytest.raises(DamagedLogError):
        columnar.read(tmp_path, fail_on_data_loss=False)


def test_a_segment_that_goes_missing_in_the_middle_is_damage(tmp_path: Path) -> None:
    """It was listed and is gone, while an older one is still there."""
    write_log(tmp_path, BODIES)
    view = DurableView(tmp_path)
    gone = segment_files(tmp_path)[1]
    gone.unlink()

    with pytest.raises(DamagedLogError, match="missing"):
        view.open(int(gone.stem))


def test_no_segment_where_a_mark_says_there_were_some_is_damage(tmp_path: Path) -> None:
    """An emptied directory is not an empty log."""
    write_log(tmp_path, BODIES)
    for path in segment_files(tmp_path):
        path.unlink()

    with pytest.raises(DamagedLogError, match="no segment"):
        DurableView(tmp_path)


@pytest.mark.parametrize("query", QUERIES)
def test_missing_oldest_segments_are_damage_and_not_fewer_rows(
    tmp_path: Path, query: str
) -> None:
    """Retention has not deleted them: the floor says from where on the log must be there."""
    write_log(tmp_path, BODIES)
    oldest = segment_files(tmp_path)[:2]
    behind = int(segment_files(tmp_path)[2].stem)
    for path in oldest:
        path.unlink()

    with pytest.raises(DamagedLogError, match="missing segment") as caught:
        QUERIES[query](tmp_path)
    assert (1, behind - 1) == (caught.value.first_id, caught.value.last_id)


def test_no_segment_and_no_mark_beside_a_floor_is_damage(tmp_path: Path) -> None:
    """A log that was just made has a segment before it has a floor."""
    write_log(tmp_path, BODIES)
    for path in [*segment_files(tmp_path), tmp_path / "wal/durable"]:
        path.unlink()

    with pytest.raises(DamagedLogError, match="no segment"):
        columnar.read(tmp_path)


def test_what_retention_deleted_is_no_damage(tmp_path: Path) -> None:
    """The floor has risen; a crash may have left segments below it, which are read."""
    write_log(tmp_path, BODIES)
    oldest = segment_files(tmp_path)[:3]
    kept = [path.read_bytes() for path in oldest]
    with log_of(tmp_path, []) as wal:
        retain_from(wal, int(oldest[2].stem))
        first_id = wal.first_id
    assert list(range(first_id, 201)) == offsets_of(columnar.read(tmp_path))
    oldest[1].write_bytes(kept[1])

    assert list(range(int(oldest[1].stem), 201)) == offsets_of(columnar.read(tmp_path))


def test_a_log_without_a_floor_is_read_as_it_is(tmp_path: Path) -> None:
    """One that an earlier version left: nothing says where it must begin."""
    write_log(tmp_path, BODIES)
    oldest, following = segment_files(tmp_path)[:2]
    oldest.unlink()
    (tmp_path / "wal/floor").unlink()

    assert int(following.stem) == DurableView(tmp_path).earliest
    assert list(range(int(following.stem), 201)) == offsets_of(columnar.read(tmp_path))


@pytest.mark.parametrize("content", [b"", bytes(1024), b"x" * 1024])
def test_a_damaged_floor_is_an_error(tmp_path: Path, content: bytes) -> None:
    """Its two copies are written one after the other, so one of them is always whole."""
    write_log(tmp_path, BODIES)
    floor = tmp_path / "wal/floor"
    whole = floor.read_bytes()
    floor.write_bytes(content)
    with pytest.raises(DamagedLogError, match="wal/floor"):
        columnar.read(tmp_path)
    for torn in (whole[:512] + bytes(512), bytes(512) + whole[512:]):
        floor.write_bytes(torn)
        assert 200 == columnar.read(tmp_path).num_rows


def test_an_oldest_segment_that_goes_missing_is_damage(tmp_path: Path) -> None:
    """It was listed, and retention did not take it."""
    write_log(tmp_path, BODIES)
    view = DurableView(tmp_path)
    segment_files(tmp_path)[0].unlink()

    with pytest.raises(DamagedLogError, match="missing segment"):
        view.open(1)


def test_a_view_stays_the_same_while_the_log_grows(tmp_path: Path) -> None:
    """The segment that grew is sealed by now, and still gives the same rows."""
    with log_of(tmp_path, BODIES[:10]) as wal:
        found = columnar.batches(tmp_path)
        write(wal, BODIES)
        assert len(wal.segments()) > 3

        assert list(range(1, 11)) == [o for b in found for o in b["offset"].to_pylist()]


def test_a_segment_that_retention_deleted_is_lost(tmp_path: Path) -> None:
    """The segment after it shows which ids it had."""
    with log_of(tmp_path, BODIES) as wal:
        view = DurableView(tmp_path)
        first_ids = view.first_ids(1, 201)
        retain_from(wal, first_ids[2])

        assert view.open(first_ids[1]) is None
        view = DurableView(tmp_path)
        retain_from(wal, first_ids[3])
        with pytest.raises(DataLossError) as caught:
            list(view.segments(1, 201, Losses("log", fail=True)))
    assert (first_ids[2], first_ids[3] - 1) == caught.value.loss[:2]


def test_several_missing_segments_are_reported_once_each(tmp_path: Path) -> None:
    """No id is reported twice, although the list of segments was read again meanwhile."""
    with log_of(tmp_path, BODIES) as wal:
        view = DurableView(tmp_path)
        first_ids = view.first_ids(1, 201)
        retain_from(wal, first_ids[4])
        losses = Losses("log", fail=False)
        left = [segment.first_id for segment in view.segments(3, 201, losses)]

    assert first_ids[4:] == left
    bounds = zip([3, *first_ids[1:4]], first_ids[1:5], strict=True)
    assert [(a, b - 1) for a, b in bounds] == [loss[:2] for loss in losses.noted]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_lack_of_descriptors_or_memory_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """While the log is looked at, and while a segment is mapped; afterwards it is read."""
    write_log(tmp_path, [message("t", b"x")] * 3)
    view = DurableView(tmp_path)

    def fail(*_given: object, **_named: object) -> NoReturn:
        raise OSError(number, "scarce")

    with monkeypatch.context() as patch:
        patch.setattr("braidmq.columnar.segments.segments.MappedFile", fail)
        with pytest.raises(LogScarceError, match="scarce"):
            view.open(1)
        patch.setattr("braidmq.columnar.segments.views.list_segments", fail)
        with pytest.raises(LogScarceError, match="reading wal: scarce"):
            DurableView(tmp_path)
    assert 3 == columnar.read(tmp_path).num_rows
