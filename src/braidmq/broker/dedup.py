"""Dedup: message ids chosen by publishers, remembered so that a repeat is not stored again.

An id is remembered for its topic, for the length of the window. The broker has room for
`IDS_MAX` of them. While there is room, each topic may use all of it. When there is none, the
owner of topics that holds the most loses one (about: sizes are compared by powers of two), of
its topics the one that holds the most, and there the oldest. So a principal that sends a
million ids loses its own early, and not those of others, however many topics it spreads them
over; and within its topics those of the busiest. That share is what a quota would be: nothing
is refused for it, because an id that is forgotten early only makes a late repeat a message.
"""

import hashlib
from collections import deque
from heapq import heappop, heappush, heapreplace
from typing import Final, final

from braidmq.broker.dead_letters import QUEUE_HEADER
from braidmq.broker.topics import ORIGIN_SPARK, Message, decode_headers

HEADER: Final = "dedupId"
"""The header that carries a publisher's own id of a message."""

NEW: Final = -1
"""The answer for an unknown id; 0 is the id of every memory-only message."""

IDS_MAX: Final = 1_000_000
"""Ids that are remembered at most; above it some are forgotten early."""

EXPIRED_MAX: Final = 2_000
"""Ids that one call of `expire` forgets at most, so that none holds up the event loop. Each
publish with an id calls it, and adds one."""

_ID_CHARACTERS_MAX: Final = 64
"""A longer id is remembered by its hash."""


class _Sized:
    """A part that ids are counted of: a topic, or all topics of one owner."""

    def __init__(self) -> None:
        self.size: int = 0
        self.place: int = 0  # in its row


class _BySize:
    """Parts in rows of about the same size: each row's are up to twice as large as the last's.

    So one of the largest is found, and a part moved, without looking at the others.
    """

    def __init__(self) -> None:
        self._rows: list[list[_Sized]] = []

    def grow(self, part: _Sized, count: int) -> None:
        """Change the size of a part."""
        before = part.size.bit_length()
        part.size += count
        after = part.size.bit_length()
        if before == after:
            return
        if before:
            row = self._rows[before]
            last = row.pop()
            if last is not part:
                row[part.place] = last
                last.place = part.place
        if after:
            while len(self._rows) <= after:
                self._rows.append([])
            part.place = len(self._rows[after])
            self._rows[after].append(part)

    def largest(self) -> _Sized:
        """Return one of the largest; there must be one that is not empty."""
        row = self._rows[-1]
        while not row:
            self._rows.pop()
            row = self._rows[-1]
        return row[-1]


@final
class _Owner(_Sized):
    """The topics of one owner."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: _BySize = _BySize()


@final
class _TopicIds(_Sized):
    """The ids of one topic."""

    def __init__(self, name: str, number: int, owner: _Owner) -> None:
        super().__init__()
        self.name: str = name
        self.number: int = number  # unlike any other's
        self.owner: _Owner = owner
        self.ids: dict[str, tuple[int, int]] = {}  # message id, when
        # Oldest first. It also keeps the ids of refused publishes, which `ids` does not: its
        # length is the size.
        self.order: deque[tuple[int, str]] = deque()


class DedupWindow:
    """The (topic, dedup id) pairs of the window, each with the id its message got."""

    def __init__(self, window_us: int, room: int = IDS_MAX) -> None:
        self._window_us: int = window_us
        self.room: int = room
        self._topics: dict[str, _TopicIds] = {}
        self._owners: dict[bytes, _Owner] = {}
        self._by_size: _BySize = _BySize()
        self._size: int = 0
        # A heap of all topics. Each is there with a time that is its oldest id's, or earlier.
        self._due: list[tuple[int, int, _TopicIds]] = []
        self._numbers: int = 0

    def __len__(self) -> int:
        return sum(len(topic.ids) for topic in self._topics.values())

    def find(self, topic: str, dedup_id: str, now_us: int) -> int:
        """Return the id under which the message was accepted, or NEW."""
        self.expire(now_us)
        found = self._topics.get(topic)
        known = None if found is None else found.ids.get(_short(dedup_id))
        if known is None or known[1] + self._window_us <= now_us:
            return NEW
        return known[0]

    def remember(
        self, topic: str, dedup_id: str, message_id: int, now_us: int, owner: bytes = b""
    ) -> None:
        """Note that a message was accepted under *message_id*; *owner* is the topic's."""
        self.restore((now_us, topic, _short(dedup_id), message_id), owner)

    def restore(self, row: tuple[int, str, str, int], owner: bytes = b"") -> None:
        """Restore one of :meth:`rows`; its id is short already."""
        now_us, name, dedup_id, message_id = row
        if self._size >= self.room:
            self._make_room()
        holder = self._owners.get(owner)
        if holder is None:
            holder = _Owner()
            self._owners[owner] = holder
        topic = self._topics.get(name)
        if topic is None:
            self._numbers += 1
            topic = _TopicIds(name, self._numbers, holder)
            self._topics[name] = topic
            heappush(self._due, (now_us, topic.number, topic))
        elif topic.owner is not holder:
            # The topic was deleted or forgotten, and made again by another principal.
            count = topic.size
            self._grow(topic, -count)
            topic.owner = holder
            self._grow(topic, count)
        topic.order.append((now_us, dedup_id))
        topic.ids[dedup_id] = (message_id, now_us)
        self._grow(topic, 1)

    def forget(self, topic: str, dedup_id: str) -> None:
        """Forget a refused message, so that its repeat is accepted."""
        found = self._topics.get(topic)
        if found is not None:
            found.ids.pop(_short(dedup_id), None)

    def forget_topic(self, topic: str) -> None:
        """Forget the ids of a topic that is deleted."""
        found = self._topics.get(topic)
        if found is not None:
            found.ids.clear()

    def forget_message(self, message: Message) -> None:
        """Forget a refused message, if its publisher gave it an id.

        The headers of a sink's row are data: no id of it was remembered.
        """
        if message.headers and message.origin != ORIGIN_SPARK:
            kept = decode_headers(message.headers)
            dedup_id = kept.get(HEADER)
            if dedup_id is not None:
                # A message that a full queue redirected is remembered under that queue.
                self.forget(kept.get(QUEUE_HEADER, message.topic.name), dedup_id)

    def expire(self, now_us: int) -> None:
        """Forget what is older than the window, a bounded part of it in one call."""
        due = self._due
        before_us = now_us - self._window_us
        left = EXPIRED_MAX
        while due and due[0][0] <= before_us and left > 0:
            topic = due[0][2]
            order = topic.order
            left -= 1
            while order and order[0][0] <= before_us and left > 0:
                self._forget_oldest(topic)
                left -= 1
            if order:
                heapreplace(due, (order[0][0], topic.number, topic))
            else:
                heappop(due)
                del self._topics[topic.name]

    def move(self, by_us: int) -> None:
        """Move everything that is remembered in time, because the clock was wrong."""
        for topic in self._topics.values():
            topic.order = deque([(at_us + by_us, given) for at_us, given in topic.order])
            topic.ids = {
                given: (message_id, at_us + by_us)
                for given, (message_id, at_us) in topic.ids.items()
            }
        self._due = [(at_us + by_us, number, topic) for at_us, number, topic in self._due]

    def rows(self) -> list[tuple[int, str, str, int]]:
        """Return what :meth:`restore` needs to build this window again, row by row."""
        rows: list[tuple[int, str, str, int]] = []
        for name in self.names():
            rows += self.rows_of(name, self.order_of(name))
        return rows

    def names(self) -> list[str]:
        """Return the topics that have ids."""
        return list(self._topics)

    def order_of(self, name: str) -> list[tuple[int, str]]:
        """Return the ids of a topic in the order in which they came, for :meth:`rows_of`."""
        topic = self._topics.get(name)
        return [] if topic is None else list(topic.order)

    def rows_of(
        self, name: str, order: list[tuple[int, str]]
    ) -> list[tuple[int, str, str, int]]:
        """Return the rows of a part of a topic's order."""
        rows: list[tuple[int, str, str, int]] = []
        topic = self._topics.get(name)
        if topic is not None:
            for at_us, dedup_id in order:
                known = topic.ids.get(dedup_id)
                if known is not None and known[1] == at_us:
                    rows.append((at_us, name, dedup_id, known[0]))
        return rows

    def _make_room(self) -> None:
        owner = self._by_size.largest()
        assert isinstance(owner, _Owner)
        topic = owner.topics.largest()
        assert isinstance(topic, _TopicIds)
        self._forget_oldest(topic)

    def _forget_oldest(self, topic: _TopicIds) -> None:
        at_us, dedup_id = topic.order.popleft()
        known = topic.ids.get(dedup_id)
        # If it was refused once and accepted later, only the later entry counts.
        if known is not None and known[1] == at_us:
            del topic.ids[dedup_id]
        self._grow(topic, -1)

    def _grow(self, topic: _TopicIds, count: int) -> None:
        owner = topic.owner
        owner.topics.grow(topic, count)
        self._by_size.grow(owner, count)
        self._size += count


def _short(dedup_id: str) -> str:
    if len(dedup_id) <= _ID_CHARACTERS_MAX:
        return dedup_id
    # One character longer than any id that is kept as it is, so the two never collide.
    return "#" + hashlib.sha256(dedup_id.encode()).hexdigest()
