"""Vibe clients that write a ledger: publishers and consumers of queues, driven by a seed.

Like the Blip clients of `clients`, each is one connection and does not know what carries its
frames.
"""

import base64
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from braidmq.testing import ledger as kinds
from braidmq.testing.clients import (
    FENCE_CHANCE,
    KEY,
    LEAVING_CHANCE,
    Client,
    Plan,
    Scene,
    Unconfirmed,
)
from braidmq.testing.ledger import DEAD_LETTER_PREFIX
from braidmq.wire.vibe import frames, messages
from braidmq.wire.vibe.queue_options import MODES

PRIORITIES: Final = ("low", "normal", "high", "critical")
NORMAL: Final = 1
REPEAT_CHANCE: Final = 0.15
DELETING_CHANCE: Final = 0.25
REPEAT_WITHIN_S: Final = 60.0
"""Half the window in which the broker recognises a dedup id."""

REPEATABLE_MAX: Final = 20
"""Recent publishes that may be repeated."""

FORGOTTEN_SHARE: Final = 0.4
REJECTED_SHARE: Final = 0.3
"""Shares of the deliveries that are not acknowledged; the rest is requeued."""

_PADDING_CHARACTERS: Final = (0, 16, 200, 1400)
_REQUEUE_DELAYS_MS: Final = ("0", "0", "300")


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """A queue, and the behaviour of its consumers.

    `care` is the probability that a delivery is acknowledged; of the others some are rejected,
    some requeued, some forgotten. A plan without a `mode` is a dead letter queue, which the
    broker declares itself.
    """

    name: str
    mode: str = "RoundRobin"
    letters: str = ""
    consumers: int = 1
    prefetch: int = 4
    care: float = 0.75
    options: tuple[tuple[str, str], ...] = ()
    keeps_letters: bool = True
    is_bounded: bool = False
    has_repeats: bool = False
    comes_and_goes: bool = False

    @property
    def letters_name(self) -> str:
        """The name of its dead letter queue."""
        return self.letters or DEAD_LETTER_PREFIX + self.name

    def headers(self) -> dict[str, str]:
        """Return the options of its declaration."""
        given = {"deliveryMode": self.mode, **dict(self.options)}
        if self.letters:
            given["deadLetterQueueName"] = self.letters
        return given

    def is_as_declared(self, info: bytes) -> bool:
        """Return whether the payload of a QueueInfo matches the declaration."""
        if not info:
            return False
        told = json.loads(info)
        if told["deliveryMode"] != MODES.index(self.mode):
            return False
        attempts = dict(self.options).get("maxRetryAttempts")
        if attempts is not None and str(told["maxRetryAttempts"]) != attempts:
            return False
        return bool(told["deadLetterQueueName"] == self.letters_name)


WORK: Final = QueuePlan(
    "work", letters="graves.work", consumers=2, prefetch=3, has_repeats=True
)
URGENT: Final = QueuePlan("urgent", "PriorityBased", letters="graves.urgent", prefetch=3)
NEWS: Final = QueuePlan(
    "news",
    "FanOutWithAck",
    letters="graves.news",
    consumers=2,
    options=(("messageTtl", "6000"),),
)
SMALL: Final = QueuePlan(
    "small",
    options=(("maxQueueSize", "3"), ("overflowStrategy", "RedirectToDlq")),
    is_bounded=True,
)
SILENT: Final = QueuePlan(
    "silent",
    options=(("enableDeadLetterQueue", "false"), ("maxRetryAttempts", "1000")),
    keeps_letters=False,
)
TEMPORARY: Final = QueuePlan("temporary", comes_and_goes=True)
QUEUES: Final = (WORK, URGENT, NEWS, SMALL, SILENT, TEMPORARY)
LETTERS: Final = tuple(
    QueuePlan(plan.letters_name, mode="", care=0.85) for plan in QUEUES if plan.keeps_letters
)

WATCHERS: Final = (
    Plan("letters of work", "dlq.work", care=1.0, pulls=True),
    Plan("letters of urgent", "dlq.urgent", care=1.0, pulls=True),
    Plan("watcher of work", "work", care=1.0, pulls=False),
    Plan("watcher of urgent", "urgent", care=0.9, pulls=True, ordered=False),
)
"""Blip subscriptions to the same topics; their dead letters are separate."""

REPLAYED: Final = SMALL.letters_name
"""Dead letters that are replayed: with one consumer and no other subscription, none is
duplicated."""


@dataclass(slots=True, eq=False, kw_only=True)
class QueueScene(Scene):
    """State shared by the clients of a world with queues; `now_s` is its clock.

    An acknowledgement that is confirmed within `take_within_s` of its delivery arrived before
    the message was due for redelivery, so no other consumer can have got it.
    """

    now_s: Callable[[], float]
    take_within_s: float
    repeatable: deque[tuple[float, str, str, bytes]] = field(
        default_factory=lambda: deque(maxlen=REPEATABLE_MAX)
    )
    declared: set[str] = field(init=False)

    def __post_init__(self) -> None:
        """Find the queues that the ledger knows already."""
        events = self.ledger.events
        self.declared = {event.topic for event in events if event.kind == kinds.DECLARED}

    def publishable(self) -> list[QueuePlan]:
        """Return the declared queues: a publish to another would create it with defaults."""
        return [plan for plan in QUEUES if plan.name in self.declared or plan == TEMPORARY]


class VibeClient(Client):
    """A client that speaks Vibe."""

    scene: QueueScene

    def greet(self) -> None:
        """Send the handshake."""
        self.request(messages.CONNECT, "connect", headers={"authToken": KEY})

    def request(
        self,
        kind: int,
        message_id: str,
        queue: str = "",
        payload: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send one frame."""
        body = messages.write_body(kind, message_id, queue, payload, headers, with_errors=False)
        self.send(frames.encode(frames.DIALECT_1_1, body))

    def receive(self, body: messages.Body) -> None:
        """Handle a frame from the broker."""
        raise NotImplementedError


class VibePublisher(VibeClient):
    """Publishes in bursts, without waiting for answers in between."""

    def __init__(self, scene: QueueScene, name: str, send: Callable[[bytes], None]) -> None:
        self._waiting: dict[str, tuple[int, bytes]] = {}
        super().__init__(scene, name, send)

    def receive(self, body: messages.Body) -> None:
        """Record confirmations and refusals."""
        if body.type == messages.CONNECT_ACK:
            return
        number, payload = self._waiting.pop(body.id)
        confirmed = body.type == messages.PUBLISH_ACK
        assert confirmed or body.type == messages.ERROR, body.type
        self.answered(number, payload, confirmed=confirmed)

    def act(self) -> None:
        """Publish a burst, or repeat a publish that may have been lost."""
        rng = self.scene.rng
        if self.scene.repeatable and rng.random() < REPEAT_CHANCE:
            self.repeat()
        else:
            self.publish(rng.choices(self.scene.publishable(), k=rng.randint(1, 6)))

    def publish(self, plans: list[QueuePlan]) -> None:
        """Publish one message to each queue of *plans*."""
        rng = self.scene.rng
        for plan in plans:
            number = self.next_number()
            padding = "".join(rng.choices("abcdef", k=rng.choice(_PADDING_CHARACTERS)))
            payload = json.dumps({"from": self.name, "number": number, "": padding}).encode()
            priority = rng.randrange(len(PRIORITIES))
            headers = {"priority": PRIORITIES[priority]} if priority != NORMAL else {}
            message_id = f"{self.name}-{number}"
            if plan.has_repeats and rng.random() < 2 * REPEAT_CHANCE:
                headers["dedupId"] = message_id
                self.scene.repeatable.append(
                    (self.scene.now_s(), plan.name, message_id, payload)
                )
            self.scene.ledger.attempt(self.name, number, plan.name, payload, priority=priority)
            self._publish(message_id, plan.name, payload, headers, number)

    def repeat(self) -> None:
        """Repeat a recent publish, of any publisher."""
        at_s, queue, dedup_id, payload = self.scene.rng.choice(self.scene.repeatable)
        if self.scene.now_s() - at_s < REPEAT_WITHIN_S:
            message_id = f"{self.name}-again-{self.next_number()}"
            self.scene.ledger.repeat(payload)
            self._publish(message_id, queue, payload, {"dedupId": dedup_id}, 0)

    def _publish(
        self, message_id: str, queue: str, payload: bytes, headers: dict[str, str], number: int
    ) -> None:
        self._waiting[message_id] = (number, payload)
        self.unanswered += 1
        self.request(messages.PUBLISH, message_id, queue, payload, headers)


@dataclass(slots=True)
class _Held:
    """A delivery, and how to answer it."""

    message_id: str
    payload: bytes
    at_s: float
    answer: dict[str, str] | None  # None for an acknowledgement


class VibeConsumer(VibeClient):
    """Consumes one queue, and declares it if necessary."""

    def __init__(
        self,
        scene: QueueScene,
        name: str,
        send: Callable[[bytes], None],
        plan: QueuePlan,
    ) -> None:
        self.plan = plan
        self.care = plan.care
        self.delivered = 0
        self.acknowledged = 0
        self.left = 0  # messages in the queue, as of the last answer
        self._held: list[_Held] = []
        self._unconfirmed: Unconfirmed[_Held] = Unconfirmed()
        self._given_back: set[str] = set()
        self._asked_at = len(scene.ledger.events)
        self._subscribed = False
        self._leaving = False
        scene.ledger.connect(name)
        super().__init__(scene, name, send)

    def greet(self) -> None:
        """Connect, check that the queue is as declared, and subscribe."""
        super().greet()
        self.request(messages.QUEUE_INFO, "info", self.plan.name)
        self._begin()

    def ask_what_is_left(self) -> None:
        """Ask for `left`; a PING after it shows when it has been answered."""
        self.request(messages.QUEUE_INFO, "left", self.plan.name)

    def _begin(self) -> None:
        """Declare the queue; subscribe after the answer, because Subscribe would declare it."""
        self.unanswered += 1
        if self.plan.mode:
            self.request(
                messages.CREATE_QUEUE, "create", self.plan.name, headers=self.plan.headers()
            )
        else:
            self._subscribe()

    def _subscribe(self) -> None:
        prefetch = {"prefetch": str(self.plan.prefetch)}
        self.request(messages.SUBSCRIBE, "subscribe", self.plan.name, headers=prefetch)

    def receive(self, body: messages.Body) -> None:
        """Record deliveries and confirmations."""
        kind = body.type
        if kind == messages.DELIVER:
            self._take(body)
        elif kind == messages.PONG:
            self._confirmed(body.id)
        elif kind == messages.QUEUE_INFO:
            facts = json.loads(body.payload or b"{}")
            self.left = facts.get("messageCount", 0) + facts.get("inFlight", 0)
            # Only the first answer tells what was there before this client declared the queue.
            is_first = body.id == "info" and self.plan.mode
            if is_first and not self.plan.is_as_declared(body.payload):
                self.scene.ledger.undeclared(self.plan.name, self._asked_at)
        elif kind == messages.CREATE_QUEUE:
            self.scene.declared.add(self.plan.name)
            self.scene.ledger.declared(self.plan.name, self.plan.mode, self.plan.letters_name)
            self._subscribe()
        elif kind == messages.SUBSCRIBE_ACK:
            self.unanswered -= 1
            self._subscribed = True
        elif kind in {messages.UNSUBSCRIBE_ACK, messages.DELETE_QUEUE}:
            self._left(body)
        elif kind == messages.ERROR:
            self._refused(body)

    def _refused(self, body: messages.Body) -> None:
        if body.id in {"create", "subscribe"}:
            self.unanswered -= 1
            self._subscribed = False

    def _take(self, body: messages.Body) -> None:
        payload = body.payload
        if body.headers.get("contentEncoding") == "base64":
            payload = base64.b64decode(json.loads(payload))
        attempts = int(body.headers["deliveryAttempts"])
        self.scene.ledger.push(self.plan.name, self.name, payload, attempts)
        self.delivered += 1
        # A redelivery: the answer to the previous delivery is void.
        self._held = [held for held in self._held if held.message_id != body.id]
        roll = self.scene.rng.random()
        answer: dict[str, str] | None = None
        if roll >= self.care:
            part = (roll - self.care) / (1.0 - self.care)
            if part < FORGOTTEN_SHARE:
                return  # forgotten
            delay_ms = self.scene.rng.choice(_REQUEUE_DELAYS_MS)
            answer = {"result": "requeue", "delayMs": delay_ms}
            if part > 1.0 - REJECTED_SHARE and self.plan.mode:
                answer = {"result": "reject"}
        self._held.append(_Held(body.id, payload, self.scene.now_s(), answer))

    def _confirmed(self, fence: str) -> None:
        self.unanswered -= 1
        for held in self._unconfirmed.reach(fence):
            if self.scene.now_s() - held.at_s < self.scene.take_within_s:
                self.scene.ledger.taken(self.plan.name, self.name, held.payload)

    def _left(self, body: messages.Body) -> None:
        self.unanswered -= 1
        self._leaving = False
        if body.type == messages.DELETE_QUEUE:
            self.scene.ledger.note(kinds.DELETED, self.plan.name)
        else:
            self.scene.ledger.give_back(self.plan.name, self.name)
        self._held.clear()
        self._subscribed = False
        self._begin()

    def act(self) -> None:
        """Answer some deliveries, confirm with a PING, perhaps leave for a moment."""
        rng = self.scene.rng
        if self._leaving or self.unanswered > 1:
            return
        if not self._subscribed:
            if not self.unanswered:
                self._begin()
            return
        self.acknowledge(rng.randint(0, len(self._held)))
        if rng.random() < FENCE_CHANCE:
            self.fence()
        if self.plan.comes_and_goes and rng.random() < DELETING_CHANCE:
            self.delete()
        elif not self.plan.comes_and_goes and rng.random() < LEAVING_CHANCE:
            self.leave()

    def leave(self) -> None:
        """Unsubscribe, and subscribe again after the answer."""
        self._leaving = True
        self._held.clear()
        self.unanswered += 1
        self.scene.ledger.give_back(self.plan.name, self.name)
        self.request(messages.UNSUBSCRIBE, "leave", self.plan.name)

    def delete(self) -> None:
        """Delete the queue, and declare it again after the answer."""
        self._leaving = True
        self._held.clear()
        self._unconfirmed.void_all()
        self.unanswered += 1
        self.scene.ledger.note(kinds.DELETING, self.plan.name)
        self.request(messages.DELETE_QUEUE, "delete", self.plan.name)

    def acknowledge(self, count: int) -> None:
        """Answer the oldest *count* deliveries held."""
        self.acknowledged += count
        for held in self._held[:count]:
            is_end = held.answer is None
            if not self.plan.keeps_letters and held.answer == {"result": "reject"}:
                is_end = True
            if is_end:
                self.scene.ledger.take(self.plan.name, self.name, held.payload)
            # An answer to the previous delivery may be in flight, and would be the first.
            is_clear = held.answer is None and held.message_id not in self._given_back
            self._unconfirmed.add(held if is_clear else None)
            if held.answer is not None:
                self._given_back.add(held.message_id)
            self.request(messages.ACK, held.message_id, self.plan.name, headers=held.answer)
        del self._held[:count]

    def acknowledge_all(self) -> None:
        """Answer all deliveries held, and send a PING."""
        self.acknowledge(len(self._held))
        self.fence()

    def fence(self) -> None:
        """Send a PING: its PONG confirms the acknowledgements before it."""
        number = f"fence-{self.next_number()}"
        self._unconfirmed.fence(number)
        self.unanswered += 1
        self.request(messages.PING, number)
