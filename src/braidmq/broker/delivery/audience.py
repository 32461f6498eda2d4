"""An audience: the Blip subscriptions of one topic, those that publishes go to and the others.

    awake     each publish goes to it: to its consumers, or into its window
    aside     no publish goes to it. Durable messages wait in the log behind its cursor, and
              memory-only ones in a ring that it shares with the others that stand aside

A subscription stands aside when its window is full and no consumer can take anything: then a
publish costs it nothing, and holds nothing for it, however many of them there are. It is awake
again when it has read the log up to its end, or when a consumer gives it credit.

There are two rings, because a durable message has QoS 0 for a subscription of QoS 0: one for
the subscriptions of either QoS. Which subscription stands aside is decided in `subscriptions`.
"""

from collections import deque
from typing import TYPE_CHECKING, final

from braidmq.broker.delivery.windows import ENTRY_BYTES, Windows
from braidmq.broker.policy import Rules
from braidmq.broker.topics import Message

if TYPE_CHECKING:
    from braidmq.broker.delivery.subscriptions import Subscription


@final
class _Waiting:
    """A memory-only message, and how many subscriptions have yet to take it."""

    def __init__(self, message: Message, readers: int) -> None:
        self.message: Message = message
        self.readers: int = readers


@final
class Ring:
    """Memory-only messages that wait for subscriptions that stand aside, each held once.

    They are ordered by their arrival, and each subscription takes all from some arrival on. So
    what the ring has once lost stays lost for all of them: one that joins later and still has
    it cannot bring it back, because others would take it too and be counted twice.
    """

    def __init__(self, windows: Windows, rules: Rules) -> None:
        self.held_bytes: int = 0  # as `Windows` counts them
        self._messages: deque[_Waiting] = deque()
        self._lost_to: int = 0  # the newest arrival that some reader of the ring has lost
        self._windows: Windows = windows
        self._rules: Rules = rules

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Message, readers: int) -> int:
        """Hold a message; return how many subscriptions have lost one, older or this one."""
        size = len(message.body)
        window_bytes = self._rules.window_bytes + len(self._messages) * ENTRY_BYTES
        lost = 0
        while self._messages and (
            len(self._messages) >= self._rules.window
            or self.held_bytes + size > window_bytes
            or self._windows.lacks_memory(size)
        ):
            lost += self._lose_oldest()
            window_bytes -= ENTRY_BYTES
        if self._windows.held_bytes > 0 and self._windows.lacks_memory(size):
            self._lost_to = message.arrival
            return lost + readers
        self._messages.append(_Waiting(message, readers))
        self._count(size + ENTRY_BYTES)
        return lost

    def join(self, waiting: list[Message]) -> int:
        """Hold what waits for one subscription more; return how many of them it loses."""
        known = {held.message.arrival for held in self._messages}
        first = self._messages[0].message.arrival if known else waiting[-1].arrival + 1
        for place in range(self._place_of(waiting[0].arrival), len(known)):
            self._messages[place].readers += 1
        lost = 0
        for message in reversed(waiting):
            if self._lost_to < message.arrival < first:
                self._messages.appendleft(_Waiting(message, 1))
                self._count(len(message.body) + ENTRY_BYTES)
            elif message.arrival not in known:
                lost += 1
        return lost

    def count_from(self, arrival: int) -> int:
        """Return how many messages are held from *arrival* on."""
        return len(self._messages) - self._place_of(arrival)

    def expires(self) -> bool:
        """Say whether the oldest message has a time to live."""
        return bool(self._messages) and self._messages[0].message.expires_us > 0

    def take_from(self, arrival: int) -> list[Message]:
        """Return what one subscription has yet to take, from *arrival* on."""
        taken: list[Message] = []
        for place in range(self._place_of(arrival), len(self._messages)):
            waiting = self._messages[place]
            waiting.readers -= 1
            taken.append(waiting.message)
        # What every subscription has taken is at the front: each takes all to the end.
        while self._messages and self._messages[0].readers == 0:
            self._drop_oldest()
        return taken

    def drop_expired(self, now_us: int) -> int:
        """Drop what has expired at the front; return for how many subscriptions."""
        expired = 0
        while self._messages and self._messages[0].message.is_expired(now_us):
            expired += self._lose_oldest()
        return expired

    def _place_of(self, arrival: int) -> int:
        """Return the place of the first message that arrived then or later."""
        low, high = 0, len(self._messages)
        while low < high:
            middle = (low + high) // 2
            if self._messages[middle].message.arrival < arrival:
                low = middle + 1
            else:
                high = middle
        return low

    def _lose_oldest(self) -> int:
        oldest = self._messages[0]
        self._lost_to = max(self._lost_to, oldest.message.arrival)
        self._drop_oldest()
        return oldest.readers

    def _drop_oldest(self) -> None:
        oldest = self._messages.popleft()
        self._count(-len(oldest.message.body) - ENTRY_BYTES)

    def _count(self, size: int) -> None:
        self.held_bytes += size
        self._windows.held_bytes += size


@final
class Audience:
    """The subscriptions of one topic."""

    def __init__(self, windows: Windows) -> None:
        self.subscriptions: dict[int, Subscription] = {}  # all of them, by id
        self.awake: list[Subscription] = []
        self.aside_qos0: int = 0  # how many stand aside, of either QoS
        self.aside_qos1: int = 0
        self.ring_qos0: Ring | None = None  # made when the first message comes for it
        self.ring_qos1: Ring | None = None
        self._windows: Windows = windows

    def add(self, subscription: "Subscription") -> None:
        """List a new subscription, awake."""
        self.subscriptions[subscription.id] = subscription
        self.awake.append(subscription)

    def remove(self, subscription: "Subscription") -> None:
        """Take out a subscription that has ended."""
        if subscription.position.aside:
            self._leave_ring(subscription)
        else:
            self.awake.remove(subscription)
        del self.subscriptions[subscription.id]

    def stand_aside(self, subscription: "Subscription", arrival: int) -> int:
        """Let publishes pass a subscription by; the caller takes it out of `awake`.

        *arrival* is the number of the newest message. Return how many messages it loses.
        """
        position = subscription.position
        volatile = subscription.volatile
        position.aside = True
        position.heard = arrival + 1
        if subscription.qos == 0:
            self.aside_qos0 += 1
        else:
            self.aside_qos1 += 1
        if not volatile:
            return 0
        # From here on the ring holds them, for all that have them in common.
        waiting = list(volatile)
        volatile.clear()
        for message in waiting:
            self._windows.release(subscription, message)
        position.heard = waiting[0].arrival
        return self._made_ring(subscription.qos).join(waiting)

    def wake(self, subscription: "Subscription") -> list[Message]:
        """Let publishes go to a subscription again; return what its ring holds for it."""
        found = self._leave_ring(subscription)
        self.awake.append(subscription)
        return found

    def hear(self, message: Message) -> int:
        """Keep a message for those aside; return how many of them have lost one to it."""
        lost = 0
        if self.aside_qos0:
            lost = self._made_ring(0).add(message, self.aside_qos0)
        if self.aside_qos1 and message.qos == 0:
            lost += self._made_ring(1).add(message, self.aside_qos1)
        return lost

    def heard_count(self, subscription: "Subscription") -> int:
        """Return how many messages wait in its ring for a subscription."""
        ring = self._ring_of(subscription)
        return 0 if ring is None else ring.count_from(subscription.position.heard)

    def expiring_count(self, subscription: "Subscription") -> int:
        """Return how many of those may expire, judged by the oldest."""
        ring = self._ring_of(subscription)
        return 0 if ring is None or not ring.expires() else self.heard_count(subscription)

    def drop_expired(self, subscription: "Subscription", now_us: int) -> int:
        """Drop what has expired at the front of its ring, for all that share that."""
        ring = self._ring_of(subscription)
        return 0 if ring is None else ring.drop_expired(now_us)

    def rings(self) -> list[Ring]:
        """Return the rings that there are."""
        return [ring for ring in (self.ring_qos0, self.ring_qos1) if ring is not None]

    def _leave_ring(self, subscription: "Subscription") -> list[Message]:
        """Return what the ring holds for a subscription, which no longer shares it."""
        ring = self._ring_of(subscription)
        found = [] if ring is None else ring.take_from(subscription.position.heard)
        subscription.position.aside = False
        # Without its last reader a ring is empty.
        if subscription.qos == 0:
            self.aside_qos0 -= 1
            if self.aside_qos0 == 0:
                self.ring_qos0 = None
        else:
            self.aside_qos1 -= 1
            if self.aside_qos1 == 0:
                self.ring_qos1 = None
        return found

    def _ring_of(self, subscription: "Subscription") -> Ring | None:
        if not subscription.position.aside:
            return None
        return self.ring_qos0 if subscription.qos == 0 else self.ring_qos1

    def _made_ring(self, qos: int) -> Ring:
        ring = self.ring_qos0 if qos == 0 else self.ring_qos1
        if ring is None:
            ring = Ring(self._windows, self._any_rules())
            if qos == 0:
                self.ring_qos0 = ring
            else:
                self.ring_qos1 = ring
        return ring

    def _any_rules(self) -> Rules:
        # The same for all subscriptions of one topic: its name decides.
        for subscription in self.subscriptions.values():
            return subscription.rules
        raise AssertionError
