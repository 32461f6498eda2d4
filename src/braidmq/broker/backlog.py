"""The backlog: what of a subscription is in the log only, and is read back piece by piece."""

from braidmq.broker.settings import Settings
from braidmq.broker.subscriptions import Subscription


class ReadRequest:
    """A piece of backlog that a subscription has room for."""

    def __init__(self, subscription: Subscription, settings: Settings, held_bytes: int) -> None:
        self.subscription: Subscription = subscription
        self.topic: bytes = subscription.topic.raw
        self.after_id: int = subscription.cursor
        self.up_to: int = subscription.topic.last_id
        self.count_max: int = max(1, settings.window - len(subscription.ready))
        # Whatever the budget says, one message is read: somebody has asked for it.
        room_bytes = min(
            settings.window_bytes - subscription.held_bytes, settings.memory_bytes - held_bytes
        )
        self.bytes_max: int = max(1, room_bytes)
