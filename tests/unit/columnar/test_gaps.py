"""Gap records, which stand for ids that a repair gave up: a reader learns of every one."""

from itertools import islice
from pathlib import Path

import pytest

from braidmq import columnar
from braidmq.base.errors import DamagedLogError
from braidmq.columnar.loss import REPAIRED, DataLossError, Loss
from braidmq.columnar.segments.segments import Segment
from braidmq.wal.format import encode_gap, encode_mark, encode_record
from tests.unit.columnar.logs import flip, message, offsets_of, open_log, segment_files, write

GAP = encode_record(4, encode_gap(4, 8), fence=True)


def gap_log(root: Path) -> Path:
    """Write ids 1-3, a gap that stands for 4-8, and 9-11, in one segment."""
    wal = open_log(root, segment_bytes=2**20)
    write(wal, [message("t", b"%d" % i) for i in range(1, 4)])
    wal.close()
    path = segment_files(root)[0]
    records = [GAP]
    records += [encode_record(i, message("t", b"%d" % i), fence=False) for i in (9, 10, 11)]
    with path.open("ab") as file:
        file.write(b"".join(records))
    return root


@pytest.mark.parametrize("state", ["rebuilt", "growing", "sealed"])
def test_a_gap_record_is_loss(tmp_path: Path, state: str) -> None:
    """What a repair gave up is an error, or skipped and recorded; only inside the range."""
    gap_log(tmp_path)
    if state == "rebuilt":
        (tmp_path / "wal/durable").write_bytes(encode_mark(11))
    else:
        wal = open_log(tmp_path, segment_bytes=4096 if state == "sealed" else 2**20)
        write(wal, [message("t", b"x" * 9000)])
        assert (state == "sealed") == (len(wal.segments()) == 2)
        wal.close()
    last = columnar.offsets(tmp_path).latest

    with pytest.raises(DataLossError) as caught:
        columnar.read(tmp_path)
    assert Loss(4, 8, REPAIRED) == caught.value.loss
    losses: list[Loss] = []
    found = columnar.read(tmp_path, start=6, fail_on_data_loss=False, losses=losses)
    assert list(range(9, last)) == offsets_of(found)
    assert [Loss(6, 8, REPAIRED)] == losses
    assert [1, 2, 3] == offsets_of(columnar.read(tmp_path, end=4))
    with pytest.raises(DataLossError) as caught:
        columnar.read(tmp_path, end=7)
    assert Loss(4, 6, REPAIRED) == caught.value.loss
    assert [9, 10] == offsets_of(columnar.read(tmp_path, start=9, end=11))
    assert [] == offsets_of(columnar.read(tmp_path, topics=["u"], start=9))
    with pytest.raises(DataLossError):
        columnar.read(tmp_path, topics=["u"])


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_damaged_gap_record_is_damage(tmp_path: Path, is_sealed: bool) -> None:
    """Whichever byte it is, and wherever a read into it or right behind it starts and ends."""
    wal = open_log(gap_log(tmp_path), segment_bytes=4096 if is_sealed else 2**20)
    write(wal, [message("t", b"x" * 9000)])
    wal.close()
    path = segment_files(tmp_path)[0]
    intact = path.read_bytes()
    first = intact.index(GAP)

    for at in range(first, first + len(GAP)):
        flip(path, at)
        for start, end in ((1, 12), (1, 5), (4, 7), (6, 7), (8, 10), (9, 12)):
            with pytest.raises(DamagedLogError):
                columnar.read(tmp_path, start=start, end=end, fail_on_data_loss=False)
        path.write_bytes(intact)


def test_a_window_may_end_with_a_gap_record(tmp_path: Path) -> None:
    """The next one starts behind it, not at the lost ids that it stands for."""
    gap_log(tmp_path)
    (tmp_path / "wal/durable").write_bytes(encode_mark(11))
    segment = Segment(tmp_path, 1, 11, sealed=False)

    assert [(0, 4), (4, 7)] == list(islice(segment.windows(1, 12, rows_max=4), 3))
