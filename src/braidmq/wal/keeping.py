"""Keeping: a new snapshot, and the deletion of what it makes superfluous; full disk or not.

Both belong together. Retention may go as far as the older of the two snapshots, and what
readers need is what they needed when the newest one was taken, or when the log was recovered:
after a crash they stand no further back. On a full disk this is what makes room, so it must not
be the first to fail:

- The snapshot is written out of the log's reserve when the disk has no room for it.
- If it cannot be written at all, retention still goes by the snapshots that are kept.
"""

from braidmq.base.errors import LogFullError, LogScarceError
from braidmq.wal import snapshots
from braidmq.wal.disk import Files
from braidmq.wal.floor import Floor
from braidmq.wal.wal import Wal


class Keeper:
    """Keeps snapshots of one log, on its writer's thread, and deletes by them.

    `keep` does all of it in one go. A log that writes its snapshots on another thread, so that
    commits need not wait, does the same in steps: `kept`, then `retain`.
    """

    def __init__(self, wal: Wal, files: Files, *, needed_id: int) -> None:
        """Make a keeper; *needed_id*: by readers, when the log was recovered."""
        self._wal = wal
        self._files = files
        # What was recovered is durable, so readers stand no further back after the next start.
        self._needed_id = needed_id  # then: when the newest snapshot of this run was taken

    def keep(
        self, last_id: int, parts: list[bytes], *, needed_id: int, now_us: int
    ) -> Floor | None:
        """Keep a snapshot, then delete the segments that are not needed any more.

        Returns the floor if retention has deleted what readers still needed, by force.

        Raises:
            LogPoisonedError: The disk failed.
        """
        self._wal.sync()  # a snapshot must never be ahead of the log
        try:
            self._save(last_id, parts)
            self.kept(needed_id)
        except LogFullError:  # the ones before it stay, and so does what their readers need
            pass
        return self.retain(now_us)

    def kept(self, needed_id: int) -> None:
        """Note that a snapshot was kept; *needed_id*: by readers, when it was taken."""
        self._needed_id = needed_id

    def retain(self, now_us: int) -> Floor | None:
        """Delete the segments that are not needed any more; returns as `keep` does.

        Raises:
            LogPoisonedError: The disk failed.
        """
        forced_id = self._wal.floor.forced_id
        try:
            kept = snapshots.oldest_kept(self._files)
        except LogFullError:
            return None
        if kept:
            self._wal.retain(self._needed_id, now_us, recovery_id=kept + 1)
        floor = self._wal.floor
        return floor if floor.forced_id > forced_id else None

    def _save(self, last_id: int, parts: list[bytes]) -> None:
        try:
            snapshots.save_parts(self._files, last_id, parts)
        except LogScarceError:
            raise
        except LogFullError:
            if not self._wal.release_reserve(sum(map(len, parts))):
                raise
            snapshots.save_parts(self._files, last_id, parts)
