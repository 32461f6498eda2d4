"""The checkpoint of a query, as far as a pipeline looks into it: where a batch ends.

Spark writes `offsets/<batch>` before a batch runs and `commits/<batch>` behind it, but leaves
both to the operating system. A table whose batch is durable must not meet a checkpoint that has
forgotten where the batch ended, so that is made durable first.
"""

import json
from pathlib import Path
from typing import Final

from braidmq.wal.disk import Disk

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
METADATA: Final = "metadata"
_LINES_BEFORE_OFFSETS: Final = 2
"""The version of the format, and what Spark notes about the batch."""


class Checkpoint:
    """A checkpoint in a directory that the driver can reach."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._disk = Disk(path)

    def place(self, batch_id: int) -> str:
        """Return where a batch ends, as each source says it, once that is durable.

        Raises:
            OSError: The batch has not been planned, or the disk fails.
        """
        for name in (METADATA, f"{OFFSETS}/{batch_id}"):
            file = self._disk.open(name, write=False, create=False)
            file.fsync()
            file.close()
        self._disk.sync_dir(OFFSETS)
        self._disk.sync_dir("")
        return self._place(batch_id)

    def place_before(self, batch_id: int) -> str:
        """Return where the batch before ends; nothing, if there is none.

        Raises:
            OSError: Spark has forgotten it, or the disk fails.
        """
        return self._place(batch_id - 1) if batch_id else ""

    def _place(self, batch_id: int) -> str:
        lines = (self.path / OFFSETS / str(batch_id)).read_text("utf-8").splitlines()
        return " ".join(lines[_LINES_BEFORE_OFFSETS:])

    def query_id(self) -> str:
        """Return the id of the query, which a new checkpoint would not have.

        Raises:
            OSError: There is no checkpoint yet.
        """
        return str(json.loads((self.path / METADATA).read_bytes())["id"])

    def is_committed(self, batch_id: int) -> bool:
        """Return whether Spark will not run the batch again."""
        return self._disk.exists(f"{COMMITS}/{batch_id}")
