"""Blip clients that write a ledger: publishers and consumers whose behaviour a seed decides.

They produce and consume frames, whatever carries them: the simulation's in-memory wires, or a
socket. A client is one connection; when that breaks, a new client takes over.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Generic, TypeVar

from braidmq.testing.ledger import DEAD_LETTER_PREFIX, Ledger
from braidmq.wire.blip import frames, messages

KEY: Final = "dev-key"

PAYLOAD_BYTES_MAX: Final = 700
"""Larger than a sector, so that a power cut can tear a record."""

FENCE_CHANCE: Final = 0.7
LEAVING_CHANCE: Final = 0.05
# Correlation ids by what they are for; a NACK's id tells which. Delivery tags are lower.
_POLL: Final = 1 << 40
_PING: Final = 1 << 41
_SUBSCRIBE: Final = 1 << 42
_UNSUBSCRIBE: Final = 1 << 43
_NOT_FOUND: Final = 404

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """A subscription that outlives connections, and the behaviour of its consumers.

    `care` is the probability that a delivery is acknowledged. A subscription that
    `comes_and_goes` is removed now and then, and made again. Deliveries are `ordered` only if
    one connection at a time consumes it, and the broker knows that the last one is gone.
    """

    name: str
    topic: str
    care: float
    pulls: bool
    consumers: int = 1
    comes_and_goes: bool = False
    ordered: bool = True


PLANS: Final = (
    Plan("letters", "dlq.orders", care=1.0, pulls=True),
    Plan("more letters", "dlq.events", care=0.8, pulls=False),
    Plan("faithful", "orders", care=1.0, pulls=False),
    Plan("careless", "orders", care=0.7, pulls=True, ordered=False),
    Plan("pair", "events", care=0.9, pulls=False, consumers=2, ordered=False),
    Plan("guest", "events", care=0.9, pulls=True, comes_and_goes=True),
)
"""Dead letters first: they need a subscription before the first one is written."""


@dataclass(slots=True, eq=False)
class Scene:
    """State shared by the clients of a world: ledger, randomness, subscriptions."""

    rng: Random
    ledger: Ledger
    subscriptions: dict[Plan, int] = field(default_factory=dict)
    confirmations: int = 0
    refusals: int = 0

    def roles(self) -> list[Plan | None]:
        """Return who may act now, None for a publisher; dead letters need consumers first."""
        letters = [plan for plan in PLANS if plan.topic.startswith(DEAD_LETTER_PREFIX)]
        if all(plan in self.subscriptions for plan in letters):
            return [None, *PLANS]
        return list(letters)


class Unconfirmed(Generic[T]):
    """Acknowledgements that were sent, and the PINGs whose PONGs will confirm them."""

    def __init__(self) -> None:
        self._sent: list[T | None] = []  # None: not to be confirmed
        self._covered: dict[int | str, int] = {}  # how many of them, by PING

    def add(self, acknowledgement: T | None) -> None:
        """Add one that was sent."""
        self._sent.append(acknowledgement)

    def void(self, acknowledgement: T) -> None:
        """Do not confirm this one, if it was sent."""
        if acknowledgement in self._sent:
            self._sent[self._sent.index(acknowledgement)] = None

    def void_all(self) -> None:
        """Do not confirm any that was sent so far."""
        self._sent = [None] * len(self._sent)

    def fence(self, ping: int | str) -> None:
        """Note that a PING follows all sent so far."""
        self._covered[ping] = len(self._sent)

    def reach(self, ping: int | str) -> list[T]:
        """Return what the PONG of *ping* confirms."""
        count = self._covered.pop(ping)
        confirmed = [one for one in self._sent[:count] if one is not None]
        del self._sent[:count]
        self._covered = {key: covered - count for key, covered in self._covered.items()}
        return confirmed


class Client:
    """The client end of one connection."""

    def __init__(self, scene: Scene, name: str, send: Callable[[bytes], None]) -> None:
        self.scene = scene
        self.name = name
        self.send = send
        self.unanswered = 0  # requests without an answer yet
        self._number = 0
        self.greet()

    def next_number(self) -> int:
        """Return a number that this connection has not used."""
        self._number += 1
        return self._number

    def answered(self, number: int, payload: bytes, *, confirmed: bool) -> None:
        """Record the broker's answer to a publish; one with *number* 0 repeats another."""
        scene = self.scene
        self.unanswered -= 1
        if not confirmed:
            scene.refusals += 1
            if number:
                scene.ledger.refuse(self.name, number)
            return
        scene.confirmations += 1
        if number:
            scene.ledger.confirm(self.name, number)
        else:
            scene.ledger.repeated(payload)

    def greet(self) -> None:
        """Send the handshake."""
        raise NotImplementedError

    def act(self) -> None:
        """Take the initiative: publish, subscribe, acknowledge."""
        raise NotImplementedError


class BlipClient(Client):
    """A client that speaks Blip."""

    def greet(self) -> None:
        """Send the handshake."""
        self.send(messages.encode_hello(0) + messages.encode_auth(0, KEY))

    def receive(self, kind: int, correlation_id: int, payload: bytes) -> None:
        """Handle a frame from the broker."""
        raise NotImplementedError


class Publisher(BlipClient):
    """Publishes in bursts, some of them followed by a PING."""

    def receive(self, kind: int, correlation_id: int, payload: bytes) -> None:
        """Record confirmations and refusals."""
        del payload
        if kind == frames.PONG:
            self.unanswered -= 1
            self.scene.ledger.confirm(self.name, correlation_id)
            self.scene.confirmations += 1
        elif kind == frames.NACK:
            self.scene.ledger.refuse(self.name, correlation_id)
            self.scene.refusals += 1

    def act(self) -> None:
        """Publish a burst."""
        rng = self.scene.rng
        burst = [rng.choice(("orders", "events")) for _ in range(rng.randint(1, 6))]
        self.publish(burst, qos0=0.1, fence=rng.random() < FENCE_CHANCE)

    def publish(self, topics: list[str], *, qos0: float = 0.0, fence: bool = True) -> None:
        """Publish one message to each of *topics*, pipelined, perhaps followed by a PING."""
        rng = self.scene.rng
        parts = []
        for topic in topics:
            number = self.next_number()
            padding = rng.randbytes(rng.choice((0, 8, 100, rng.randrange(PAYLOAD_BYTES_MAX))))
            payload = f"{self.name}/{number}/".encode() + padding
            qos = int(rng.random() >= qos0)
            self.scene.ledger.attempt(self.name, number, topic, payload, qos=qos)
            parts.append(messages.encode_publish(number, qos, topic, payload))
        if fence:
            self.unanswered += 1
            parts.append(frames.encode(frames.PING, self._number))
        self.send(b"".join(parts))


class Consumer(BlipClient):
    """Consumes one subscription, and creates it if necessary."""

    def __init__(
        self, scene: Scene, name: str, send: Callable[[bytes], None], plan: Plan
    ) -> None:
        super().__init__(scene, name, send)
        scene.ledger.connect(name)
        self.plan = plan
        self.care = plan.care
        self.delivered = 0
        self._asked = False
        self._leaving = False
        self._held: list[int] = []
        self._unconfirmed: Unconfirmed[int] = Unconfirmed()
        self._asked_of: dict[int, int] = {}  # subscription, by the number of the request

    @property
    def subscription(self) -> int:
        """The id of the subscription; 0 while there is none."""
        return self.scene.subscriptions.get(self.plan, 0)

    def receive(self, kind: int, correlation_id: int, payload: bytes) -> None:
        """Record deliveries and confirmations."""
        ledger = self.scene.ledger
        if kind == frames.PUBLISH:
            qos, topic, message = messages.read_publish(payload)
            tag = correlation_id if qos else 0
            ledger.deliver(self.subscription, self.name, tag, topic, message)
            self.delivered += 1
            if tag and self.scene.rng.random() < self.care:
                self._held.append(tag)
        elif kind == frames.PONG:
            self.unanswered -= 1
            for tag in self._unconfirmed.reach(correlation_id):
                ledger.settle(self.subscription, self.name, tag)
        elif kind == frames.NACK:
            self._refused(correlation_id, payload)
        elif correlation_id >= _UNSUBSCRIBE:
            ledger.ended(self.subscription)
            self._forget_subscription()
        elif correlation_id >= _SUBSCRIBE:
            given = messages.read_subscription_id(payload)
            ledger.subscribe(given, self.plan.topic, ordered=self.plan.ordered)
            self.scene.subscriptions[self.plan] = given

    def _refused(self, correlation_id: int, payload: bytes) -> None:
        code, _ = messages.read_nack(payload)
        if correlation_id >= _SUBSCRIBE:
            self._asked = False
        elif correlation_id >= _POLL:
            if code == _NOT_FOUND and self.subscription == self._asked_of.get(correlation_id):
                self.scene.ledger.missing(self.subscription)
                self._forget_subscription()
        else:
            self._unconfirmed.void(correlation_id)  # the delivery was not ours

    def _forget_subscription(self) -> None:
        self.scene.subscriptions.pop(self.plan, None)
        self._held.clear()
        self._unconfirmed.void_all()
        self._asked = False
        self._leaving = False

    def act(self) -> None:
        """Subscribe, ask for messages, acknowledge, or confirm with a PING."""
        rng = self.scene.rng
        if not self.subscription:
            if not self._asked:
                self._asked = True
                self.send(messages.encode_subscribe(_SUBSCRIBE + 1, self.plan.topic, 1))
            return
        if self._leaving:
            return
        self.acknowledge(rng.randint(0, len(self._held)))
        if rng.random() < FENCE_CHANCE:
            self.fence()
        if self.plan.comes_and_goes and rng.random() < LEAVING_CHANCE:
            self._leaving = True
            self.scene.ledger.unsubscribe(self.subscription)
            self.send(messages.encode_unsubscribe(_UNSUBSCRIBE + 1, self.subscription))
        else:
            self.ask(rng.randint(1, 4))

    def ask(self, count: int) -> None:
        """Ask for *count* messages, by POLL or CREDIT as planned."""
        number = _POLL + self.next_number()
        self._asked_of[number] = self.subscription
        if self.plan.pulls:
            self.send(messages.encode_poll(number, self.subscription) * count)
        else:
            self.send(messages.encode_credit(number, self.subscription, count))

    def acknowledge(self, count: int) -> None:
        """Acknowledge the oldest *count* deliveries held."""
        for tag in self._held[:count]:
            self.scene.ledger.acknowledge(self.subscription, tag)
            self._unconfirmed.add(tag)
            self.send(messages.encode_ack(tag, self.subscription))
        del self._held[:count]

    def acknowledge_all(self) -> None:
        """Acknowledge all deliveries held, and send a PING."""
        self.acknowledge(len(self._held))
        self.fence()

    def fence(self) -> None:
        """Send a PING: its PONG confirms the acknowledgements before it."""
        number = _PING + self.next_number()
        self._unconfirmed.fence(number)
        self.unanswered += 1
        self.send(frames.encode(frames.PING, number))
