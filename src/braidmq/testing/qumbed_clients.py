"""Qumbed clients that write a ledger: publishers and followers, driven by a seed.

Like those of `clients` and `vibe_clients`, each is one stream and does not know what carries
its frames. A follower reconnects under the same key; `follower_books` checks its deliveries.
"""

import hashlib
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from braidmq.testing import ledger as kinds
from braidmq.testing.clients import FENCE_CHANCE, LEAVING_CHANCE, Client
from braidmq.testing.vibe_clients import (
    REPEAT_CHANCE,
    REPEAT_WITHIN_S,
    REPEATABLE_MAX,
    SILENT,
    URGENT,
    WORK,
    QueuePlan,
    QueueScene,
)
from braidmq.wire.qumbed import messages
from braidmq.wire.qumbed.boxes import NONCE_BYTES, Boxes, key_id
from braidmq.wire.qumbed.session import SERVER_ERROR

PAUSE_CHANCE: Final = 0.1
RESUME_CHANCE: Final = 0.1
ADDRESSED_SHARE: Final = 0.7
"""Share of the sealed publishes with a recipient; the others go to all followers, of which
one can decrypt them."""

_PADDING_BYTES: Final = (0, 16, 200, 1400)
_BOXES_MAX: Final = 16


def boxes_of(name: str) -> Boxes:
    """Return a key pair derived from *name*: the same in every run."""
    return Boxes(hashlib.sha256(name.encode()).digest(), boxes_max=_BOXES_MAX)


class FollowerPlan:
    """A key, the topics it follows, and the behaviour of its client.

    A `slow` one stops reading for a while now and then; one that `comes_and_goes` unsubscribes
    from a topic and subscribes again.
    """

    def __init__(
        self,
        name: str,
        *topics: str,
        slow: bool = False,
        comes_and_goes: bool = False,
    ) -> None:
        self.name = name
        self.topics = topics
        self.slow = slow
        self.comes_and_goes = comes_and_goes

    @cached_property
    def boxes(self) -> Boxes:
        """The key pair."""
        return boxes_of(self.name)

    @property
    def key(self) -> str:
        """The id of the key, as in the ledger."""
        return key_id(self.boxes.public_key).hex()


FOLLOWERS: Final = (
    FollowerPlan("alice", WORK.name, URGENT.name),
    FollowerPlan("bob", WORK.name, slow=True),
    FollowerPlan("carol", SILENT.name, URGENT.name, comes_and_goes=True),
)
"""They follow topics of queues whose messages neither expire nor are refused."""

SENDERS: Final = (boxes_of("a sender"), boxes_of("another sender"))


@dataclass(frozen=True, slots=True)
class Sent:
    """A publish with an id, to be repeated later."""

    at_s: float
    topic: str
    payload: bytes
    frame: bytes
    frame_id: str


@dataclass(slots=True, eq=False, kw_only=True)
class QumbedScene(QueueScene):
    """State shared by the clients of a world with all three strands.

    `gateway_key` is the key with which the broker encrypts: the same after each restart.
    """

    gateway_key: bytes = b""
    sent: deque[Sent] = field(default_factory=lambda: deque(maxlen=REPEATABLE_MAX))


class QumbedClient(Client):
    """A client that speaks Qumbed."""

    scene: QumbedScene

    def receive(self, frame: messages.Frame) -> None:
        """Handle a frame from the broker."""
        raise NotImplementedError


class QumbedPublisher(QumbedClient):
    """Publishes in bursts: plain, with a schema, opaque and sealed; answers are in order."""

    def __init__(self, scene: QumbedScene, name: str, send: Callable[[bytes], None]) -> None:
        self._waiting: deque[tuple[int, str, bytes]] = deque()
        super().__init__(scene, name, send)

    def greet(self) -> None:
        """Send nothing: Qumbed has no handshake frame."""

    def receive(self, frame: messages.Frame) -> None:
        """Record confirmations and refusals."""
        number, frame_id, payload = self._waiting.popleft()
        confirmed = isinstance(frame, messages.Ack)
        if isinstance(frame, messages.Ack):
            assert frame.ok
            assert frame.message_id == frame_id or (not frame_id and frame.message_id.isdigit())
        else:
            assert isinstance(frame, messages.Error), frame
            assert (SERVER_ERROR, frame_id) == (frame.code, frame.id), frame.message
        self.answered(number, payload, confirmed=confirmed)

    def act(self) -> None:
        """Publish a burst, or repeat a publish that may have been lost."""
        rng = self.scene.rng
        if self.scene.sent and rng.random() < REPEAT_CHANCE:
            self.repeat()
        else:
            self.publish(rng.choices(self.scene.publishable(), k=rng.randint(1, 6)))

    def publish(self, plans: list[QueuePlan]) -> None:
        """Publish one message to each queue of *plans*, pipelined."""
        scene = self.scene
        parts = []
        for plan in plans:
            number = self.next_number()
            may_repeat = plan.has_repeats and scene.rng.random() < 2 * REPEAT_CHANCE
            # Long enough to be valid on every connection: most of them have no key.
            frame_id = f"{self.name}-{number:016}" if may_repeat else ""
            kind = scene.rng.choice((self._plain, self._typed, self._opaque, self._sealed))
            payload, frame, key = kind(number, plan.name, frame_id)
            scene.ledger.attempt(self.name, number, plan.name, payload, key=key)
            if may_repeat:
                scene.sent.append(Sent(scene.now_s(), plan.name, payload, frame, frame_id))
            self._waiting.append((number, frame_id, payload))
            parts.append(frame)
        self.unanswered += len(parts)
        self.send(b"".join(parts))

    def repeat(self) -> None:
        """Repeat a recent publish, of any publisher."""
        sent = self.scene.rng.choice(self.scene.sent)
        if self.scene.now_s() - sent.at_s < REPEAT_WITHIN_S:
            self.scene.ledger.repeat(sent.payload)
            self._waiting.append((0, sent.frame_id, sent.payload))
            self.unanswered += 1
            self.send(sent.frame)

    # Kinds of payloads. Each returns the payload, its frame, and its only recipient, if any.

    def _padding(self) -> bytes:
        return self.scene.rng.randbytes(self.scene.rng.choice(_PADDING_BYTES))

    def _plain(self, number: int, topic: str, frame_id: str) -> tuple[bytes, bytes, str]:
        told = {"from": self.name, "number": number, "": self._padding().hex()}
        payload = json.dumps(told).encode()
        return payload, messages.publish(topic, payload, frame_id=frame_id), ""

    def _typed(self, number: int, topic: str, frame_id: str) -> tuple[bytes, bytes, str]:
        told = {"celsius": 0.5, "timestamp_ms": number, "sensor_id": self.name}
        payload = json.dumps(told).encode()
        schema = "sensor.Temperature"
        return payload, messages.publish(topic, payload, schema, frame_id=frame_id), ""

    def _opaque(self, number: int, topic: str, frame_id: str) -> tuple[bytes, bytes, str]:
        payload = b"\xff" + f"{self.name}/{number}/".encode() + self._padding()
        return payload, messages.publish(topic, payload, frame_id=frame_id), ""

    def _sealed(self, number: int, topic: str, frame_id: str) -> tuple[bytes, bytes, str]:
        rng = self.scene.rng
        sender = rng.choice(SENDERS)
        plan = rng.choice(FOLLOWERS)
        recipient = plan.boxes.public_key
        secret = f"{self.name}/{number}/".encode() + self._padding()
        payload = sender.seal(secret, recipient, nonce=rng.randbytes(NONCE_BYTES))
        is_addressed = rng.random() < ADDRESSED_SHARE
        frame = messages.publish(
            topic,
            payload,
            recipient_key_id=key_id(recipient) if is_addressed else b"",
            sender_public_key=sender.public_key,
            frame_id=frame_id,
        )
        return payload, frame, plan.key if is_addressed else ""


class QumbedFollower(QumbedClient):
    """Follows topics under one key, and records its deliveries."""

    def __init__(
        self,
        scene: QumbedScene,
        name: str,
        send: Callable[[bytes], None],
        plan: FollowerPlan,
    ) -> None:
        self.plan = plan
        self.handed = 0
        self.is_paused = False
        self._asked: deque[tuple[str, str]] = deque()  # what an Ack confirms, and its topic
        self._left: set[str] = set()
        super().__init__(scene, name, send)

    def greet(self) -> None:
        """Subscribe."""
        for topic in self.plan.topics:
            self._subscribe(topic)

    def _subscribe(self, topic: str) -> None:
        self._ask(kinds.FOLLOWING, kinds.FOLLOWED, topic)
        self.send(messages.subscribe(topic, "", self.plan.boxes.public_key))

    def _ask(self, before: str, after: str, topic: str) -> None:
        self.scene.ledger.follower(before, self.plan.key, topic)
        self._asked.append((after, topic))
        self.unanswered += 1

    def receive(self, frame: messages.Frame) -> None:
        """Record deliveries and confirmations."""
        if isinstance(frame, messages.Message):
            self._take(frame)
        elif isinstance(frame, messages.Ack):
            self.unanswered -= 1
            self.scene.ledger.follower(*self._confirmed())
        else:
            assert isinstance(frame, messages.Discovery), frame
            self.unanswered -= 1

    def _confirmed(self) -> tuple[str, str, str]:
        kind, topic = self._asked.popleft()
        (self._left.add if kind == kinds.UNFOLLOWED else self._left.discard)(topic)
        return kind, self.plan.key, topic

    def _take(self, message: messages.Message) -> None:
        payload = message.encrypted_payload
        sender = message.sender_public_key
        assert message.sender_key_id == key_id(sender)
        if sender == self.scene.gateway_key:
            payload = self.plan.boxes.open(payload, sender)
        self.handed += 1
        number = int(message.id)
        self.scene.ledger.hand(self.plan.key, self.name, number, message.topic, payload)

    def act(self) -> None:
        """Pause or resume reading, send a fence, leave a topic or return to it."""
        rng = self.scene.rng
        if self.plan.slow and rng.random() < (
            RESUME_CHANCE if self.is_paused else PAUSE_CHANCE
        ):
            self.is_paused = not self.is_paused
        if self.is_paused or self._asked:
            return
        if rng.random() < FENCE_CHANCE / 4:
            self.fence()
        if self._left:
            self._subscribe(next(iter(self._left)))
        elif self.plan.comes_and_goes and rng.random() < LEAVING_CHANCE:
            topic = rng.choice(self.plan.topics)
            self._ask(kinds.UNFOLLOWING, kinds.UNFOLLOWED, topic)
            self.send(messages.unsubscribe(topic))

    def take_count(self) -> int:
        """Return the number of deliveries since the last call."""
        self.handed, handed = 0, self.handed
        return handed

    def fence(self) -> None:
        """Send a fence: its answer shows that all requests before it are done."""
        self.unanswered += 1
        self.send(messages.discovery("", (), b"", ""))
