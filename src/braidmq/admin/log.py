"""The log over HTTP: its segments and settings, and a check of its bytes.

    GET  /api/log           segments, sizes, settings, files in quarantine
    POST /api/log/verify    the same, after reading and checking every sealed segment

Every request that reads the log does so here, on a thread (`Log.read`). One that finds damage
is answered with 503; then the broker exits, as it does when the scrub finds damage: a log that
has lost records must not be served.
"""

import asyncio
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, TypeVar

import msgspec
from starlette.requests import Request

from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.requests import allow
from braidmq.base.errors import DamagedLogError, LogError
from braidmq.broker.authorize import ADMIN, Principal
from braidmq.server.config.config import WalConfig
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.requests import FindEngine, UnavailableError, running
from braidmq.wal.disk import Files
from braidmq.wal.quarantine import QUARANTINE_DIR
from braidmq.wal.segment import SegmentInfo
from braidmq.wal.wal import Wal

SEGMENTS_SHOWN_MAX: Final = 10_000
QUARANTINE_SHOWN_MAX: Final = 1_000
"""Rows in one answer; of more, the newest are shown."""

P = ParamSpec("P")
T = TypeVar("T")


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """One segment; `verified` is null until it has been checked."""

    name: str
    first_id: int
    last_id: int
    bytes: int
    sealed: bool
    verified: bool | None


class QuarantineRow(msgspec.Struct, frozen=True):
    """A file in quarantine: bytes that recovery could not accept."""

    name: str
    bytes: int


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The log as it is now; with very many segments, only the newest are listed."""

    segments: list[SegmentRow]
    segments_total: int
    bytes: int
    committed_id: int
    fsync: str
    full: bool
    poisoned: bool
    retention_hours: float
    retention_bytes: int
    quarantine: list[QuarantineRow]


class Log:
    """The log's files, and what checks have found.

    A sealed segment does not change, so the result of its last check is kept. One check runs
    at a time, and all requests that arrive meanwhile share its result.
    """

    def __init__(
        self,
        config: WalConfig,
        files: Files,
        find_engine: FindEngine,
        find_wal: Callable[[], Wal | None],
    ) -> None:
        self._config = config
        self._files = files
        self._find_engine = find_engine
        self._find_wal = find_wal
        self._verified: dict[int, bool] = {}  # by the segment's first id
        self._verifying: asyncio.Task[DamagedLogError | None] | None = None

    async def facts(self) -> LogFacts:
        """Return the log as it is now.

        Raises:
            UnavailableError: The broker is still recovering it.
        """
        wal = self._find_wal()
        engine = self._find_engine()
        if wal is None or engine is None:
            raise UnavailableError("recovering the log")
        segments = wal.segments()
        quarantine = await asyncio.to_thread(quarantined, self._files)
        return LogFacts(
            segments=[self._row(segment) for segment in segments[-SEGMENTS_SHOWN_MAX:]],
            segments_total=len(segments),
            bytes=sum(segment.size for segment in segments),
            committed_id=wal.committed_id,
            fsync=self._config.fsync,
            full=engine.log_is_full,
            poisoned=wal.is_poisoned,
            retention_hours=self._config.retention_hours,
            retention_bytes=self._config.retention_bytes,
            quarantine=quarantine,
        )

    async def verify(self) -> LogFacts:
        """Check every sealed segment, then return the log.

        Damage ends the broker, as it does when the scrub finds it; the answer goes out first.

        Raises:
            UnavailableError: The broker is still recovering the log, or cannot read it now.
        """
        if self._verifying is None or self._verifying.done():
            loop = asyncio.get_running_loop()
            self._verifying = loop.create_task(self._verify())
        # Shielded: one client that disconnects must not cancel the check for the others.
        damage = await asyncio.shield(self._verifying)
        facts = await self.facts()
        if damage is not None:
            report_damage(running(self._find_engine()), damage)
        return facts

    async def read(
        self, read: Callable[Concatenate[Wal, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call *read* with the log on a thread, and return its result.

        Raises:
            UnavailableError: The broker is still recovering the log, or cannot read it now.
        """
        wal, engine = self._find_wal(), self._find_engine()
        if wal is None or engine is None:
            raise UnavailableError("recovering the log")
        try:
            # On the event loop, a read from a slow disk would stall every connection.
            return await asyncio.to_thread(read, wal, *args, **kwargs)
        except LogError as error:
            if isinstance(error, DamagedLogError):
                report_damage(engine, error)
            raise UnavailableError(str(error)) from None

    async def _verify(self) -> DamagedLogError | None:
        """Check one segment after the other; return the first damage."""
        wal = self._find_wal()
        found: DamagedLogError | None = None
        sealed = [] if wal is None else wal.segments()[:-1]
        present = {segment.first_id for segment in sealed}
        self._verified = {key: value for key, value in self._verified.items() if key in present}
        for segment in sealed:
            damage = await self.read(damage_of, segment)
            self._verified[segment.first_id] = damage is None
            found = found or damage
        return found

    def _row(self, segment: SegmentInfo) -> SegmentRow:
        return SegmentRow(
            name=segment.path.rpartition("/")[2],
            first_id=segment.first_id,
            last_id=segment.last_id,
            bytes=segment.size,
            sealed=segment.sealed,
            verified=self._verified.get(segment.first_id) if segment.sealed else None,
        )

    @keyed("GET /api/log")
    async def get_log(self, _request: Request, _principal: Principal) -> LogFacts:
        """Show the log: segments, sizes, settings."""
        return await self.facts()

    @keyed("POST /api/log/verify")
    async def post_verify(self, _request: Request, principal: Principal) -> LogFacts:
        """Check every sealed segment; for administrators."""
        allow(principal, ADMIN, "")
        return await self.verify()


def damage_of(wal: Wal, segment: SegmentInfo) -> DamagedLogError | None:
    """Read a sealed segment and return its damage, or None; on any thread.

    Raises:
        LogFullError, LogPoisonedError: Its index cannot be rebuilt.
    """
    try:
        wal.verify(segment)
    except DamagedLogError as error:
        return error
    return None


def quarantined(files: Files) -> list[QuarantineRow]:
    """Return the files in quarantine; on any thread."""
    rows: list[QuarantineRow] = []
    if files.exists(QUARANTINE_DIR):
        for name in sorted(files.list_dir(QUARANTINE_DIR))[-QUARANTINE_SHOWN_MAX:]:
            try:
                file = files.open(f"{QUARANTINE_DIR}/{name}", write=False, create=False)
            except FileNotFoundError:
                continue  # an operator removed it since it was listed
            try:
                rows.append(QuarantineRow(name, file.size()))
            finally:
                file.close()
    return rows


def report_damage(engine: Engine, error: DamagedLogError) -> None:
    """End the broker because of damage, after the current request is answered."""
    asyncio.get_running_loop().call_soon(engine.log_failed, error)
