"""Read from a query's checkpoint where a batch ends, and make that durable.

Spark writes `offsets/<batch>` before a batch runs and `commits/<batch>` after it, but never
syncs them. After a power cut, a table could hold a batch whose end the checkpoint has lost; the
batch would then be planned again with another end. So the checkpoint is synced first.
"""

import json
from pathlib import Path
from typing import Final

from braidmq.wal.disk import Disk

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
METADATA: Final = "metadata"
_LINES_BEFORE_OFFSETS: Final = 2
"""The version of the format, and the metadata that Spark keeps about the batch."""


class Checkpoint:
    """A checkpoint in a directory that the driver can reach.

    Its methods raise OSError if Spark has not written the file yet, or has deleted it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._disk = Disk(path)

    def end(self, batch_id: int) -> str:
        """Return where a batch ends, as its sources wrote it, once that is durable."""
        for name in (METADATA, f"{OFFSETS}/{batch_id}"):
            file = self._disk.open(name, write=False, create=False)
            file.fsync()
            file.close()
        self._disk.sync_dir(OFFSETS)
        self._disk.sync_dir("")
        return self._end(batch_id)

    def start(self, batch_id: int) -> str:
        """Return where the batch before it ends; empty if there is none."""
        return self._end(batch_id - 1) if batch_id else ""

    def _end(self, batch_id: int) -> str:
        lines = (self.path / OFFSETS / str(batch_id)).read_text("utf-8").splitlines()
        return " ".join(lines[_LINES_BEFORE_OFFSETS:])

    def query_id(self) -> str:
        """Return the id of the query; another checkpoint has another one."""
        return str(json.loads((self.path / METADATA).read_bytes())["id"])

    def is_committed(self, batch_id: int) -> bool:
        """Return whether Spark will not run the batch again."""
        return self._disk.exists(f"{COMMITS}/{batch_id}")
