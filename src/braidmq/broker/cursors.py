"""Cursors: how far a reader outside the broker has read the log, under a name it chose.

A cursor is durable and belongs to the principal that made it. Its position is the first offset
that its reader still needs, and only moves forward; retention waits for it. The initial offset
is kept too: Spark asks for it more than once, and must get the same answer each time.
"""

from typing import Final, final

from braidmq.broker import records
from braidmq.broker.outgoing import Outgoing
from braidmq.broker.topics import Pending

CURSORS_MAX: Final = 1_000
"""Each can keep retention from deleting anything, and is a series of the metrics."""

NAME_BYTES_MAX: Final = 255
"""A cursor's name, in UTF-8."""

CREATED: Final = 1
MOVED: Final = 2
REMOVED: Final = 3


@final
class Cursor:
    """One reader's position."""

    def __init__(self, name: str, principal: str, initial: int, position: int) -> None:
        self.name: str = name
        self.principal: str = principal
        self.initial: int = initial
        self.position: int = position
        self.record_id: int = 0  # of the newest record about it; 0 after a start


@final
class Placed(Pending):
    """A cursor that was made, moved or removed."""

    def __init__(self, cursor: Cursor, change: int) -> None:
        self.cursor: Cursor = cursor
        self.change: int = change


class Cursors:
    """Every cursor by its name."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing: Outgoing = outgoing
        self._by_name: dict[str, Cursor] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> Cursor | None:
        """Return the cursor of that name, if there is one."""
        return self._by_name.get(name)

    def all(self) -> list[Cursor]:
        """Return every cursor, oldest first."""
        return list(self._by_name.values())

    def count_of(self, principal: str) -> int:
        """Return how many cursors belong to *principal*."""
        return sum(1 for cursor in self._by_name.values() if cursor.principal == principal)

    def create(self, name: str, principal: str, start: int) -> Cursor:
        """Make a cursor at *start*; it is durable once its record is committed."""
        assert name not in self._by_name
        cursor = Cursor(name, principal, start, start)
        self._by_name[name] = cursor
        self._record(cursor, CREATED)
        return cursor

    def move(self, cursor: Cursor, offset: int) -> None:
        """Move a cursor forward, never back."""
        if offset > cursor.position:
            cursor.position = offset
            self._record(cursor, MOVED)

    def remove(self, cursor: Cursor) -> None:
        """Remove a cursor; retention no longer waits for it."""
        del self._by_name[cursor.name]
        self._record(cursor, REMOVED)

    def needed_id(self, otherwise: int) -> int:
        """Return the lowest id that a cursor's reader still needs; *otherwise* if none does."""
        needed = otherwise
        for cursor in self._by_name.values():
            needed = min(needed, cursor.position)
        return needed

    def take_back(self, taken: list[Pending]) -> None:
        """Undo the cursors that the log refused to make; queue again what else it refused.

        Moving or removing a cursor lets retention free space, so it may use the log's reserve.
        """
        for item in taken:
            if not isinstance(item, Placed):
                continue
            cursor = item.cursor
            # A cursor of the same name may have been made since it was removed.
            is_there = self._by_name.get(cursor.name) is cursor
            if item.change == CREATED and is_there:
                del self._by_name[cursor.name]
            is_newest = is_there and item.id == cursor.record_id
            # A move that a later one has overtaken needs no record.
            if item.change == REMOVED or (item.change == MOVED and is_newest):
                self._record(cursor, item.change)

    def restore(self, rows: list[tuple[str, str, int, int]]) -> None:
        """Restore what :meth:`rows` returned."""
        for name, principal, initial, position in rows:
            self._by_name[name] = Cursor(name, principal, initial, position)

    def rows(self) -> list[tuple[str, str, int, int]]:
        """Return what a snapshot keeps."""
        return [(c.name, c.principal, c.initial, c.position) for c in self._by_name.values()]

    def replay(self, record: bytes) -> None:
        """Apply a CURSOR record again."""
        name, principal, initial, position, removed = records.read_cursor(record)
        self._by_name.pop(name, None)  # each record has all of it; nothing is merged
        if not removed:
            self._by_name[name] = Cursor(name, principal, initial, position)

    def _record(self, cursor: Cursor, change: int) -> None:
        record = records.encode_cursor(
            cursor.name,
            cursor.principal,
            initial=cursor.initial,
            position=cursor.position,
            removed=change == REMOVED,
        )
        cursor.record_id = self._outgoing.add(Placed(cursor, change), record)
