"""Quarantine: copies and moves of damaged data."""

from random import Random

from braidmq.testing.disk import FakeDisk
from braidmq.wal.quarantine import keep_copy, move_in


def test_a_copy_is_durable_and_never_overwrites() -> None:
    """Copies from the same offset get different names, and survive a power cut."""
    disk = FakeDisk()
    disk.put("wal/a", b"0123456789")
    file = disk.open("wal/a", write=False, create=False)
    paths = [keep_copy(disk, file, "a", 4), keep_copy(disk, file, "a", 4)]

    assert ["quarantine/a.at4.1", "quarantine/a.at4.2"] == paths
    for seed in range(8):
        after = disk.crash(Random(seed))
        assert [b"456789"] * 2 == [after.content(path) for path in paths]
    assert b"0123456789" == disk.content("wal/a")


def test_a_whole_file_is_moved_durably() -> None:
    """After a power cut it is in quarantine and no longer in its directory."""
    disk = FakeDisk()
    for content in (b"bad", b"worse"):
        disk.put("snapshot/x", content)
        move_in(disk, "snapshot/x")

    for seed in range(8):
        after = disk.crash(Random(seed))
        assert ["quarantine/x.1", "quarantine/x.2"] == after.paths()
        assert b"worse" == after.content("quarantine/x.2")
