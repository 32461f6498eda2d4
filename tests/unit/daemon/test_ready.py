"""Small files that are whole or not there."""

from pathlib import Path

import pytest

from braidmq.daemon.ready import remove_quietly, write_atomically


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """A reader that has the old one open still has all of the old one."""
    path = tmp_path / "ready.json"
    write_atomically(path, "old")
    with path.open() as reader:
        write_atomically(path, "new")

        assert "old" == reader.read()
    assert "new" == path.read_text()
    assert [path] == list(tmp_path.iterdir())


def test_a_directory_that_is_missing_is_the_callers_error(tmp_path: Path) -> None:
    """It is not made: the operator has mistyped it."""
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "no" / "ready.json", "x")


def test_removing_what_is_not_there_is_quiet(tmp_path: Path) -> None:
    """A stale file may or may not be there."""
    path = tmp_path / "ready.json"
    path.write_text("stale")
    remove_quietly(path)
    remove_quietly(path)

    assert not path.exists()
