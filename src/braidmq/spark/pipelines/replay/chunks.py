"""The checkpoint of a replay, from which a killed one resumes: two files.

    replay.json    what is replayed: the rows, the target, and the key of its batches
    chunk.json     the last chunk that was started: its number and its rows

A chunk is recorded durably before its rows are sent, and the broker remembers the keys of the
chunks that it has. So the last chunk is sent again exactly as recorded, even if the options
have changed since, and the next one starts after it.
"""

from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.replay.inputs import TableFile
from braidmq.wal.disk import Disk, replace_file

SUBJECT: Final = "replay.json"
CHUNK: Final = "chunk.json"
_DIGEST_CHARS: Final = 16

Kept = TypeVar("Kept")


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is replayed; fixed by the first run."""

    name: str
    source: str
    """The table, or the log and its topics."""
    to_topic: str | None
    first: int
    end: int
    files: list[TableFile] | None = None

    @property
    def query(self) -> str:
        """The key of its batches; another subject of the same name has another key."""
        digest = sha256(msgspec.json.encode(self)).hexdigest()[:_DIGEST_CHARS]
        return f"replay {self.name} {digest}"


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"end": "behind"}):
    """The positions from `first` to before `end` (on disk: behind); numbers start at 1."""

    number: int
    first: int
    end: int
    done: bool = False


class ReplayCheckpoint:
    """The checkpoint of one replay."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._disk = Disk(directory)

    def subject(self, fresh: Subject) -> Subject:
        """Return the subject of this checkpoint; a new checkpoint records *fresh* durably.

        Raises:
            ConfigError: The checkpoint belongs to another replay.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        begun = self.begun()
        if begun is None:
            replace_file(self._disk, SUBJECT, msgspec.json.encode(fresh))
            return fresh
        for option in ("name", "source", "to_topic"):
            before, now = getattr(begun, option), getattr(fresh, option)
            if before != now:
                problem = (
                    f"{self._directory} belongs to a replay with {option} {before!r}, "
                    f"not {now!r}; use the same, or another --checkpoint"
                )
                raise ConfigError("--checkpoint", problem)
        return begun

    def begun(self) -> Subject | None:
        """Return the subject of this checkpoint; None if it is new."""
        return self._read(SUBJECT, Subject)

    def last(self) -> Chunk | None:
        """Return the last chunk that was started."""
        return self._read(CHUNK, Chunk)

    def keep(self, chunk: Chunk) -> None:
        """Record durably that a chunk starts, or that it is done."""
        replace_file(self._disk, CHUNK, msgspec.json.encode(chunk))

    def _read(self, name: str, kind: type[Kept]) -> Kept | None:
        try:
            return msgspec.json.decode((self._directory / name).read_bytes(), type=kind)
        except FileNotFoundError:
            return None
