"""Durability: the log's own threads, and what they report to the event loop.

One writer thread takes everything that has accumulated, appends it in one write and commits it
with one fdatasync; while it does, the next batch accumulates. One reader thread reads backlog
back, and one keeps snapshots. They report by calls on the event loop, each in the order in
which it finished.

This is all that the broker needs of a log, `engine.Log`: append a batch, learn "committed up to
id N", read a range, keep a snapshot and delete what is not needed. Any log that can do this and
calls the engine's methods in return could replace it.

What is not promised: that a read sees a batch whose commit was not reported yet, or that it
finds every id it asks for: forced retention may have deleted them, and then it says how many.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from braidmq.base.errors import LogError, LogFullError, LogPoisonedError, LogScarceError
from braidmq.broker.delivery.dispatch import ReadRequest
from braidmq.broker.delivery.recounts import Recount
from braidmq.server.engine.counting import Counting
from braidmq.server.engine.engine import Engine
from braidmq.transport.threads import start_pool, start_thread
from braidmq.wal import snapshots
from braidmq.wal.disk import PASSING_ERRNOS, Files
from braidmq.wal.failures import NO_MEMORY
from braidmq.wal.floor import Floor
from braidmq.wal.keeping import Keeper
from braidmq.wal.wal import Wal

SCRUB_BYTES: Final = 1024 * 1024
"""How much of the sealed segments is verified each second, in the background."""

SAVES_MAX: Final = 2
"""Snapshots in the hands of the log at once, each in memory until it is on the disk."""

READ_AGAIN_S: Final = 1.0
"""Pause before a read is retried for which there was no descriptor or no memory."""

MEMORY_AGAIN_S: Final = 0.1
"""Pause before the writer goes on with what memory was lacking for."""

_SCARCE: Final = LogScarceError("a log job", NO_MEMORY)


class Durability:
    """A write-ahead log on threads of its own."""

    def __init__(
        self,
        wal: Wal,
        files: Files,
        engine: Engine,
        *,
        now_us: Callable[[], int],
        needed_id: int,
        sync_interval_s: float = 0.0,
    ) -> None:
        """Make it; *needed_id*: what readers needed of the log when it was recovered."""
        self._wal = wal
        self._files = files
        self._keeper = Keeper(wal, files, needed_id=needed_id)
        self._engine = engine
        self._now_us = now_us
        self._sync_interval_s = sync_interval_s
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="braidmq-log-writer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="braidmq-log-reader")
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="braidmq-log-saver")
        self._saves = 0  # snapshots that are being kept, or wait for that
        self._scrubbing = False
        self._closing = False

    @property
    def wal(self) -> Wal:
        """The log itself, for what may be read of it from any thread."""
        return self._wal

    def start(self) -> None:
        """Start all threads: later there may be no memory for one.

        Raises:
            NoThreadError: There is none now.
        """
        start_thread(self._writer)
        start_pool(self._reader, "braidmq-log-reader", 1)
        start_pool(self._saver, "braidmq-log-saver", 1)

    def append(self, bodies: list[bytes], *, urgent: bool) -> None:
        """Append a batch and commit it."""

        def job() -> None:
            self._wal.append(bodies, urgent=urgent)
            up_to = self._commit()
            self._report(lambda: self._engine.committed(up_to))

        self._jobs.put(lambda: self._attempt(job))

    def read(self, request: ReadRequest) -> None:
        """Read backlog back from the log."""
        if not self._closing:
            self._reader.submit(self._read, request)

    def count(self, wanted: list[Recount]) -> None:
        """Count messages again."""
        if not self._closing:
            self._reader.submit(self._count, Counting(self._wal, wanted))

    def _go_on_counting(self, counting: Counting) -> None:
        # Behind the reads that have come meanwhile: a pass over a long log takes a while.
        if not self._closing:
            self._reader.submit(self._count, counting)

    def save(
        self, last_id: int, parts: list[bytes], needed_id: int, *, wall_ahead_us: int = 0
    ) -> None:
        """Keep a snapshot, then delete the segments that are no longer needed."""
        # On a thread of its own: writing and syncing a large file takes a while, and commits
        # must not wait for it.
        if self._saves >= SAVES_MAX:
            return  # the disk is slow, and the next snapshot has all of this one
        self._saves += 1

        def sync() -> None:
            try:
                self._wal.sync()  # a snapshot must never be ahead of the log
                self._saver.submit(self._attempt, write, full_is_harmless=True)
            except (LogError, MemoryError):
                self._report(self._saved)
                raise

        def write() -> None:
            try:
                snapshots.save_parts(self._files, last_id, parts)
            except (LogScarceError, MemoryError):
                self._put(give_up)
            except LogFullError:
                self._put(write_out_of_the_reserve)
            else:
                self._put(finish)

        def write_out_of_the_reserve() -> None:
            # On the writer thread, as the reserve is the log's: it is what lets a snapshot, and
            # after it retention, make room on a full disk.
            if not self._closing and self._wal.release_reserve(sum(map(len, parts))):
                self._saver.submit(self._attempt, write_again, full_is_harmless=True)
            else:
                give_up()

        def write_again() -> None:
            try:
                snapshots.save_parts(self._files, last_id, parts)
            except (LogFullError, MemoryError):
                self._put(give_up)
            else:
                self._put(finish)

        def finish() -> None:
            self._keeper.kept(needed_id)
            self._report(lambda: self._engine.snapshot_kept(wall_ahead_us))
            give_up()

        def give_up() -> None:
            # Without a new snapshot retention goes by those before it.
            self._report(self._saved)
            self._retained(self._keeper.retain(self._now_us()))

        self._put(sync)

    def _put(self, job: Callable[[], object]) -> None:
        self._jobs.put(lambda: self._attempt(job, full_is_harmless=True))

    def _saved(self) -> None:
        self._saves -= 1

    def make_room(self) -> None:
        """Delete what is not needed, and try to allocate the reserve again."""

        def job() -> None:
            self._retained(self._keeper.retain(self._now_us()))
            if self._wal.refill_reserve():
                self._report(self._engine.room_made)

        self._put(job)

    def _retained(self, forced: Floor | None) -> None:
        floor_id = self._wal.first_id
        self._report(lambda: self._engine.retained(floor_id))
        if forced is not None:
            self._report(lambda: self._engine.forced_out(forced.first_id))

    def scrub(self) -> None:
        """Verify some more of the sealed segments, in the background."""
        if not self._scrubbing and not self._closing:
            self._scrubbing = True
            self._reader.submit(self._scrub)

    def stop_reading(self) -> None:
        """Start no more reads; call it on the event loop, before `close`."""
        self._closing = True

    def close(self) -> None:
        """Finish the jobs that wait, sync, and end the threads; blocks until then."""
        self._closing = True
        self._jobs.put(None)  # after all jobs that wait: they are done first
        if self._writer.is_alive():
            self._writer.join()
        self._saver.shutdown()
        while not self._jobs.empty():  # what the last snapshot allows to delete
            job = self._jobs.get()
            if job is not None:
                job()
        self._reader.shutdown()
        self._wal.close()

    # On the writer thread.

    def _write(self) -> None:
        sync_at = 0.0  # by the interval_ms policy; 0 when nothing waits for it
        while True:
            is_behind = self._wal.synced_id < self._wal.committed_id
            if sync_at == 0 and self._sync_interval_s and is_behind:
                sync_at = self._clock() + self._sync_interval_s
            # A sync that is due runs as soon as no job waits. That is soon: the engine has only
            # one append under way at a time.
            try:
                job = self._jobs.get(
                    timeout=max(0, sync_at - self._clock()) if sync_at else None
                )
            except queue.Empty:
                sync_at = 0.0
                job = self._sync
            except MemoryError:
                threading.Event().wait(MEMORY_AGAIN_S)
                continue
            if job is None:
                return
            job()

    def _commit(self) -> int:
        # The batch is written, so it is not refused any more, but committed as soon as can be.
        while True:
            try:
                return self._wal.commit(self._now_us())
            except MemoryError:
                threading.Event().wait(MEMORY_AGAIN_S)

    def _sync(self) -> None:
        self._attempt(self._wal.sync, full_is_harmless=True)  # then it is due again

    def _attempt(self, job: Callable[[], object], *, full_is_harmless: bool = False) -> None:
        """Do a job and report how it failed.

        A full disk concerns publishers only if an append met it: after a snapshot or a read
        that found no room, the next batch may still fit. So does a lack of descriptors, or of
        memory: what was done by half is taken back, or finished by a later job.
        """
        try:
            job()
        except LogError as error:
            if full_is_harmless and isinstance(error, LogFullError):
                return
            failure = error
            self._report(lambda: self._engine.log_failed(failure))
        except OSError as error:
            if full_is_harmless and error.errno in PASSING_ERRNOS:
                return
            # The state of the files is unknown now, so no later job may rely on it.
            self._report_failure(error.strerror or type(error).__name__)
        except MemoryError:
            if not full_is_harmless:
                self._report(self._lack_memory)
        except Exception as error:  # noqa: BLE001 - a thread that dies silently would leave every publisher waiting
            self._report_failure(type(error).__name__)

    def _lack_memory(self) -> None:
        self._engine.log_failed(_SCARCE)

    def _report_failure(self, reason: str) -> None:
        poisoned = LogPoisonedError("a log job", reason)
        self._report(lambda: self._engine.log_failed(poisoned))

    # On the reader thread.

    def _read(self, request: ReadRequest) -> None:
        def job() -> None:
            try:
                found = self._wal.read(
                    request.after_id,
                    topic=request.topic,
                    up_to=request.up_to,
                    count_max=request.count_max,
                    bytes_max=request.bytes_max,
                    priority=request.priority,
                )
            except LogFullError:
                # No descriptor or no memory, for the moment.
                self._report(lambda: self._read_later(request))
                return
            lost = 0 if found.lost is None else found.lost[1] - found.lost[0] + 1
            self._report(
                lambda: self._engine.backlog_read(
                    request, found.records, reached_id=found.reached_id, lost_count=lost
                )
            )

        self._attempt(job)

    def _count(self, counting: Counting) -> None:
        def job() -> None:
            try:
                is_done = counting.go_on()
            except LogFullError:
                self._report(lambda: self._count_later(counting))
                return
            if not is_done:
                self._report(lambda: self._go_on_counting(counting))
                return
            counts = counting.counts()
            self._report(lambda: self._engine.recounted(counts))

        self._attempt(job)

    def _count_later(self, counting: Counting) -> None:
        self._loop.call_later(READ_AGAIN_S, self._go_on_counting, counting)

    def _read_later(self, request: ReadRequest) -> None:
        self._loop.call_later(READ_AGAIN_S, self.read, request)

    def _scrub(self) -> None:
        self._attempt(lambda: self._wal.scrub(SCRUB_BYTES), full_is_harmless=True)
        self._scrubbing = False

    def _report(self, call: Callable[[], None]) -> None:
        while True:
            try:
                self._loop.call_soon_threadsafe(call)
            except RuntimeError:
                return  # the loop is closed: there is nothing left to report to
            except MemoryError:
                threading.Event().wait(MEMORY_AGAIN_S)  # else the engine would wait for ever
            else:
                return
