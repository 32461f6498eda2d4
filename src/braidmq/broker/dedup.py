"""Dedup: message ids chosen by publishers, remembered so that a repeat is not stored again."""

import hashlib
from collections import deque
from typing import Final

from braidmq.broker.dead_letters import QUEUE_HEADER
from braidmq.broker.topics import ORIGIN_SPARK, Message, decode_headers

HEADER: Final = "dedupId"
"""The header that carries a publisher's own id of a message."""

NEW: Final = -1
"""The answer for an unknown id; 0 is the id of every memory-only message."""

IDS_MAX: Final = 1_000_000
"""Ids that are remembered at most; above it the oldest are forgotten early."""

_ID_CHARACTERS_MAX: Final = 64
"""A longer id is remembered by its hash."""


class DedupWindow:
    """The (topic, dedup id) pairs of the window, each with the id its message got."""

    def __init__(self, window_us: int) -> None:
        self._window_us: int = window_us
        self._ids: dict[tuple[str, str], tuple[int, int]] = {}  # message id, when
        self._order: deque[tuple[int, str, str]] = deque()

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, topic: str, dedup_id: str, now_us: int) -> int:
        """Return the id under which the message was accepted, or NEW."""
        self.expire(now_us)
        known = self._ids.get((topic, _short(dedup_id)))
        return NEW if known is None else known[0]

    def remember(self, topic: str, dedup_id: str, message_id: int, now_us: int) -> None:
        """Note that a message was accepted under *message_id*."""
        self.restore((now_us, topic, _short(dedup_id), message_id))

    def restore(self, row: tuple[int, str, str, int]) -> None:
        """Restore one of :meth:`rows`; its id is short already."""
        now_us, topic, dedup_id, message_id = row
        # `_order` also keeps the ids of refused publishes, which `_ids` does not: bound the
        # longer one.
        if len(self._order) >= IDS_MAX:
            self._forget_oldest()
        self._order.append((now_us, topic, dedup_id))
        self._ids[(topic, dedup_id)] = (message_id, now_us)

    def forget(self, topic: str, dedup_id: str) -> None:
        """Forget a refused message, so that its repeat is accepted."""
        self._ids.pop((topic, _short(dedup_id)), None)

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
        """Forget what is older than the window."""
        order = self._order
        while order and order[0][0] + self._window_us <= now_us:
            self._forget_oldest()

    def rows(self) -> list[tuple[int, str, str, int]]:
        """Return what :meth:`restore` needs to build this window again, row by row."""
        rows: list[tuple[int, str, str, int]] = []
        for at_us, topic, dedup_id in self._order:
            known = self._ids.get((topic, dedup_id))
            if known is not None and known[1] == at_us:
                rows.append((at_us, topic, dedup_id, known[0]))
        return rows

    def _forget_oldest(self) -> None:
        at_us, topic, dedup_id = self._order.popleft()
        known = self._ids.get((topic, dedup_id))
        # If it was refused once and accepted later, only the later entry counts.
        if known is not None and known[1] == at_us:
            del self._ids[(topic, dedup_id)]


def _short(dedup_id: str) -> str:
    if len(dedup_id) <= _ID_CHARACTERS_MAX:
        return dedup_id
    # One character longer than any id that is kept as it is, so the two never collide.
    return "#" + hashlib.sha256(dedup_id.encode()).hexdigest()
