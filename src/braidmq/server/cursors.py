"""Cursors of readers outside the broker: open, move, remove and list them.

A change returns once the log has committed it. Everything here runs on the event loop;
`broker.cursors` holds the cursors.
"""

from collections.abc import Callable
from dataclasses import dataclass

from braidmq.base import refusals
from braidmq.base.errors import CursorError, NotAllowedError
from braidmq.broker.authorize import ADMIN, SUBSCRIBE, Principal, authorize
from braidmq.broker.cursors import CURSORS_MAX, NAME_BYTES_MAX, Cursor
from braidmq.broker.quotas import CURSORS, refusal
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.requests import FindEngine, UnavailableError, changing, running
from braidmq.wal.wal import Wal


@dataclass(frozen=True, slots=True)
class CursorState:
    """One cursor: its initial position, the offset it needs next, and its lag in ids."""

    name: str
    principal: str
    initial: int
    position: int
    lag: int


@dataclass(frozen=True, slots=True)
class OpenedCursor:
    """The initial and current position of a cursor, and whether it was just created."""

    name: str
    initial: int
    position: int
    created: bool


class Cursors:
    """The cursors, as readers change them and administrators list them."""

    def __init__(self, find_engine: FindEngine, find_wal: Callable[[], Wal | None]) -> None:
        self._find_engine = find_engine
        self._find_wal = find_wal

    async def open(self, principal: Principal, name: str, start: int | None) -> OpenedCursor:
        """Return the cursor of that name, created at *start* if there is none.

        None is the current end of the durable log. For a cursor that exists, *start* has no
        effect. The cursor is durable when this returns.

        Raises:
            CursorError: The name is not allowed, or there are too many cursors, in all or of
                this principal.
            NotAllowedError: It belongs to another principal, or *principal* may read nothing.
            UnavailableError: Not now.
        """
        engine = changing(self._find_engine())
        if not _is_name(name):
            shown = name[:NAME_BYTES_MAX].encode(errors="replace").decode()
            raise CursorError(shown, f"a name has 1 to {NAME_BYTES_MAX} bytes of UTF-8")
        cursor = engine.broker.cursors.find(name)
        created = cursor is None
        if cursor is None:
            if not _reads(principal):
                raise NotAllowedError("hold the log for cursor", name)
            cursor = self._create(engine, principal, name, start)
        else:
            _own(principal, cursor)
        # Also for one that exists: its record may still be on its way to the log.
        await engine.waiters.committed(cursor.record_id)
        return OpenedCursor(cursor.name, cursor.initial, cursor.position, created)

    async def move(self, principal: Principal, name: str, offset: int) -> None:
        """Note that everything before *offset* is done; a cursor never moves back.

        Raises:
            CursorError: There is no such cursor, or the log does not reach so far.
            NotAllowedError: It belongs to another principal.
            UnavailableError: Not now.
        """
        engine = changing(self._find_engine())
        cursor = _found(engine, principal, name)
        if offset > engine.broker.committed_id + 1:
            raise CursorError(name, f"offset {offset} is beyond the end of the log")
        engine.broker.cursors.move(cursor, offset)
        # It lasts: the move may use the log's reserve, as it lets retention free space.
        await engine.waiters.committed(cursor.record_id, lasts=True)

    async def remove(self, principal: Principal, name: str) -> None:
        """Remove a cursor; retention no longer waits for its reader.

        Raises:
            CursorError: There is no such cursor.
            NotAllowedError: It belongs to another principal.
            UnavailableError: Not now.
        """
        engine = changing(self._find_engine())
        cursor = _found(engine, principal, name)
        engine.broker.cursors.remove(cursor)
        await engine.waiters.committed(cursor.record_id, lasts=True)

    def all(self) -> list[CursorState]:
        """Return every cursor, sorted by name.

        Raises:
            UnavailableError: The broker is not up.
        """
        cursors = running(self._find_engine()).broker.cursors.all()
        end = self._end()
        return [
            CursorState(
                name=cursor.name,
                principal=cursor.principal,
                initial=cursor.initial,
                position=cursor.position,
                lag=max(0, end - cursor.position),
            )
            for cursor in sorted(cursors, key=lambda cursor: cursor.name)
        ]

    def _create(
        self, engine: Engine, principal: Principal, name: str, start: int | None
    ) -> Cursor:
        cursors = engine.broker.cursors
        if not name.isprintable():  # of earlier versions there may be some, which go on
            raise CursorError(name, "a name must not hold control characters")
        if len(cursors) >= CURSORS_MAX:
            what = "there are too many, remove an unused one"
            raise CursorError(name, refusals.by_bound(what, CURSORS_MAX, "in one broker"))
        limit = principal.quotas.limit(CURSORS)
        if cursors.count_of(principal.name) >= limit:
            engine.broker.topics.accounts.refused[CURSORS] += 1
            raise CursorError(name, refusal(CURSORS, limit, principal.name))
        end = self._end()
        if start is not None and not 0 <= start <= end:
            raise CursorError(name, f"offset {start} is beyond the log, which ends at {end}")
        if engine.broker.refusal:
            raise UnavailableError(engine.broker.refusal)
        return cursors.create(name, principal.name, end if start is None else start)

    def _end(self) -> int:
        # Readers outside see only what is synced, whatever the fsync policy calls committed.
        wal = self._find_wal()
        assert wal is not None  # it is there as long as the engine is
        return wal.synced_id + 1


def _is_name(name: str) -> bool:
    try:
        return 1 <= len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _found(engine: Engine, principal: Principal, name: str) -> Cursor:
    cursor = engine.broker.cursors.find(name)
    if cursor is None:
        raise CursorError(name, "there is none of that name")
    _own(principal, cursor)
    return cursor


def _own(principal: Principal, cursor: Cursor) -> None:
    if principal.name != cursor.principal and not authorize(principal, ADMIN, ""):
        raise NotAllowedError("use cursor", cursor.name)


def _reads(principal: Principal) -> bool:
    # A cursor keeps retention from deleting segments: it takes the right to read something.
    if principal.gone:
        return False
    granted = any(SUBSCRIBE in grant.operations for grant in principal.grants)
    return principal.admin or bool(principal.subscribe) or granted
