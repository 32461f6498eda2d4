"""Windows: what channels may hold in memory, each and all together."""

from typing import final

from braidmq.broker.delivery.channels import Channel
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message


@final
class Windows:
    """The memory budget, and how much of it is spent."""

    def __init__(self, settings: Settings, stats: Stats) -> None:
        self.held_bytes: int = 0
        self._settings: Settings = settings
        self._stats: Stats = stats

    def hold(self, channel: Channel, size: int) -> None:
        """Count *size* bytes more, or less, in a channel's window."""
        channel.held_bytes += size
        self.held_bytes += size

    def has_room(self, channel: Channel, size: int) -> bool:
        """Say whether a durable message may be taken in now."""
        waiting = len(channel.ready)
        if waiting >= channel.rules.window:
            return False
        # Over the budget it stays in the log, and is read back when a consumer asks for it.
        if self.held_bytes > 0 and self.held_bytes + size > self._settings.memory_bytes:
            return False
        # One message always fits the window, however large it is.
        if waiting == 0 and not channel.in_flight.open:
            return True
        return channel.held_bytes + size <= channel.rules.window_bytes

    def offer_volatile(self, channel: Channel, message: Message) -> None:
        """Let a memory-only message wait; older ones are dropped to make room for it."""
        volatile = channel.volatile
        rules = channel.rules
        size = len(message.body)
        if self._others_spend_the_budget(channel, size):
            self._stats.dropped.overflow += 1
            return
        while volatile and (
            len(volatile) >= rules.window
            or channel.held_bytes + size > rules.window_bytes
            or self.held_bytes + size > self._settings.memory_bytes
        ):
            dropped = volatile.popleft()
            self.hold(channel, -len(dropped.body))
            self._stats.dropped.overflow += 1
        volatile.append(message)
        self.hold(channel, size)

    def _others_spend_the_budget(self, channel: Channel, size: int) -> bool:
        """Say whether a message would not fit even if all older ones here were dropped."""
        if self.held_bytes + size <= self._settings.memory_bytes:
            return False
        others = self.held_bytes - sum(len(older.body) for older in channel.volatile)
        return others > 0 and others + size > self._settings.memory_bytes
