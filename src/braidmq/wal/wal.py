"""The log as one object: append, commit, read back, retain. It joins the other modules.

Threads: `append`, `commit`, `sync`, `retain`, `refill_reserve` and `close` belong to one writer
thread. `read`, the browsing methods, `scrub`, `verify` and `segments` may be called from any
thread: they work on an immutable `LogView` that the writer replaces with one assignment.

What is on the disk at each step, and what recovery makes of a crash right after it, is numbered
at `append`, `commit`, `_rotate`, `_delete` and in `braidmq.wal.snapshots`; docs/log_format.md
has the whole story. The log reads no clock: times are arguments.

What is not promised: that an appended record survives before `commit` has returned, that a
committed one survives a power cut under any policy but `always`, or that a record stays in the
log: `retain` deletes, and a reader that comes later is told which ids it has missed.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn, TypeVar

from braidmq.base.errors import LogFullError, LogPoisonedError
from braidmq.base.ids import ID_MAX
from braidmq.wal.browse import Bounds, Browser, FoundIds
from braidmq.wal.counting import Count, RowCounter
from braidmq.wal.disk import LOG_DIR, PASSING_ERRNOS, Files
from braidmq.wal.failures import Unfinished, failure_of, reading
from braidmq.wal.floor import DurableFloor, Floor
from braidmq.wal.format import ROW_BYTES, Describe
from braidmq.wal.maintenance.rebuild import Visit
from braidmq.wal.maintenance.scrub import Scrubber
from braidmq.wal.mark import DurableMark
from braidmq.wal.opening import Opening, Watch, unwatched
from braidmq.wal.options import NO_STEPS, Steps, WalOptions
from braidmq.wal.reading import LogView, ReadBack, Reader, Wanted, view_of
from braidmq.wal.segment import Reserve, SegmentInfo, damage, removal_of, start_segment
from braidmq.wal.stats import WalStats

T = TypeVar("T")


def _no_clock() -> float:
    return 0.0


class Wal:
    """An append-only log of opaque record bodies. Made by `Wal.open`.

    Three ids say how far the log has come: `next_id` moves when a batch is written, `synced_id`
    when it is durable, `committed_id` when readers may see it. Both of the latter stay below
    `next_id`; the fsync policy says how far `committed_id` may run ahead of `synced_id`.
    """

    def __init__(
        self,
        files: Files,
        options: WalOptions,
        describe: Describe,
        *,
        opening: Opening,
        clock: Callable[[], float],
    ) -> None:
        # All records that this finds are durable when it returns, so the log starts with all
        # three ids at its end, and may write the mark.
        sealed, active = opening.run()
        self._files = files
        self._options = options
        self._describe = describe
        self._clock = clock
        self.steps: Steps = NO_STEPS  # set by the owner, who knows what the times mean
        self._sealed = tuple(sealed)
        self._active = active
        self._poison: tuple[str, str] | None = None
        self._unfinished = Unfinished()
        floor = opening.floor
        if opening.recovered.floor_adopted and options.retention_force:
            # What is gone may have been needed: a version without floors did not write it down.
            floor = Floor(floor.first_id, floor.first_id - 1)
        self._floor = DurableFloor(files, floor)
        self._mark = DurableMark(files)
        self._reserve = Reserve(files, options.segment_bytes)
        self._reader = Reader(files, describe)
        self._scrubber = Scrubber(self._reader, files.exists, lambda: self._view)
        self._browser = Browser(self._reader)
        self._counter = RowCounter(self._reader)
        self.stats = WalStats()
        self.recovered = opening.recovered
        self.next_id = active.next_id
        self.synced_id = self.next_id - 1
        self.committed_id = self.next_id - 1
        self._mark.write(self.synced_id)
        self._floor.establish()
        self._reserve.refill()
        files.sync_dir(LOG_DIR)  # the names of mark and reserve
        self._view = view_of(self._sealed, active, self.committed_id)

    @classmethod
    def open(
        cls,
        files: Files,
        options: WalOptions,
        describe: Describe,
        *,
        now_us: int,
        after_id: int,
        visit: Visit,
        clock: Callable[[], float] = _no_clock,
        watch: Watch = unwatched,
    ) -> "Wal":
        """Recover the log and return it, ready to grow.

        The caller holds the directory's lock. *visit* is called with every verified record
        above *after_id*, in order; *clock*, in seconds, only measures fsyncs; *watch* is told
        the progress.

        Raises:
            DamagedLogError: Committed data cannot be read. Only indexes may have been changed.
            LogFullError: The disk has no room even to start, or the system no descriptor.
            LogPoisonedError: The disk failed.
        """
        opening = Opening(
            files, describe, now_us=now_us, after_id=after_id, visit=visit, watch=watch
        )
        try:
            return cls(files, options, describe, opening=opening, clock=clock)
        except (OSError, MemoryError) as error:
            raise failure_of("opening the log", error) from error

    # Writing.

    def append(self, bodies: list[bytes], *, urgent: bool = False) -> None:
        """Write *bodies* as the records from `next_id` on; `commit` makes them visible.

        1. The records are written after the last one, with one write. *A crash leaves any
           sectors of them: recovery keeps the valid prefix and quarantines the rest. No
           publisher was told about these records, so both outcomes are right.*
        2. Their index rows are written, not synced. *Recovery rebuilds the active segment's
           index in any case.*

        A full disk at either step is undone by `ActiveSegment.roll_back`. An *urgent* batch
        then uses up the reserve and tries again.

        Raises:
            LogFullError: The disk is full, or there is no descriptor or memory for what has to
                be done first. The log is as it was before the call.
            LogPoisonedError: A write failed: the content of the disk is unknown from here on.
        """
        self._check()
        if not bodies:
            return
        self._finish()
        if not (urgent or self._reserve.is_whole):
            # Part of the reserve is in use, so the disk is (nearly) full: leave the rest to
            # acknowledgements, which are what will free space.
            raise LogFullError
        size = self._active.size
        while self._active.next_id == self.next_id:
            try:
                # Everything before this batch is durable. The fence on its first record says
                # so, and lets recovery tell a hole that a power cut left from damage.
                fence = self.synced_id == self.next_id - 1
                self._active.append(bodies, self._describe, fence=fence)
            except (OSError, MemoryError) as error:
                self._undo_append(error)
                if isinstance(error, MemoryError):
                    raise failure_of("writing a batch", error) from error
                if not urgent or not self._use_reserve(bodies):
                    raise LogFullError from error
        self.next_id = self._active.next_id
        try:
            self.stats.count_batch(len(bodies), self._active.size - size)
        except MemoryError:
            return  # the batch is written: that must not look like a failure

    def _undo_append(self, error: OSError | MemoryError) -> None:
        if isinstance(error, OSError) and error.errno not in PASSING_ERRNOS:
            self._fail("write", error)
        self._undo("truncate after a full disk", self._active.roll_back)

    def _undo(self, operation: str, undo: Callable[[], None]) -> None:
        self._unfinished.add(operation, undo)
        self._finish()

    def _finish(self) -> None:
        try:
            self._unfinished.finish()
        except LogPoisonedError as error:  # from one that knows no log to poison
            self._poison = error.operation, error.reason
            raise

    def _use_reserve(self, bodies: list[bytes]) -> bool:
        # For each record its header and its index row as well, rounded up.
        return self.release_reserve(sum(map(len, bodies)) + len(bodies) * 2 * ROW_BYTES)

    def release_reserve(self, wanted: int) -> bool:
        """Release at least *wanted* bytes of the reserve if there are; False if there are none.

        For acknowledgements, and for the snapshot that retention needs. Publishing is refused
        until the reserve is whole again.

        Raises:
            LogPoisonedError: The disk failed.
        """
        self._check()
        try:
            return self._reserve.release(wanted)
        except OSError as error:
            if error.errno in PASSING_ERRNOS:
                return False
            self._fail("shortening the reserve", error)

    def commit(self, now_us: int) -> int:
        """Commit everything that was appended, as the policy says; return `committed_id`.

        1. If the policy asks for it, the segment is fdatasynced. *From here on the records
           survive a power cut; before, any part of them may be gone.*
        2. The durable mark is written, not synced. *If it is lost, an older mark takes its
           place. The mark is a lower bound: an old one only makes recovery recognise less
           damage, never call good data bad.*
        3. `committed_id` moves: readers see the records, the caller may answer publishers.
        4. A segment that has reached its size is rotated, see `_rotate`.

        Raises:
            LogPoisonedError: The outcome of what was appended since the last commit is unknown.
            MemoryError: There was none for it; call it again.
        """
        self._check()
        if self._options.policy.wants_sync(self.next_id - 1 - self.synced_id):
            self._sync()
        self._publish()
        self.stats.commits += 1
        # Only between batches: a batch is never divided, so a segment may exceed its size by
        # one batch.
        if self._active.size >= self._options.segment_bytes and not self._active.is_empty:
            self._rotate(now_us)
        return self.committed_id

    def sync(self) -> int:
        """Sync and commit everything that was appended, whatever the policy says.

        Raises:
            LogPoisonedError: The outcome of what was not yet synced is unknown.
        """
        self._check()
        if self.synced_id != self.next_id - 1:
            self._sync()
        self._publish()
        return self.committed_id

    def _sync(self) -> None:
        started = self._clock()
        try:
            self._active.file.fdatasync()
        except OSError as error:
            self._fail("fdatasync", error)
        self.synced_id = self.next_id - 1
        self.stats.count_fsync(self._clock() - started)
        try:
            self._mark.write(self.synced_id)
        except OSError as error:
            self._fail("write of the durable mark", error)

    def _publish(self) -> None:
        last_id = self.next_id - 1
        if self.committed_id != last_id:
            view = view_of(self._sealed, self._active, last_id)
            self.committed_id, self._view = last_id, view

    def _rotate(self, now_us: int) -> None:
        """Seal the active segment and start the next, or keep this one if that is not possible.

        The batch is committed whatever happens here; the next commit tries again.

        1. The segment is fdatasynced, if the policy has not done it. *So a sealed segment is
           never torn: anything invalid in one is damage.*
        2. Tables and trailer are appended to its index, not synced. *Torn or missing: the
           index is rebuilt from the segment.*
        3. The new segment is created, its header and then its name are synced. *In between,
           the file may be missing (the old segment is still the last one), empty, or have a
           torn header: `Opening._heal_header` finishes the job, since records are written to
           it only after both syncs.*
        4. The new index is created, not synced. *Missing: rebuilt.*
        """
        if self.synced_id != self.next_id - 1:
            self._sync()
        try:
            self._active.seal_index()
            successor = start_segment(self._files, self.next_id, now_us)
            sealed = (*self._sealed, self._active.info(sealed=True))
            view = view_of(sealed, successor, self.committed_id)
        except LogPoisonedError as error:  # as in `_finish`
            self._poison = error.operation, error.reason
            raise
        except (OSError, MemoryError) as error:
            self._postpone_rotation(error)
            return
        self._sealed, self._active, self._view = sealed, successor, view

    def _postpone_rotation(self, error: OSError | MemoryError) -> None:
        if isinstance(error, OSError) and error.errno not in PASSING_ERRNOS:
            self._fail("rotation", error)
        remove = removal_of(self._files, self.next_id)

        def undo() -> None:
            remove()
            self._active.unseal_index()

        # The batch is committed: that this has to wait concerns the next one.
        with suppress(LogFullError):
            self._undo("undoing a rotation", undo)

    def refill_reserve(self) -> bool:
        """Refill the reserve if the disk has room; return whether it is whole.

        Publishing resumes once it is. Cheap to call when nothing is missing.

        Raises:
            LogPoisonedError: The log was poisoned before, or the disk failed now.
        """
        self._check()
        try:
            self._finish()
        except LogFullError:
            return False
        try:
            return self._reserve.refill()
        except OSError as error:
            self._fail("allocating the reserve", error)

    def retain(self, needed_id: int, now_us: int, *, recovery_id: int = ID_MAX) -> list[str]:
        """Delete the sealed segments that are no longer needed; return their paths.

        Readers need the ids from *needed_id* on; `retention_force` overrides them. Recovery
        needs those from *recovery_id* on, the last id of the oldest kept snapshot + 1; nothing
        overrides that, because the newest snapshot may turn out to be invalid.

        The floor moves first, durably: from then on a start does not miss these segments. What
        a lack of room, descriptors or memory leaves undone is done by a later call.

        Raises:
            LogPoisonedError: A deletion failed.
        """
        self._check()
        expired = self._options.expired(
            self.segments(),
            needed_id=needed_id,
            now_us=now_us,
            recovery_id=recovery_id,
            steps=self.steps,
        )
        gone: list[str] = []
        try:
            if expired:
                self._floor.rise(expired, needed_id)
            for segment in expired:  # the oldest ones, in order
                before = self._sealed, self._view
                # First: a reader that found the segment gone would take it for damage.
                self._show_sealed(self._sealed[1:])
                if not self._floor.delete(segment):
                    self._sealed, self._view = before
                    break
                self._reader.forget(segment)
                gone.append(segment.path)
        except OSError as error:
            if error.errno not in PASSING_ERRNOS:
                self._fail("deleting a segment", error)
        return gone

    def _show_sealed(self, sealed: tuple[SegmentInfo, ...]) -> None:
        # The active part stays as it was: retention must not commit what was only appended.
        view = replace(self._view, sealed=sealed)
        self._sealed, self._view = sealed, view

    def close(self) -> None:
        """Sync unless poisoned, and close the files.

        Raises:
            LogPoisonedError: The last sync failed.
        """
        try:
            if self._poison is None:
                self.sync()
        finally:
            self._active.file.close()
            self._active.index.file.close()
            for part in (self._mark, self._reserve, self._floor):
                part.close()

    def _fail(self, operation: str, error: OSError) -> NoReturn:
        self._poison = operation, str(error)
        raise LogPoisonedError(operation, str(error)) from error

    def _check(self) -> None:
        if self._poison is not None:
            raise LogPoisonedError(*self._poison)

    # Reading, from any thread.

    def read(
        self,
        after_id: int,
        *,
        topic: bytes | None,
        up_to: int,
        count_max: int,
        bytes_max: int,
        priority: int = -1,
    ) -> ReadBack:
        """Return committed records above *after_id*, verified, in order.

        Only those of *topic* (None: all) and *priority* (-1: any), up to the id *up_to*, at
        most *count_max* of them with bodies of *bytes_max* in total; a single record that is
        larger than *bytes_max* is returned alone.

        Raises:
            DamagedLogError: A committed record is not what was written.
            LogScarceError: There is no descriptor or memory for it now.
            LogReadError: The disk did not return it.
            LogPoisonedError: An index must be rebuilt, and writing it failed.
        """
        wanted = Wanted(topic, up_to, count_max, bytes_max, priority)
        return self._on_view(lambda view: self._reader.read(view, after_id, wanted))

    def browse_before(self, before_id: int, topic: bytes, bounds: Bounds) -> FoundIds:
        """Return the newest committed ids of *topic* below *before_id*; raises as `read`."""
        return self._on_view(lambda view: self._browser.before(view, before_id, topic, bounds))

    def first_at(self, time_us: int) -> int:
        """Return the id from which on no message is older than *time_us*; raises as `read`."""
        steps = self.steps.step_ids()
        return self._on_view(lambda view: self._browser.first_at(view, time_us, steps))

    def count(self, count: Count, rows_max: int) -> bool:
        """Take *count* some *rows_max* further; return if it is complete; raises as `read`."""
        return self._on_view(lambda view: self._counter.go_on(view, count, rows_max))

    def _on_view(self, read: Callable[[LogView], T]) -> T:
        """Call *read* with the current view; repeat if retention deleted a segment of it."""
        while True:
            view = self._view
            try:
                with reading(LOG_DIR):
                    return read(view)
            except FileNotFoundError as error:
                # Retention replaces the view before it removes a file. If the view starts
                # where it did, something else took the segment.
                if view.first_id == self._view.first_id:
                    self._scrubber.check_there(*view.sealed)
                    lost = view.first_id, view.committed_id
                    raise damage(view.first_id, lost, f"missing segment: {error}") from error

    def scrub(self, bytes_max: int) -> int:
        """Verify about *bytes_max* more bytes of the sealed segments, in an endless round.

        Returns how many bytes were verified; 0 if no segment is sealed.

        Raises:
            DamagedLogError: A sealed segment is damaged, or a segment is missing.
        """
        with reading(LOG_DIR):
            return self._scrubber.scrub(self._view, bytes_max)

    def verify(self, segment: SegmentInfo) -> None:
        """Verify all of a sealed segment; do nothing if retention has deleted it.

        Raises:
            DamagedLogError: It is damaged, or missing.
        """
        with reading(segment.path):
            self._scrubber.verify(self._view, segment)

    def segments(self) -> list[SegmentInfo]:
        """Return all segments in order; the last is the active one."""
        view = self._view
        return [*view.sealed, view.active]

    @property
    def first_id(self) -> int:
        """The lowest id that the log still holds; in an empty log, the next one."""
        return self._view.first_id

    @property
    def floor(self) -> Floor:
        """From which id on the log must be there, and up to where retention was forced."""
        return self._floor.floor

    @property
    def has_room(self) -> bool:
        """Whether the log accepts batches that are not urgent."""
        return self._reserve.is_whole and self._unfinished.is_empty

    @property
    def is_poisoned(self) -> bool:
        """Whether the disk failed; then every write raises LogPoisonedError."""
        return self._poison is not None
