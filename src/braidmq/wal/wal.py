"""The log as one object: append, commit, read back, retain. It joins the other modules.

`append`, `commit`, `sync`, `retain`, `refill_reserve` and `close` belong to one writer thread;
`read`, `scrub` and `segments` to any. It reads no clock: times are arguments. What is on the
disk at each step, and what a crash there leaves, is told in docs/log_format.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeVar

from braidmq.base.errors import ConfigError, DamagedLogError, LogFullError, LogPoisonedError
from braidmq.base.ids import ID_MAX
from braidmq.base.limits import KIB, MIB
from braidmq.wal.browse import Bounds, Browser, Found
from braidmq.wal.files import FULL_ERRNOS, LOG_DIR, File, Files, write_all
from braidmq.wal.format import ROW_BYTES, Describe, encode_mark
from braidmq.wal.index import index_path
from braidmq.wal.maintenance.rebuild import Visit
from braidmq.wal.maintenance.scrub import Scrubber
from braidmq.wal.maintenance.watching import Watch, unwatched
from braidmq.wal.opening import MARK_PATH, Opening, Recovered, start_segment
from braidmq.wal.policy import FsyncPolicy
from braidmq.wal.reading import ReadBack, Reader, View
from braidmq.wal.reserve import Reserve
from braidmq.wal.retention import Retention
from braidmq.wal.segment import ActiveSegment, SegmentInfo, segment_path
from braidmq.wal.stats import WalStats

T = TypeVar("T")

SEGMENT_BYTES_MIN: Final = 4 * KIB
SEGMENT_BYTES_MAX: Final = 1024 * MIB
"""A batch may overshoot the size by itself, and index rows hold offsets in 32 bits."""


@dataclass(frozen=True, slots=True)
class WalOptions:
    """The settings of ``[wal]`` that the log itself obeys.

    `segment_bytes` is where a segment is sealed, at the end of the commit that reaches it;
    `retention_hours` and `retention_bytes` of 0 are off, both off: nothing is deleted.
    """

    fsync: str = "always"
    segment_bytes: int = 64 * MIB
    retention_hours: float = 168.0
    retention_bytes: int = 0
    retention_force: bool = False
    policy: FsyncPolicy = field(init=False)

    def __post_init__(self) -> None:
        """Judge the settings.

        Raises:
            ConfigError: One cannot be used.
        """
        object.__setattr__(self, "policy", FsyncPolicy.parse(self.fsync))
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            bounds = f"must be between {SEGMENT_BYTES_MIN} and {SEGMENT_BYTES_MAX}"
            raise ConfigError("wal.segment_bytes", f"{self.segment_bytes} {bounds}")
        if self.retention_hours < 0 or self.retention_bytes < 0:
            raise ConfigError("wal.retention", "limits must not be negative; 0 is off")


def _no_clock() -> float:
    return 0.0


class Wal:
    """An append-only log of opaque record bodies. Made by `Wal.open`."""

    def __init__(
        self,
        files: Files,
        options: WalOptions,
        describe: Describe,
        *,
        sealed: list[SegmentInfo],
        active: ActiveSegment,
        recovered: Recovered,
        clock: Callable[[], float],
    ) -> None:
        self._files = files
        self._options = options
        self._describe = describe
        self._clock = clock
        self._sealed = tuple(sealed)
        self._active = active
        self._poison: tuple[str, str] | None = None
        self._mark: File = files.open(MARK_PATH, write=True, create=True)
        self._reserve = Reserve(files, options.segment_bytes)
        self._reader = Reader(files, describe)
        self._scrubber = Scrubber(self._reader)
        self._browser = Browser(self._reader)
        self.stats = WalStats()
        self.recovered = recovered
        self.next_id = active.next_id
        self.synced_id = self.next_id - 1
        self.committed_id = self.next_id - 1
        write_all(self._mark, encode_mark(self.synced_id), 0)
        self._reserve.refill()
        files.sync_dir(LOG_DIR)
        self._view = self._make_view()

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
        above *after_id*, in order; *clock*, in seconds, is only for measuring fsyncs;
        *watch* is told how far it is.

        Raises:
            DamagedLogError: Accepted data cannot be read. Nothing was changed but indexes.
            LogFullError: There is no room even to start.
            LogPoisonedError: The disk failed.
        """
        opening = Opening(
            files, describe, now_us=now_us, after_id=after_id, visit=visit, watch=watch
        )
        try:
            sealed, active = opening.run()
            return cls(
                files,
                options,
                describe,
                sealed=sealed,
                active=active,
                recovered=opening.recovered,
                clock=clock,
            )
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise LogFullError from error
            raise LogPoisonedError("opening", str(error)) from error

    # Writing.

    def append(self, bodies: list[bytes], *, urgent: bool = False) -> None:
        """Write *bodies* as the records from `next_id` on; `commit` makes them count.

        An *urgent* batch may use up the reserve when the disk is full.

        Raises:
            LogFullError: There is no room. The log is as it was before the call.
            LogPoisonedError: A write failed; what is on the disk is unknown, and stays so.
        """
        self._check()
        if not bodies:
            return
        if not (urgent or self._reserve.is_whole):
            self.stats.refused_full += 1
            raise LogFullError
        size = self._active.size
        while self._active.next_id == self.next_id:
            try:
                # Everything before is on the disk: this batch proves it by its fence.
                fence = self.synced_id == self.next_id - 1
                self._active.append(bodies, self._describe, fence=fence)
            except OSError as error:
                self._undo_append(error)
                if not urgent or not self._use_reserve(bodies):
                    self.stats.refused_full += 1
                    raise LogFullError from error
        self.next_id = self._active.next_id
        self.stats.appends += 1
        self.stats.records += len(bodies)
        self.stats.batches.add(len(bodies))
        self.stats.bytes += self._active.size - size

    def _undo_append(self, error: OSError) -> None:
        if error.errno not in FULL_ERRNOS:
            self._fail("write", error)
        try:
            self._active.roll_back()
        except OSError as worse:
            self._fail("truncate after a full disk", worse)

    def _use_reserve(self, bodies: list[bytes]) -> bool:
        wanted = sum(map(len, bodies)) + len(bodies) * 2 * ROW_BYTES
        try:
            released = self._reserve.release(wanted)
        except OSError as error:
            self._fail("shortening the reserve", error)
        self.stats.urgent_from_reserve += released
        return released

    def commit(self, now_us: int) -> int:
        """Make what was appended count, as the fsync policy says; return `committed_id`.

        Seals the segment and starts the next one when it has reached its size.

        Raises:
            LogPoisonedError: The outcome of what was appended since the last commit is unknown.
        """
        self._check()
        if self._options.policy.wants_sync(self.next_id - 1 - self.synced_id):
            self._sync()
        self._publish()
        self.stats.commits += 1
        if self._active.size >= self._options.segment_bytes and not self._active.is_empty:
            self._rotate(now_us)
        return self.committed_id

    def sync(self) -> int:
        """Force everything that was appended to the disk, whatever the policy, and commit it.

        Raises:
            LogPoisonedError: What was not yet synced has an unknown outcome.
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
        self.stats.count_fsync(self._clock() - started)
        self.synced_id = self.next_id - 1
        try:
            write_all(self._mark, encode_mark(self.synced_id), 0)
        except OSError as error:
            # A file system that copies on write may lack room even for this; the mark is only
            # a hint that lags until the next sync.
            if error.errno not in FULL_ERRNOS:
                self._fail("write of the durable mark", error)
            self.stats.marks_skipped += 1

    def _publish(self) -> None:
        if self.committed_id != self.next_id - 1:
            self.committed_id = self.next_id - 1
            self._view = self._make_view()

    def _make_view(self) -> View:
        active = self._active
        return View(
            self._sealed,
            active.info(sealed=False),
            active.file,
            active.index.view(),
            self.committed_id,
        )

    def _rotate(self, now_us: int) -> None:
        """Seal the segment and start the next; without room for that, go on with this one."""
        if self.synced_id != self.next_id - 1:
            self._sync()
        try:
            self._active.seal_index()
            successor = start_segment(self._files, self.next_id, now_us)
        except LogPoisonedError as error:
            self._poison = error.operation, error.reason
            raise
        except OSError as error:
            self._postpone_rotation(error)
            return
        self._sealed = (*self._sealed, self._active.info(sealed=True))
        self._active = successor
        self._view = self._make_view()
        self.stats.rotations += 1

    def _postpone_rotation(self, error: OSError) -> None:
        if error.errno not in FULL_ERRNOS:
            self._fail("rotation", error)
        try:
            for path in (index_path(self.next_id), segment_path(self.next_id)):
                if self._files.exists(path):
                    self._files.unlink(path)
            self._files.sync_dir(LOG_DIR)
            self._active.unseal_index()
        except OSError as worse:
            self._fail("undoing a rotation", worse)
        self.stats.rotations_postponed += 1

    def refill_reserve(self) -> bool:
        """Make the reserve whole again if there is room; return whether it is.

        Publishing resumes when it is. Cheap to call when nothing is missing.

        Raises:
            LogPoisonedError: The log was poisoned, or is now.
        """
        self._check()
        try:
            return self._reserve.refill()
        except OSError as error:
            self._fail("allocating the reserve", error)

    def retain(self, needed_id: int, now_us: int, *, recovery_id: int = ID_MAX) -> list[str]:
        """Delete the sealed segments that nobody needs any more; return their paths.

        Ids from *needed_id* on are needed by a reader (`retention_force` overrules it), ids
        from *recovery_id* on by recovery, which nothing overrules: pass the oldest kept
        snapshot's last id + 1.

        Raises:
            LogPoisonedError: A deletion failed.
        """
        self._check()
        options = self._options
        limits = Retention(
            options.retention_hours, options.retention_bytes, options.retention_force
        )
        expired = limits.expired(
            self.segments(), needed_id=needed_id, now_us=now_us, recovery_id=recovery_id
        )
        for segment in expired:
            self._sealed = self._sealed[1:]
            self._view = self._make_view_of_sealed()
            self._delete(segment)
            self.stats.segments_deleted += 1
            self.stats.segments_forced += segment.last_id >= needed_id
        return [segment.path for segment in expired]

    def _make_view_of_sealed(self) -> View:
        view = self._view
        return View(self._sealed, view.active, view.file, view.index, view.committed_id)

    def _delete(self, segment: SegmentInfo) -> None:
        try:
            # The segment first: a reader that finds no index would make a new one of it.
            self._files.unlink(segment.path)
            # One at a time: a crash must never leave an older segment without a younger one.
            self._files.sync_dir(LOG_DIR)
            index = index_path(segment.first_id)
            if self._files.exists(index):
                self._files.unlink(index)
            self._reader.forget(segment)
        except OSError as error:
            self._fail("deleting a segment", error)

    def close(self) -> None:
        """Sync unless poisoned, and let go of the files.

        Raises:
            LogPoisonedError: The last sync failed.
        """
        try:
            if self._poison is None:
                self.sync()
        finally:
            for file in (self._mark, self._active.file, self._active.index.file):
                file.close()
            self._reserve.close()

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

        Only those of *topic* (None: all) and of *priority* (-1: any), at most up to the id
        *up_to*, *count_max* of them with bodies of *bytes_max* together; at least one when
        there is one.

        Raises:
            DamagedLogError: A committed record cannot be read.
            LogFullError: An index must be rebuilt and there is no room for it.
            LogPoisonedError: An index must be rebuilt and cannot be written.
        """
        return self._on_view(
            lambda view: self._reader.read(
                view,
                after_id,
                topic=topic,
                up_to=up_to,
                count_max=count_max,
                bytes_max=bytes_max,
                priority=priority,
            )
        )

    def browse_before(self, before_id: int, topic: bytes, bounds: Bounds) -> Found:
        """Return the newest committed ids of *topic* below *before_id*; raises as `read`."""
        return self._on_view(lambda view: self._browser.before(view, before_id, topic, bounds))

    def first_at(self, time_us: int) -> int:
        """Return the id from which on no message is older than *time_us*; raises as `read`."""
        return self._on_view(lambda view: self._browser.first_at(view, time_us))

    def _on_view(self, read: Callable[[View], T]) -> T:
        """Read of the log as it is now, and again when retention took something meanwhile."""
        while True:
            view = self._view
            try:
                return read(view)
            except FileNotFoundError as error:
                if view.first_id == self._view.first_id:  # it was not retention
                    raise DamagedLogError(
                        segment_path(view.first_id),
                        offset=0,
                        first_id=view.first_id,
                        last_id=view.committed_id,
                        reason=f"missing segment: {error}",
                    ) from error

    def scrub(self, bytes_max: int) -> int:
        """Verify the next *bytes_max* bytes (about) of the sealed segments, round and round.

        Returns how many were verified; 0 when nothing is sealed.

        Raises:
            DamagedLogError: A sealed segment is damaged.
        """
        return self._scrubber.scrub(self._view, bytes_max)

    def verify(self, segment: SegmentInfo) -> None:
        """Verify all of a sealed segment; one that retention has taken is nobody's business.

        Raises:
            DamagedLogError: It is damaged.
        """
        try:
            self._scrubber.verify(self._view, segment)
        except FileNotFoundError:
            if segment.first_id >= self._view.first_id:
                raise

    def segments(self) -> list[SegmentInfo]:
        """Return all segments in order; the last is the one that grows."""
        view = self._view
        return [*view.sealed, view.active]

    @property
    def first_id(self) -> int:
        """The lowest id that the log still has, or will have."""
        return self._view.first_id

    @property
    def total_bytes(self) -> int:
        """The committed bytes of all segments."""
        return sum(segment.size for segment in self.segments())

    @property
    def is_poisoned(self) -> bool:
        """Whether the disk failed; then every write raises LogPoisonedError."""
        return self._poison is not None

    @property
    def reserve_is_whole(self) -> bool:
        """Whether publishing is possible as far as the reserve is concerned."""
        return self._reserve.is_whole
