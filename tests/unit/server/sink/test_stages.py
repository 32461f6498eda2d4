"""Stages: written durably or not at all, read back in pieces, dropped, expired."""

import errno
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from braidmq.base.errors import (
    DamagedStageError,
    LogFullError,
    NotAllowedError,
    RefusedRowError,
    UnknownStageError,
)
from braidmq.broker.authorize import Principal
from braidmq.broker.sinks import Row
from braidmq.columnar.flight.requests import Stage
from braidmq.server.sink.stages import BATCH_BYTES, BATCH_ROWS, FREE_BYTES_MIN, LIFE_US, Stages
from braidmq.testing.clock import FakeClock
from braidmq.testing.disk import FakeDisk, PowerCutError
from braidmq.wal.disk import Disk

ADA = Principal("ada", publish=["t*"], subscribe=[])
BOB = Principal("bob", publish=["*"], subscribe=[])
OPS = Principal("ops", publish=["*"], subscribe=[], admin=True)
SCHEMA = pa.schema([("value", pa.binary())])
DAY_S = LIFE_US // 1_000_000


class Shelf:
    """Stages on an in-memory disk, with a clock."""

    def __init__(self, disk: FakeDisk | None = None) -> None:
        self.disk = disk or FakeDisk()
        self.clock = FakeClock()
        self.stages = Stages(self.disk, now_us=self.clock.now_us)

    def write(self, *payloads: bytes, by: Principal = ADA, batch: int = 2) -> Stage:
        return self.stages.write(by, "t", SCHEMA, batches(*payloads, size=batch))

    def files(self) -> list[str]:
        return [path for path in self.disk.paths() if path.startswith("stages/")]


def batches(*payloads: bytes, size: int = 2) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(payloads), size):
        yield pa.record_batch({"value": pa.array(payloads[at : at + size], pa.binary())})


def read_all(stages: Stages, stage_id: str) -> list[Row]:
    rows: list[Row] = []
    while found := stages.read(stage_id, len(rows)):
        rows += found
    return rows


def test_rows_come_back_as_they_were_written() -> None:
    """In order, across batches, with everything that a message needs."""
    shelf = Shelf()
    stage = shelf.write(b"1", b"", b"3", b"4", b"5")

    assert 5 == stage.rows == shelf.stages.rows_of(stage.id, ADA)
    assert [("t", payload, b"", 1) for payload in (b"1", b"", b"3", b"4", b"5")] == read_all(
        shelf.stages, stage.id
    )
    assert [] == shelf.stages.read(stage.id, 5)
    assert [f"stages/{stage.id}.arrow"] == shelf.files()


def test_a_stage_is_an_arrow_stream(tmp_path: Path) -> None:
    """Any Arrow reader can show its rows; the reader stops before the trailer."""
    stages = Stages(Disk(tmp_path), now_us=lambda: 1)
    stage = stages.write(ADA, "t", SCHEMA, batches(b"1", b"2", b"3"))
    path = tmp_path / "stages" / f"{stage.id}.arrow"
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        table = stream.read_all()

    assert [b"1", b"2", b"3"] == table.column("value").to_pylist()
    assert 0o600 == path.stat().st_mode & 0o777


@pytest.mark.parametrize("size", [1, 7, 5_000])
def test_pieces_are_neither_large_nor_tiny(size: int) -> None:
    """However the rows arrive: one read is one turn of the event loop."""
    shelf = Shelf()
    count = 2 * BATCH_ROWS + 3
    stage = shelf.write(*(b"%d" % number for number in range(count)), batch=size)
    sizes: list[int] = []
    while found := shelf.stages.read(stage.id, sum(sizes)):
        sizes.append(len(found))

    assert count == sum(sizes)
    assert all(BATCH_ROWS // 2 <= size <= BATCH_ROWS for size in sizes[:-1])


def test_pieces_of_large_rows_are_bounded_in_bytes() -> None:
    """But a single row is returned, whatever its size."""
    shelf = Shelf()
    large = BATCH_BYTES // 2
    stage = shelf.write(*(5 * [large * b"x"]), 3 * large * b"y", b"z", batch=7)
    sizes: list[int] = []
    while found := shelf.stages.read(stage.id, sum(sizes)):
        sizes.append(len(found))
        assert len(found) == 1 or sum(len(row[1]) for row in found) <= BATCH_BYTES

    assert 7 == sum(sizes)


def test_a_read_respects_its_start_and_its_limits() -> None:
    """Even in the middle of a piece; a row beyond the limit of bytes comes alone."""
    shelf = Shelf()
    stage = shelf.write(b"1", b"22", b"333", b"4", b"5", batch=5)

    def read(from_row: int, count_max: int, bytes_max: int) -> list[bytes]:
        rows = shelf.stages.read(stage.id, from_row, count_max, bytes_max)
        return [payload for _, payload, _, _ in rows]

    assert [b"22", b"333"] == read(1, 2, 100)
    assert [b"1", b"22"] == read(0, 100, 3)
    assert [b"333"] == read(2, 100, 1)
    assert [b"4", b"5"] == read(3, 100, 100)


def test_a_stage_may_have_no_rows() -> None:
    """A partition may be empty, and its task answers like the others."""
    shelf = Shelf()
    stage = shelf.write()

    assert 0 == stage.rows == shelf.stages.rows_of(stage.id, ADA)
    assert [] == shelf.stages.read(stage.id, 0)


def test_a_refused_row_leaves_no_stage() -> None:
    """Nor half of one."""
    shelf = Shelf()

    with pytest.raises(RefusedRowError):
        shelf.stages.write(
            ADA,
            "t",
            SCHEMA,
            [pa.record_batch({"value": pa.array([b"x", None], pa.binary())})],
        )
    with pytest.raises(NotAllowedError, match="publish 'other'"):
        shelf.stages.write(ADA, "other", SCHEMA, batches(b"1"))
    assert [] == shelf.files()


def test_a_stream_that_breaks_off_leaves_no_stage() -> None:
    """The error of the sender's stream passes through."""
    shelf = Shelf()

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(*(BATCH_ROWS * [b"x"]), size=BATCH_ROWS)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        shelf.stages.write(ADA, "t", SCHEMA, broken())
    assert [] == shelf.files()


@pytest.mark.parametrize("operation", ["pwrite", "fsync", "open", "rename"])
def test_a_full_disk_is_reported_and_leaves_no_stage(operation: str) -> None:
    """The sender may try again later."""
    shelf = Shelf()
    shelf.disk.fail(operation, errno.ENOSPC)

    with pytest.raises(LogFullError):
        shelf.write(b"1")
    shelf.stages.expire(set())
    assert [] == shelf.files()


def test_any_other_failure_of_the_disk_passes_through() -> None:
    """It is not reported as a lack of room."""
    shelf = Shelf()
    shelf.disk.fail("fsync", errno.EIO)

    with pytest.raises(OSError, match="Input/output"):
        shelf.write(b"1")


def test_stages_leave_room_for_the_log() -> None:
    """A sink must not be able to stop every other publisher."""
    shelf = Shelf(FakeDisk(capacity=FREE_BYTES_MIN + 10_000))
    shelf.write(5_000 * b"x")

    with pytest.raises(LogFullError, match="stage"):
        shelf.write(5_000 * b"x")


def test_a_power_cut_at_any_moment_leaves_all_rows_or_no_stage() -> None:
    """And all rows once the writer was answered."""
    payloads = [b"%d" % number for number in range(3)]
    total = Shelf()
    total.write(*payloads)
    for operation in range(1, total.disk.operations + 2):
        for seed in range(8):
            shelf = Shelf()
            shelf.disk.cut_power_at(operation)
            answered = None
            with suppress(PowerCutError):
                answered = shelf.write(*payloads)
            after = Shelf(shelf.disk.crash(Random(seed)))
            after.stages.expire(set())
            ids = [path[len("stages/") :].removesuffix(".arrow") for path in after.files()]
            assert answered is None or [answered.id] == ids
            for stage_id in ids:
                found = [payload for _, payload, _, _ in read_all(after.stages, stage_id)]
                assert payloads == found


def test_a_damaged_stage_is_never_read_wrongly() -> None:
    """Checksums cover every byte that matters."""
    shelf = Shelf()
    stage = shelf.write(b"1", b"2")
    (path,) = shelf.files()
    data = shelf.disk.content(path)
    expected = read_all(shelf.stages, stage.id)
    for at in range(len(data)):
        shelf.disk.put(path, data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            found = read_all(Stages(shelf.disk, now_us=shelf.clock.now_us), stage.id)
        except DamagedStageError:
            continue
        assert expected == found
    for size in range(len(data)):
        shelf.disk.put(path, data[:size])
        with pytest.raises(DamagedStageError):
            read_all(Stages(shelf.disk, now_us=shelf.clock.now_us), stage.id)


@pytest.mark.parametrize("stage_id", ["", "../users", 32 * "g", 32 * "a", 32 * "A", 33 * "a"])
def test_an_unknown_stage_is_refused(stage_id: str) -> None:
    """An id is 32 hexadecimal digits, and never a path."""
    shelf = Shelf()
    shelf.disk.put("users", b"secret")

    for ask in (
        lambda: shelf.stages.rows_of(stage_id, OPS),
        lambda: shelf.stages.read(stage_id, 0),
    ):
        with pytest.raises(UnknownStageError, match="write its rows again"):
            ask()
    assert 0 == shelf.stages.drop([stage_id], OPS)
    assert shelf.disk.exists("users")


def test_only_its_writer_and_administrators_may_use_a_stage() -> None:
    """Its rows were checked against its writer's permissions."""
    shelf = Shelf()
    stage = shelf.write(b"1")

    with pytest.raises(NotAllowedError, match="commit stage"):
        shelf.stages.rows_of(stage.id, BOB)
    assert 0 == shelf.stages.drop([stage.id], BOB)
    assert 1 == shelf.stages.rows_of(stage.id, OPS)
    assert 1 == shelf.stages.drop([stage.id, stage.id], ADA)
    assert [] == shelf.files()
    assert 0 == shelf.stages.drop([stage.id], ADA)


def test_a_wrong_clock_does_not_make_stages_older() -> None:
    """What a start finds is aged by the time that has passed, not by a step of the clock."""
    shelf = Shelf()
    shelf.write(b"1")
    shelf.clock.advance(100 * DAY_S)  # a clock that was set forwards
    stages = Stages(shelf.disk, now_us=shelf.clock.now_us, step_us=100 * DAY_S * 1_000_000)

    assert 0 == stages.expire(set())
    shelf.clock.advance(DAY_S + 1)
    assert 1 == stages.expire(set())


@pytest.mark.parametrize("topics_kept_max", [1_000, 0])
def test_a_stage_is_judged_again_when_it_is_committed(
    monkeypatch: pytest.MonkeyPatch, topics_kept_max: int
) -> None:
    """A permission that was withdrawn meanwhile, or that an administrator lacks, counts.

    The topics are in the trailer; where they are too many, or an older version wrote the
    stage, the rows are read.
    """
    monkeypatch.setattr("braidmq.server.sink.stages.TOPICS_KEPT_MAX", topics_kept_max)
    shelf = Shelf()
    stage = shelf.write(b"1", b"2", b"3")
    withdrawn = Principal("ada", publish=["t.*", "u"], subscribe=["*"])
    administrator = Principal("ops", publish=[], subscribe=["*"], admin=True)

    for principal in (withdrawn, administrator):
        with pytest.raises(NotAllowedError, match="publish 't'"):
            shelf.stages.rows_of(stage.id, principal)
    assert 3 == shelf.stages.rows_of(stage.id, ADA)


def test_stages_expire_after_a_day_unless_they_are_in_use() -> None:
    """A job that has not committed them by then never will."""
    shelf = Shelf()
    used, forgotten = shelf.write(b"1"), shelf.write(b"2")
    shelf.clock.advance(1)
    young = shelf.write(b"3")
    shelf.clock.advance(DAY_S - 1)
    assert 0 == shelf.stages.expire({used.id})
    shelf.clock.advance(1)

    assert 1 == shelf.stages.expire({used.id})
    left = sorted([used.id, young.id])
    assert left == [path[len("stages/") :].removesuffix(".arrow") for path in shelf.files()]
    with pytest.raises(UnknownStageError):
        shelf.stages.read(forgotten.id, 0)


def test_unfinished_files_of_a_crash_are_removed_and_foreign_files_stay() -> None:
    """A stage that is still being written is not unfinished."""
    shelf = Shelf()
    shelf.disk.put(f"stages/{32 * 'a'}.arrow.tmp", b"half")
    shelf.disk.put("stages/notes.txt", b"mine")
    shelf.disk.put(f"stages/{32 * 'b'}.arrow", b"unreadable")

    def while_writing() -> Iterator[pa.RecordBatch]:
        yield from batches(b"1")
        shelf.stages.expire(set())

    shelf.clock.advance(2 * DAY_S)
    stage = shelf.stages.write(ADA, "t", SCHEMA, while_writing())

    assert sorted(
        [f"stages/{32 * 'b'}.arrow", f"stages/{stage.id}.arrow", "stages/notes.txt"]
    ) == sorted(shelf.files())
