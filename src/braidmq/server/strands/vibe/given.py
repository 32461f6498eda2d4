"""Given: the deliveries that a Vibe peer was handed and may still acknowledge, by message id.

A peer may end what it was given until another consumer holds it: also after its timer has put
it back, and after an Unsubscribe.
"""

from typing import Final, final

from braidmq.broker.delivery.channels import LEFT, SETTLED, Entry, Peer

SWEEP_MIN: Final = 2048
"""Deliveries that are remembered before those that are over are swept out."""


@final
class Given:
    """What one peer was given; ids are the publishers' and need not be different."""

    def __init__(self, peer: Peer) -> None:
        self._peer: Peer = peer
        self._by_id: dict[str, list[Entry]] = {}
        self._count: int = 0
        self._sweep_at: int = SWEEP_MIN

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Forget every delivery: the peer is gone."""
        self._by_id = {}
        self._count = 0
        self._sweep_at = SWEEP_MIN

    def note(self, message_id: str, entry: Entry) -> None:
        """Remember a delivery."""
        entries = self._by_id.get(message_id)
        if entries is None:
            self._by_id[message_id] = [entry]
        elif entry in entries:
            return
        else:
            entries.append(entry)
        self._count += 1
        if self._count >= self._sweep_at:
            self._sweep()

    def take(self, message_id: str, queue: str) -> Entry | None:
        """Take out the oldest delivery of that id, on *queue* if one is named."""
        entries = self._by_id.get(message_id)
        if entries is None:
            return None
        for entry in entries:
            if queue and entry.channel.topic.name != queue:
                continue
            if self._may_end(entry):
                entries.remove(entry)
                self._count -= 1
                if not entries:
                    del self._by_id[message_id]
                return entry
        return None

    def _may_end(self, entry: Entry) -> bool:
        if entry.state == LEFT:
            return not entry.channel.journal().ended
        if entry.state == SETTLED or entry.channel.ended:
            return False
        return entry.consumer is None or entry.consumer.peer is self._peer

    def _sweep(self) -> None:
        kept: dict[str, list[Entry]] = {}
        count = 0
        for message_id, entries in self._by_id.items():
            live = [entry for entry in entries if self._may_end(entry)]
            if live:
                kept[message_id] = live
                count += len(live)
        self._by_id = kept
        self._count = count
        self._sweep_at = max(SWEEP_MIN, 2 * count)
