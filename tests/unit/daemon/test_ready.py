"""What a start says when it is done."""

from pathlib import Path

import pytest

from braidmq.daemon.ready import write_atomically


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """A reader that has the old file open still reads all of it."""
    path = tmp_path / "ready.json"
    write_atomically(path, "old")
    with path.open() as reader:
        write_atomically(path, "new")

        assert "old" == reader.read()
    assert "new" == path.read_text()
    assert [path] == list(tmp_path.iterdir())


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    """It is not created: the operator has mistyped its name."""
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "no" / "ready.json", "x")
