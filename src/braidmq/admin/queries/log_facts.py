"""The log as an administrator over HTTP has it: looked at, and checked on request.

Reading of files is on a thread. A sealed segment does not change, so that what was found out
about one is remembered; one check runs at a time, and everybody who asks meanwhile gets its
result.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from braidmq.admin.log import LogFacts, QuarantineRow, SegmentRow
from braidmq.admin.queries.log_reading import read_log, report_damage
from braidmq.base.errors import DamagedLogError
from braidmq.server.config.config import WalConfig
from braidmq.server.engine.refusals import UnavailableError
from braidmq.server.engine.requests import FindEngine, running
from braidmq.wal.files import Files
from braidmq.wal.quarantine import QUARANTINE_DIR
from braidmq.wal.segment import SegmentInfo
from braidmq.wal.wal import Wal

SEGMENTS_SHOWN_MAX: Final = 10_000
QUARANTINE_SHOWN_MAX: Final = 1_000
"""Rows in one answer, the newest; the log goes on without them."""


class LogAdministration:
    """What `admin` asks about the log."""

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
            UnavailableError: There is none yet.
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

        Raises:
            UnavailableError: There is none yet, or it cannot be read now.
        """
        if self._verifying is None or self._verifying.done():
            loop = asyncio.get_running_loop()
            self._verifying = loop.create_task(self._verify(self._find_wal()))
        # Whoever asked may go away; the others still want to know.
        damage = await asyncio.shield(self._verifying)
        facts = await self.facts()
        if damage is not None:
            report_damage(running(self._find_engine()), damage)
        return facts

    async def _verify(self, wal: Wal | None) -> DamagedLogError | None:
        """Check one segment after the other; return the first damage of all."""
        found: DamagedLogError | None = None
        sealed = [] if wal is None else wal.segments()[:-1]
        there = {segment.first_id for segment in sealed}
        self._verified = {key: value for key, value in self._verified.items() if key in there}
        for segment in sealed:
            damage = await read_log(self._find_engine(), wal, damage_of, segment)
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


def damage_of(wal: Wal, segment: SegmentInfo) -> DamagedLogError | None:
    """Read a sealed segment and say what of it is not what was written; on any thread.

    Raises:
        LogFullError, LogPoisonedError: Its index cannot be rebuilt.
    """
    try:
        wal.verify(segment)
    except DamagedLogError as error:
        return error
    return None


def quarantined(files: Files) -> list[QuarantineRow]:
    """Return what is in quarantine; on any thread."""
    rows: list[QuarantineRow] = []
    if files.exists(QUARANTINE_DIR):
        for name in sorted(files.list_dir(QUARANTINE_DIR))[-QUARANTINE_SHOWN_MAX:]:
            try:
                file = files.open(f"{QUARANTINE_DIR}/{name}", write=False, create=False)
            except FileNotFoundError:
                continue  # somebody has taken it away meanwhile
            try:
                rows.append(QuarantineRow(name, file.size()))
            finally:
                file.close()
    return rows
