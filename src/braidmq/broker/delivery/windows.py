"""Windows: how much channels may hold in memory, each and together, and how much they do."""

from typing import Final, final

from braidmq.broker.delivery.channels import Channel
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message

ENTRY_BYTES: Final = 160
"""What a message costs in a channel besides its body: its entry and its places in lists."""


@final
class Windows:
    """How much channels may hold in memory, each and together, and how much they do hold."""

    def __init__(self, settings: Settings, stats: Stats) -> None:
        self.held_bytes: int = 0
        self._settings: Settings = settings
        self._stats: Stats = stats

    def hold(self, channel: Channel, message: Message) -> None:
        """Count a message that a channel holds from now on."""
        size = len(message.body)
        channel.held_bytes += size
        self.held_bytes += size + ENTRY_BYTES

    def release(self, channel: Channel, message: Message) -> None:
        """Count a message that a channel no longer holds."""
        size = len(message.body)
        channel.held_bytes -= size
        self.held_bytes -= size + ENTRY_BYTES

    def release_all(self, channel: Channel) -> None:
        """Count everything that a channel holds as gone, before the channel drops it."""
        count = len(channel.ready) + len(channel.volatile) + len(channel.in_flight.open)
        self.held_bytes -= channel.held_bytes + count * ENTRY_BYTES
        channel.held_bytes = 0

    def has_room(self, channel: Channel, size: int) -> bool:
        """Say whether a durable message may be taken in now."""
        waiting = len(channel.ready)
        if waiting >= channel.position.window:
            return False
        # Over the budget it stays in the log, and is read back when a consumer asks for it.
        # The first message is taken in whatever its size, so that it can be delivered at all.
        if self.held_bytes > 0 and self.lacks_memory(size):
            return False
        # One message always fits the window, however large it is.
        if waiting == 0 and not channel.in_flight.open:
            return True
        return channel.held_bytes + size <= channel.rules.window_bytes

    def lacks_memory(self, size: int) -> bool:
        """Say whether one message more, of *size* bytes, is over the budget."""
        return self.held_bytes + size + ENTRY_BYTES > self._settings.memory_bytes

    def offer_volatile(self, channel: Channel, message: Message) -> None:
        """Let a memory-only message wait; older ones are dropped to make room for it."""
        volatile = channel.volatile
        rules = channel.rules
        size = len(message.body)
        if self._others_spend_the_budget(channel, size):
            # Drop this one: dropping all that waits here would still not make room for it.
            self._stats.dropped.overflow += 1
            return
        while volatile and (
            len(volatile) >= rules.window
            or channel.held_bytes + size > rules.window_bytes
            or self.lacks_memory(size)
        ):
            self.release(channel, volatile.popleft())
            self._stats.dropped.overflow += 1
        channel.add_volatile(message)
        self.hold(channel, message)

    def _others_spend_the_budget(self, channel: Channel, size: int) -> bool:
        """Say whether a message would not fit even if all older ones here were dropped."""
        if not self.lacks_memory(size):
            return False
        here = sum(len(older.body) + ENTRY_BYTES for older in channel.volatile)
        others = self.held_bytes - here
        return others > 0 and others + size + ENTRY_BYTES > self._settings.memory_bytes
