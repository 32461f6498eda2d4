"""The sink: stages become messages, each row exactly once, even if client or broker is killed.

Batches are appended one at a time; a commit that arrives meanwhile waits for its turn. A thread
reads the rows from the stages, and they are published in chunks, each once the chunk before it
is in the log. What the records mean is in `broker.sinks`. A batch goes on after the client that
committed it has disconnected, and after the log or a queue has been full.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from braidmq.base import refusals
from braidmq.base.errors import (
    BraidError,
    ConfigError,
    DamagedStageError,
    LogFullError,
    NotAllowedError,
    QuotaError,
)
from braidmq.base.ids import ID_MAX
from braidmq.base.limits import MIB
from braidmq.broker.authorize import ADMIN, Principal, authorize
from braidmq.broker.broker import Broker
from braidmq.broker.quotas import TOPIC_NAME_BYTES, TOPICS, refusal
from braidmq.broker.sinks import NAME_BYTES_MAX, QUERIES_MAX, STAGES_MAX, Intent, Row
from braidmq.columnar.flight.requests import SinkCommit, SinkKey
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.requests import FindEngine, UnavailableError, changing
from braidmq.server.sink.stages import Stages
from braidmq.wal.wal import Wal

CHUNK_ROWS: Final = 1_000
"""Rows that are published at once; the event loop does nothing else meanwhile."""

CHUNK_BYTES: Final = MIB
"""Bytes of their payloads; a single row may be larger."""

CARE_S: Final = 3600.0
"""How often old stages are expired, and a batch that failed is tried again."""

_NAMING: Final = (TOPICS, TOPIC_NAME_BYTES)

_log = structlog.get_logger(__name__)


class Sink:
    """Turns stages into messages; everything here runs on the event loop."""

    def __init__(
        self, find_engine: FindEngine, find_wal: Callable[[], Wal | None], stages: Stages
    ) -> None:
        self._find_engine = find_engine
        self._find_wal = find_wal
        self._stages = stages
        self._turn = asyncio.Lock()  # one batch at a time
        self._choosing = asyncio.Lock()  # held while stages are chosen for a batch, or dropped
        self._chosen: set[str] = set()
        self._finished: list[tuple[int, list[str]]] = []  # id of a DONE, and its stages
        self._tasks: set[asyncio.Task[SinkCommit]] = set()
        self._care: asyncio.Task[None] | None = None

    # Start and stop.

    def start(self) -> None:
        """Finish the batch that a crash left open, and expire old stages from now on."""
        self._care = asyncio.get_running_loop().create_task(self._take_care())

    async def stop(self) -> None:
        """Stop; a batch that is not done is finished after the next start."""
        tasks: list[asyncio.Task[SinkCommit] | asyncio.Task[None]] = [*self._tasks]
        if self._care is not None:
            tasks.append(self._care)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # For writers.

    async def commit(
        self, principal: Principal, key: SinkKey, stages: Iterable[str]
    ) -> SinkCommit:
        """Turn the rows of *stages*, in this order, into messages; return when all are durable.

        A batch that is done, or earlier than the last one that is, changes nothing; of the
        earlier ones the number of messages is no longer known, and 0. When the caller goes
        away, the batch goes on.

        Raises:
            ConfigError: The key is invalid, or there are too many stages.
            UnknownStageError: A stage does not exist, or no longer.
            NotAllowedError: A stage or the query belongs to another principal.
            QuotaError: The rows would make more topics than *principal* may have, or the
                query would be one too many.
            LogFullError: The log has no room. Nothing was changed.
            UnavailableError: Not now; it is unknown whether the batch was begun.
        """
        ids = list(dict.fromkeys(stages))
        _judge(key, ids)
        # A task of its own, and shielded: a batch that was begun is finished even if the caller
        # disconnects.
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._commit(principal, key, ids))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def abort(self, principal: Principal, stages: Iterable[str]) -> None:
        """Drop stages of *principal*, except those that are or were part of a batch."""
        async with self._choosing:
            await self._drop(principal, stages)

    async def resume(self) -> None:
        """Finish the open batch, then drop the stages that are no longer needed.

        Raises:
            BraidError: The batch cannot be finished now.
        """
        try:
            if not self._turn.locked():  # else a commit is finishing it
                async with self._turn:
                    await self._finish_open(changing(self._find_engine()))
        finally:
            await self._drop_finished()
            async with self._choosing:
                await asyncio.to_thread(self._stages.expire, self._in_use())

    # Inside.

    async def _take_care(self) -> None:
        while True:
            try:
                await self.resume()
            except BraidError as error:
                _log.error("cannot finish the sink's batch", reason=str(error))
            except OSError as error:
                _log.error("cannot expire old stages", reason=str(error))
            await asyncio.sleep(CARE_S)  # a timer: no event announces that a stage is old

    def _forget(self, task: asyncio.Task[SinkCommit]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # The caller may be gone; asyncio would log an error that is never retrieved.
            task.exception()

    async def _commit(self, principal: Principal, key: SinkKey, ids: list[str]) -> SinkCommit:
        async with self._turn:
            engine = changing(self._find_engine())
            await self._finish_open(engine)  # a batch that a crash or a failure left open
            done = engine.broker.sinks.last_done(key.query, key.sink)
            if done is not None:
                if done.principal != principal.name and not authorize(principal, ADMIN, ""):
                    raise NotAllowedError("write for query", key.query)
                if key.batch <= done.batch:
                    async with self._choosing:
                        await self._drop(principal, ids)
                    return SinkCommit(
                        done.rows if key.batch == done.batch else 0, repeated=True
                    )
            try:
                intent = await self._begin(engine, principal, key, ids)
                await self._finish_open(engine)
            finally:
                self._chosen = set()
        await self._drop_finished()
        return SinkCommit(intent.rows, repeated=False)

    async def _begin(
        self, engine: Engine, principal: Principal, key: SinkKey, ids: list[str]
    ) -> Intent:
        reason = engine.broker.sinks.quota_refusal(principal, key.query, key.sink, key.batch)
        if reason:
            raise QuotaError(reason)
        async with self._choosing:
            stages = await asyncio.to_thread(self._with_rows, principal, ids)
            # Before the intent: one that waited for a quota would stop the batches of others.
            await asyncio.to_thread(
                check_new_topics, engine.broker, principal, self._stages, ids
            )
            self._chosen = set(ids)
        sinks = engine.broker.sinks
        changing(engine)  # asked again: reading the stages took a while
        if engine.log_is_full:
            raise LogFullError
        if not sinks.has_room(key.query, key.sink, key.batch):
            what = "the broker remembers too many queries"
            raise UnavailableError(refusals.by_bound(what, QUERIES_MAX, "in one broker"))
        return sinks.begin(principal.name, key.query, key.sink, key.batch, stages)

    def _with_rows(self, principal: Principal, ids: list[str]) -> list[tuple[bytes, int]]:
        # On a thread.
        return [
            (bytes.fromhex(stage_id), self._stages.rows_of(stage_id, principal))
            for stage_id in ids
        ]

    async def _finish_open(self, engine: Engine) -> None:
        """Append the missing rows of the open intent, and finish it.

        Raises:
            LogFullError: The log refused the intent itself.
            DamagedStageError, UnknownStageError: Its rows cannot be read.
            UnavailableError: The broker shuts down.
        """
        sinks = engine.broker.sinks
        intent = sinks.open
        if intent is None:
            return
        chunk = _Chunk(intent, self._stages)
        while sinks.open is intent:
            changing(engine)
            if engine.broker.refusal:
                chunk.log_wait(engine.broker.refusal)
                await engine.waiters.until(
                    lambda: not engine.broker.refusal or sinks.open is not intent
                )
            elif intent.appended == intent.rows:
                done_id = sinks.finish()
                # If the log refuses the DONE, the intent is open again and the loop goes on.
                if await _is_committed(engine, done_id):
                    self._finished.append(
                        (done_id, [stage.hex() for stage, _ in intent.stages])
                    )
                    return
            elif chunk.start != intent.appended:
                # The first chunk, or the log has refused rows that were appended before.
                await chunk.read(intent.appended)
            else:
                await self._append(engine, chunk)
        # Another intent or none is open: the log has refused this one's own record.
        changing(engine)
        raise LogFullError

    async def _append(self, engine: Engine, chunk: "_Chunk") -> None:
        broker = engine.broker
        taken = broker.sinks.append(chunk.rows, broker.committed_id, engine.now_us())
        last_id = broker.outgoing.last_id
        if taken == len(chunk.rows):  # read on while the log writes
            await asyncio.gather(
                _is_committed(engine, last_id), chunk.read(chunk.start + taken)
            )
            return
        chunk.skip(taken)
        chunk.log_wait(broker.sinks.waits_for)
        has_room = room_for(broker, chunk.rows[0][0])
        if not taken or await _is_committed(engine, last_id):
            await engine.waiters.until(
                lambda: has_room() or broker.sinks.open is not chunk.intent
            )

    async def _drop(self, principal: Principal, ids: Iterable[str]) -> None:
        in_use = self._in_use()
        free = [stage_id for stage_id in ids if stage_id not in in_use]
        await asyncio.to_thread(self._stages.drop, free, principal)

    async def _drop_finished(self) -> None:
        # A commit that is not synced yet can be lost, and then its stages are needed again.
        wal = self._find_wal()
        synced_id = 0 if wal is None else wal.synced_id
        gone = [ids for done_id, ids in self._finished if done_id <= synced_id]
        self._finished = [one for one in self._finished if one[0] > synced_id]
        for ids in gone:
            try:
                await asyncio.to_thread(self._stages.remove, ids)
            except OSError as error:  # the batch is done all the same; the files will expire
                _log.warning("stages cannot be deleted", reason=str(error))

    def _in_use(self) -> set[str]:
        used = set(self._chosen)
        for _, ids in self._finished:
            used.update(ids)
        engine = self._find_engine()
        if engine is not None and engine.broker.sinks.open is not None:
            used.update(stage.hex() for stage, _ in engine.broker.sinks.open.stages)
        return used


class _Chunk:
    """The rows of a batch that are published next."""

    def __init__(self, intent: Intent, stages: Stages) -> None:
        self.intent = intent
        self._stages = stages
        self.start = -1
        self.rows: list[Row] = []
        self.waits_for = ""

    async def read(self, row: int) -> None:
        """Load the rows from *row* on."""
        self.rows = await asyncio.to_thread(self._read, row)
        self.start = row

    def skip(self, count: int) -> None:
        """Drop the first *count* rows: they are published."""
        self.rows = self.rows[count:]
        self.start += count

    def log_wait(self, reason: str) -> None:
        """Log that the batch waits, unless the last wait had the same reason."""
        if self.waits_for != reason:
            self.waits_for = reason
            _log.warning(
                "the sink's batch waits",
                reason=reason,
                query=self.intent.query,
                batch=self.intent.batch,
                rows_left=self.intent.rows - self.intent.appended,
            )

    def _read(self, row: int) -> list[Row]:
        # On a thread: reads only what never changes of the intent.
        rows: list[Row] = []
        bytes_left = CHUNK_BYTES
        while row < self.intent.rows and len(rows) < CHUNK_ROWS and bytes_left > 0:
            stage, at = self.intent.locate(row)
            found = self._stages.read(stage.hex(), at, CHUNK_ROWS - len(rows), bytes_left)
            if not found:
                raise DamagedStageError(stage.hex(), "rows are missing")
            rows.extend(found)
            row += len(found)
            bytes_left -= sum(len(value) for _, value, _, _ in found)
        return rows


def check_new_topics(
    broker: Broker, principal: Principal, stages: Stages, ids: Iterable[str]
) -> None:
    """Check that the topics that stages would make are within the principal's quotas.

    On a thread: of the broker it only reads what cannot be half changed.

    Raises:
        QuotaError: They are not.
    """
    account = broker.topics.accounts.of(principal.name)
    rooms = [principal.quotas.limit(quota) - account.used(quota) for quota in _NAMING]
    sums = [stages.names_of(stage_id) for stage_id in ids]
    said = all(count >= 0 for counts in sums for count in counts)
    totals = map(sum, zip(*sums, strict=True))
    if said and all(total <= room for total, room in zip(totals, rooms, strict=False)):
        return  # even if all names were new
    made: set[str] = set()
    sizes = 0
    for stage_id in ids:
        for names in stages.topics_of(stage_id):
            new = [n for n in names if n not in made and broker.topics.find(n) is None]
            made.update(new)
            sizes += sum(len(name.encode()) for name in new)
            for quota, needed, room in zip(_NAMING, (len(made), sizes), rooms, strict=True):
                if needed > room and new:
                    limit = principal.quotas.limit(quota)
                    broker.topics.accounts.refused[quota] += 1
                    raise QuotaError(refusal(quota, limit, principal.name))


def room_for(broker: Broker, topic_name: str) -> Callable[[], bool]:
    """Return a condition that holds once a row that was not accepted is worth another try.

    It may be refused again, but something that the verdict depends on has changed: its queue
    has room, the log refuses everything, or topics or queues were created or deleted.
    """
    topics, queues = broker.topics, broker.queues.by_name
    before = (len(topics), len(queues))

    def holds() -> bool:
        if broker.refusal or (len(topics), len(queues)) != before:
            return True
        topic = topics.find(topic_name)
        queue = None if topic is None else topic.queue
        return queue is not None and queue.has_room()

    return holds


async def _is_committed(engine: Engine, record_id: int) -> bool:
    try:
        await engine.waiters.committed(record_id)
    except UnavailableError:
        return False  # the caller asks the engine whether that is final
    return True


def _judge(key: SinkKey, ids: list[str]) -> None:
    for what, name, least in (("query", key.query, 1), ("sink", key.sink, 0)):
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            size = -1
        if not least <= size <= NAME_BYTES_MAX:
            rule = f"must have {least} to {NAME_BYTES_MAX} bytes of UTF-8"
            raise ConfigError(what, f"{name[:64]!r} {rule}")
    if not 0 <= key.batch <= ID_MAX:
        raise ConfigError("batch", f"{key.batch} must be a number from 0 to {ID_MAX}")
    if len(ids) > STAGES_MAX:
        problem = refusals.by_bound(f"{len(ids)} are too many", STAGES_MAX, "in one batch")
        raise ConfigError("stages", problem)
