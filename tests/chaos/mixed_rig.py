"""The rig with clients of all strands: queues over Vibe, the same topics over Blip and Qumbed.

Publishers of every strand publish to all queues. One ledger records what happens on all of
them: `queue_books` checks the queues, and `follower_books` the Qumbed subscribers, which
reconnect under their keys.
"""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Final

from braidmq.testing import ledger as kinds
from braidmq.testing.clients import Client, Consumer, Plan, Publisher
from braidmq.testing.follower_books import check_followers
from braidmq.testing.ledger import DEAD_LETTER_PREFIX, Violation
from braidmq.testing.queue_books import check_queues
from braidmq.testing.qumbed_clients import (
    FOLLOWERS,
    FollowerPlan,
    QumbedFollower,
    QumbedPublisher,
    QumbedScene,
)
from braidmq.testing.vibe_clients import (
    LETTERS,
    QUEUES,
    WATCHERS,
    QueuePlan,
    VibeClient,
    VibeConsumer,
    VibePublisher,
)
from braidmq.wire.vibe import frames, messages
from tests.chaos.qumbed_carrier import QumbedCarrier
from tests.chaos.rig import PACE_S, PUBLISHER_PACE_S, Carrier, Rig

_READERS: Final = [plan for plan in WATCHERS if plan.topic.startswith(DEAD_LETTER_PREFIX)]
PUBLISHERS: Final = ("vibe", "vibe", "blip", "qumbed", "qumbed")
"""The strand of each publisher."""

QUMBED_PREFIX: Final = "qumbed "
"""The prefix of the names of Qumbed clients."""

TAKE_WITHIN_S: Final = 5.0
SETTINGS: Final = {
    # Much longer than TAKE_WITHIN_S, however slow the machine is.
    "BRAIDMQ_VIBE__ACK_TIMEOUT_MS": "20000",
    # A kill loses deliveries on the wire, and those count as attempts.
    "BRAIDMQ_VIBE__MAX_RETRIES": "6",
    "BRAIDMQ_QUMBED__OFFLINE_S": "3600",
    # Less than a short burst: a slow subscriber must get the rest from the log.
    "BRAIDMQ_QUMBED__WINDOW_BYTES": "8192",
}

Role = Plan | QueuePlan | FollowerPlan | str
"""The plan of a consumer, or the strand of a publisher."""


class VibeCarrier(Carrier):
    """The connection of a Vibe client."""

    client: VibeClient | None = None

    def __init__(self) -> None:
        super().__init__()
        self._decoder = frames.FrameDecoder()
        self._decoder.dialect = frames.DIALECT_1_1

    def data_received(self, data: bytes) -> None:
        assert self.client is not None
        self._decoder.receive_data(data)
        while (body := self._decoder.next_body()) is not None:
            self.client.receive(messages.read_body(body))
        self.heard.set()


class MixedRig(Rig):
    """One data directory, its broker with clients of all strands, and one ledger."""

    scene: QumbedScene

    def __post_init__(self) -> None:
        self.settings = {**SETTINGS, **self.settings}
        self.qumbed = "127.0.0.1:0"
        self._followers: set[QumbedCarrier] = set()
        super().__post_init__()

    def new_scene(self) -> QumbedScene:
        """Return the state that all clients share."""
        return QumbedScene(
            self.rng, self.ledger, now_s=time.monotonic, take_within_s=TAKE_WITHIN_S
        )

    def start(self) -> None:
        """Start the broker, and check that its gateway key is the same as before."""
        self.ledger.note(kinds.RESTART)
        self.daemon.start()
        known = self.scene.gateway_key
        assert known in {b"", self.daemon.gateway_key}
        self.scene.gateway_key = self.daemon.gateway_key

    def load(self) -> list[Coroutine[None, None, None]]:
        """Return the clients' work, each for as long as the broker runs."""
        works = [
            self._keep_at(plan, may_break=not plan.ordered, pace_s=PACE_S) for plan in WATCHERS
        ]
        works += [
            self._keep_at(strand, may_break=True, pace_s=PUBLISHER_PACE_S)
            for strand in PUBLISHERS
        ]
        works += [self._keep_at(plan, may_break=True, pace_s=PACE_S) for plan in FOLLOWERS]
        for plan in (*QUEUES, *LETTERS):
            # A deletion in flight when its connection is lost could take effect at any time.
            may_break = not plan.comes_and_goes
            works += [
                self._keep_at(plan, may_break=may_break, pace_s=PACE_S)
                for _ in range(plan.consumers)
            ]
        return works

    def _may_start(self, role: Role) -> bool:
        """Say whether this role may start: Blip's dead letters need a reader first."""
        if isinstance(role, QueuePlan) or role in _READERS:
            return True
        return all(plan in self.scene.subscriptions for plan in _READERS)

    async def _keep_at(self, role: Role, *, may_break: bool, pace_s: float) -> None:
        """Keep a client of this role connected; replace it when its connection is lost."""
        while True:
            if not self._may_start(role):
                await asyncio.sleep(pace_s)
                continue
            try:
                carrier = await self.connect_as(role)
            except OSError:
                return  # the broker is gone
            try:
                await self.work(carrier, may_break=may_break, pace_s=pace_s)
                if isinstance(carrier, QumbedCarrier):
                    carrier.raise_fault()
                    if carrier in self._followers:
                        # Without acknowledgements it must read everything that was sent.
                        await carrier.leave()
            finally:
                carrier.abort()

    async def rest(self, tasks: list["asyncio.Task[None]"]) -> None:
        """Stop the load, after the broker is gone and everything it had sent is read.

        Followers must read what is in their sockets: the broker counts it as delivered.
        """
        with suppress(OSError):
            heard = -1
            while heard != (heard := sum(carrier.heard_bytes for carrier in self._followers)):
                for carrier in list(self._followers):
                    carrier.read_on()
                for _ in range(3):  # turns of the event loop: to read, to pass on, to be woken
                    await asyncio.sleep(0)
        await super().rest(tasks)
        for carrier in self._followers:
            carrier.raise_fault()
        self._followers.clear()

    def act(self, client: Client) -> None:
        """Let a client take one step."""
        if isinstance(client, Publisher):
            names = [plan.name for plan in self.scene.publishable()]
            client.publish(self.rng.choices(names, k=self.rng.randint(1, 4)))
        else:
            client.act()

    async def connect_as(self, role: Role) -> Carrier:
        """Connect a consumer of a plan, or a publisher."""
        if isinstance(role, Plan):
            return await self.connect(role)
        if role == "blip":
            return await self.connect(None)
        if role == "qumbed" or isinstance(role, FollowerPlan):
            return await self._connect_qumbed(role)
        loop = asyncio.get_running_loop()
        _, carrier = await loop.create_connection(
            VibeCarrier, "127.0.0.1", self.daemon.vibe_port
        )
        name = self.new_name()
        if isinstance(role, QueuePlan):
            carrier.client = VibeConsumer(self.scene, name, carrier.send, role)
        else:
            carrier.client = VibePublisher(self.scene, name, carrier.send)
        return carrier

    async def _connect_qumbed(self, role: FollowerPlan | str) -> QumbedCarrier:
        daemon = self.daemon
        carrier = await QumbedCarrier.connect(daemon.qumbed_port, daemon.fingerprint)
        name = f"{QUMBED_PREFIX}{self.new_name()}"
        if isinstance(role, FollowerPlan):
            self._followers.add(carrier)
            carrier.client = QumbedFollower(self.scene, name, carrier.send, role)
        else:
            carrier.client = QumbedPublisher(self.scene, name, carrier.send)
        return carrier

    async def connect_drainers(self) -> list[Carrier]:
        """Connect the consumers that take every message."""
        carriers = await super().connect_drainers()
        for plan in (*QUEUES, *LETTERS):
            carriers += [await self.connect_as(plan) for _ in range(plan.consumers)]
        return [*carriers, *[await self.connect_as(plan) for plan in FOLLOWERS]]

    async def drain_once(self, carrier: Carrier) -> int:
        """Take the messages that come now, and return how many they were."""
        drainer = carrier.client
        if isinstance(drainer, Consumer):
            return await super().drain_once(carrier)
        assert not carrier.gone.is_set(), self.daemon.last_words()
        if isinstance(drainer, QumbedFollower):
            drainer.fence()
            await carrier.answered(0)
            return drainer.take_count()
        assert isinstance(drainer, VibeConsumer)
        drainer.care = 1.0
        before = drainer.acknowledged
        drainer.ask_what_is_left()
        drainer.acknowledge_all()
        await carrier.answered(0)
        return drainer.acknowledged - before

    def has_backlog(self, carriers: list[Carrier]) -> bool:
        """Say whether a queue reports waiting messages."""
        clients = [carrier.client for carrier in carriers]
        return any(isinstance(client, VibeConsumer) and client.left for client in clients)

    def verdict(self) -> list[Violation]:
        """Return the violations in the ledger after everything was drained."""
        for plan in (*QUEUES, *LETTERS):
            self.ledger.note(kinds.QUEUE_DRAINED, plan.name)
        for follower in FOLLOWERS:
            for topic in follower.topics:
                self.ledger.follower(kinds.FOLLOWER_DRAINED, follower.key, topic)
        return [*super().verdict(), *check_queues(self.ledger), *check_followers(self.ledger)]
