"""Windows: what subscriptions may hold in memory, each and all together."""

from typing import final

from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message


@final
class Windows:
    """The memory budget, and who spends how much of it."""

    def __init__(self, settings: Settings, stats: Stats) -> None:
        self.held_bytes: int = 0
        self._settings: Settings = settings
        self._stats: Stats = stats

    def hold(self, subscription: Subscription, size: int) -> None:
        """Count *size* bytes more, or less, in a subscription's window."""
        subscription.held_bytes += size
        self.held_bytes += size

    def has_room(self, subscription: Subscription, size: int) -> bool:
        """Say whether a durable message may be taken in now."""
        waiting = len(subscription.ready)
        if waiting >= subscription.rules.window:
            return False
        # Over the budget it stays in the log, and is read back when somebody asks for it.
        if self.held_bytes > 0 and self.held_bytes + size > self._settings.memory_bytes:
            return False
        # One message always fits the window, however large it is.
        if waiting == 0 and not subscription.in_flight.open:
            return True
        return subscription.held_bytes + size <= subscription.rules.window_bytes

    def offer_volatile(self, subscription: Subscription, message: Message) -> None:
        """Let a memory-only message wait; its elders make room for it."""
        volatile = subscription.volatile
        rules = subscription.rules
        size = len(message.body)
        if self._others_spend_the_budget(subscription, size):
            self._stats.dropped_overflow += 1
            return
        while volatile and (
            len(volatile) >= rules.window
            or subscription.held_bytes + size > rules.window_bytes
            or self.held_bytes + size > self._settings.memory_bytes
        ):
            dropped = volatile.popleft()
            self.hold(subscription, -len(dropped.body))
            self._stats.dropped_overflow += 1
        volatile.append(message)
        self.hold(subscription, size)

    def _others_spend_the_budget(self, subscription: Subscription, size: int) -> bool:
        """Say whether a message would not fit even if all its elders made room for it."""
        if self.held_bytes + size <= self._settings.memory_bytes:
            return False
        others = self.held_bytes - sum(len(elder.body) for elder in subscription.volatile)
        return others > 0 and others + size > self._settings.memory_bytes
