"""A subscription over the Blip strand, on a connection of its own.

Messages come by CREDIT: the broker pushes as many as it was given credit for. A broker that
knows only the frames of the specification hangs up at the first CREDIT; then messages are asked
for with POLL and a fence, which tells "nothing there" from "not yet answered".

The subscription outlives its connection: on the next one it is resumed by its id, and what the
broker had sent and nobody has seen comes again.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from braidmq.client.backoff import Backoff
from braidmq.client.blip.connection import (
    OWN_IDS_FROM,
    BlipConnection,
    Refusal,
    Tenant,
    open_connection,
)
from braidmq.client.credit import CreditWindow
from braidmq.client.deliveries import Message
from braidmq.client.errors import (
    Closed,
    ConnectionLost,
    InvalidArgument,
    NotSupported,
    StaleDelivery,
    SubscriptionGone,
    SubscriptionRefused,
)
from braidmq.client.inbox import Inbox
from braidmq.client.link import Health
from braidmq.client.options import Options
from braidmq.client.subscription import Consumer
from braidmq.client.surface import OnGap, Subscription
from braidmq.client.url import Endpoint
from braidmq.wire.blip import messages

CREDIT_STRIKES_MAX: Final = 2
"""Connections that end at the first CREDIT, before we take the broker for one without it."""

POLL_DELAY_S: Final = 0.002
POLL_DELAY_MAX_S: Final = 0.25
"""Between questions to a broker without CREDIT that has nothing for us."""

POLLS_PER_FENCE_MAX: Final = 256
"""Questions that `fetch` asks at once."""

FETCH_GRACE_S: Final = 1.0
"""What one answer may take although the caller's timeout is shorter, 0 for example."""

_NOT_FOUND: Final = 404

log = logging.getLogger("braidmq.client")


class Traits:
    """What a client has found out about its broker, for all of its subscriptions."""

    def __init__(self) -> None:
        self.credit = True
        self._proven = False
        self._strikes = 0

    @property
    def known(self) -> bool:
        """Whether there is nothing left to find out."""
        return self._proven or not self.credit

    def answered(self) -> None:
        """Learn that the broker has answered after a CREDIT frame."""
        self._proven = self.credit

    def hung_up(self) -> bool:
        """Learn that it hung up on one instead; return whether that may be why."""
        if self.known:
            return False
        self._strikes += 1
        self.credit = self._strikes < CREDIT_STRIKES_MAX
        return True


class BlipMessage(Message):
    """A message of a Blip subscription."""

    __slots__ = ("_settled", "_subscription", "received_at", "subscription_id")

    id: int | None

    def __init__(
        self,
        subscription: "BlipSubscription",
        delivery_id: int | None,
        topic: str,
        payload: bytes,
        received_at: float,
    ) -> None:
        self.id = delivery_id
        self.topic = topic
        self.payload = payload
        self.qos = 0 if delivery_id is None else 1
        self.subscription_id = subscription.subscription_id
        self.received_at = received_at
        self._subscription = subscription
        self._settled = False

    async def ack(self, *, confirmed: bool = False) -> None:
        """Tell the broker that the message is done."""
        if self._settled or self.id is None:
            return
        self._settled = True
        try:
            await self._subscription.acknowledge(self, self.id, confirmed=confirmed)
        except BaseException:
            self._settled = False  # it may be tried again
            raise

    async def nack(self, *, delay: float | None = None, dead_letter: bool = False) -> None:
        """Raise NotSupported: the broker's timer is what brings a message back on Blip."""
        del delay, dead_letter
        raise NotSupported("blip", "nack")

    async def failed(self) -> None:
        """Do nothing: unacknowledged, it comes again."""


class BlipSubscription(Consumer[BlipConnection, BlipMessage], Tenant):
    """A subscription of a :class:`~braidmq.client.blip.strand.BlipClient`."""

    def __init__(
        self,
        topic: str,
        *,
        qos: int,
        prefetch: int,
        subscription_id: int,
        keep: bool,
        on_gap: OnGap | None,
        endpoint: Endpoint,
        options: Options,
        health: Health,
        traits: Traits,
        on_closed: Callable[[Subscription], None],
    ) -> None:
        super().__init__(
            topic,
            qos=qos,
            inbox=Inbox(),
            endpoint=endpoint,
            options=options,
            health=health,
            on_closed=on_closed,
        )
        self.subscription_id = subscription_id
        self._keep = keep
        self._on_gap = on_gap
        self._traits = traits
        self._ours = subscription_id == 0  # made here, so to be replaced when it is gone
        self._hung_up = False  # the broker, perhaps because of a CREDIT
        self._window = CreditWindow(prefetch)
        self._under_way = 0  # credit that was given and not yet used
        self._asking = asyncio.Lock()
        self._confirming: dict[int, Refusal | None] = {}
        self._late_acks: list[tuple[int, int]] = []  # subscription and delivery
        self._probe_id = 0
        self._probe_refusal: Refusal | None = None

    async def _dial(self, on_lost: Callable[[BlipConnection], None]) -> BlipConnection:
        return await open_connection(self._endpoint, self._options, self, on_lost)

    # --- what users call --------------------------------------------------------------------

    async def fetch(self, *, max: int = 100, timeout: float = 1.0) -> list[Message]:  # noqa: A002 - the name users know it by
        """Return up to *max* messages, perhaps none."""
        if max < 1:
            raise InvalidArgument(f"max is at least 1, not {max}")
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        backoff = Backoff(POLL_DELAY_S, POLL_DELAY_MAX_S)
        while True:
            self._check_open()
            await self._collect(max, deadline)
            left = deadline - clock()
            if self._inbox or left <= 0:
                return [self._next() for _ in range(min(max, len(self._inbox)))]
            if self._traits.credit or self._connection is None:
                if not self._under_way:
                    self._give(1)  # so that the first message comes by itself
                await self._inbox.arrival(left)
            else:
                await self._inbox.arrival(min(left, backoff.next_delay()))

    async def acknowledge(
        self, message: BlipMessage, delivery_id: int, *, confirmed: bool
    ) -> None:
        """Send an acknowledgement; called by the message."""
        connection = self._connection
        if connection is None:
            if self._end is not None:
                raise Closed("the subscription was closed")
            if not confirmed:
                self._late_acks.append((message.subscription_id, delivery_id))
                return
            connection = await self._link.ready()
        if message.subscription_id != self.subscription_id:
            self._stale(delivery_id, "its subscription was replaced", confirmed=confirmed)
            return
        connection.send(messages.encode_ack(delivery_id, self.subscription_id))
        if confirmed:
            await self._confirm(connection, delivery_id)
        else:
            await connection.writable()

    # --- what the connection and the link call ----------------------------------------------

    def deliver(
        self, correlation_id: int, qos: int, topic: str, payload: bytes, now: float
    ) -> None:
        """Take a message that the broker sent."""
        if self._under_way:
            self._under_way -= 1
        if self._end is None:
            delivery_id = correlation_id if qos and correlation_id < OWN_IDS_FROM else None
            self._inbox.put(BlipMessage(self, delivery_id, topic, payload, now))

    def delivered(self) -> None:
        """Wake as many as there are messages for."""
        self._inbox.wake()
        if self._pushing:
            self._top_up()

    def take_refusal(self, correlation_id: int, refusal: Refusal) -> bool:
        """Take a NACK to an acknowledgement, a POLL or a CREDIT."""
        if correlation_id in self._confirming:
            self._confirming[correlation_id] = refusal
        elif correlation_id < OWN_IDS_FROM:
            self._stale(correlation_id, refusal.text, confirmed=False)
        elif correlation_id == self._probe_id:
            self._probe_refusal = refusal
        elif refusal.code == _NOT_FOUND and self._connection is not None:
            # One way leads to a new subscription: that of a connection being prepared.
            self._connection.abort("the subscription is gone")
        else:
            log.warning("refused by the broker: %d %s", refusal.code, refusal.text)
        return True

    async def prepare(self, connection: BlipConnection) -> None:
        """Subscribe on a new connection, or resume."""
        self._under_way = 0
        self._hung_up = False
        if self.subscription_id == 0:
            await self._create(connection)
            if not self._traits.known:
                await self._probe(connection)
        elif not await self._probe(connection):
            if not self._ours and not self._opened:
                raise SubscriptionGone(self.topic, _NOT_FOUND, "unknown subscription")
            await self._replace(connection)
        for subscription_id, delivery_id in self._late_acks:
            if subscription_id == self.subscription_id:
                connection.send(messages.encode_ack(delivery_id, subscription_id))
        self._late_acks.clear()
        self._connection = connection
        if self._pushing:
            self._top_up()
        self._inbox.wake_all()  # there is a connection to ask, or another way to

    def went_down(self) -> None:
        """Forget what will come again."""
        self._connection = None
        self._inbox.forget_deliveries()

    # --- inside -----------------------------------------------------------------------------

    async def _open(self) -> None:
        while True:
            try:
                await self._link.open()
            except ConnectionLost:
                if not self._hung_up:
                    raise
            else:
                return

    @property
    def _is_pushed_to(self) -> bool:
        return self._pushing and self._traits.credit

    async def _wait(self) -> None:
        """Wait until a message is here; ask for it in the way that the broker knows."""
        self._check_open()
        if not self._pushing:
            self._pushing = True
            self._top_up()
        backoff = Backoff(POLL_DELAY_S, POLL_DELAY_MAX_S)
        while not self._inbox:
            if self._traits.credit or self._connection is None:
                await self._inbox.arrival(None)
            else:
                async with self._asking:
                    if not self._inbox:
                        await self._ask(self._connection, self._window.size)
                if not self._inbox:
                    await self._inbox.arrival(backoff.next_delay())
            self._check_open()

    def _next(self) -> BlipMessage:
        message = self._inbox.pop()
        if self._pushing and self._window.due(self._under_way + len(self._inbox)):
            self._window.taken(asyncio.get_running_loop().time() - message.received_at)
            self._top_up()
        return message

    def _top_up(self) -> None:
        self._give(self._window.due(self._under_way + len(self._inbox)))

    def _give(self, count: int) -> None:
        connection = self._connection
        if count and connection is not None and self._traits.credit and self._end is None:
            self._under_way += count
            connection.send(
                messages.encode_credit(connection.next_id(), self.subscription_id, count)
            )
            connection.flush()  # the broker works while the handler does

    async def _collect(self, count: int, deadline: float) -> None:
        """Ask for what the broker has, up to *count* messages in all."""
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout_at(max(deadline, clock() + FETCH_GRACE_S)), self._asking:
                while self._connection is not None and not self._is_pushed_to:
                    before = len(self._inbox)
                    missing = min(count - before, POLLS_PER_FENCE_MAX)
                    if missing > 0:
                        await self._ask(self._connection, missing)
                    if len(self._inbox) < before + missing or missing <= 0:
                        return
        except TimeoutError:
            return  # the answers are not lost: they will be in the inbox

    async def _ask(self, connection: BlipConnection, count: int) -> None:
        """Ask for *count* messages; return when they are here, or there are no more."""
        for _ in range(count):
            connection.send(messages.encode_poll(connection.next_id(), self.subscription_id))
        await connection.fence()[1]

    async def _create(self, connection: BlipConnection) -> None:
        answer = await connection.ask(
            lambda cid: messages.encode_subscribe(cid, self.topic, self.qos)
        )
        if answer is None:
            raise connection.lost()
        if isinstance(answer, Refusal):
            raise SubscriptionRefused(self.topic, answer.code, answer.text)
        assert isinstance(answer, int)
        self.subscription_id = answer

    async def _replace(self, connection: BlipConnection) -> None:
        gone = self.subscription_id
        await self._create(connection)
        if not self._opened:
            return  # nobody has seen it
        log.warning(
            "subscription %d to %r is gone; %d takes its place, with a gap in between",
            gone,
            self.topic,
            self.subscription_id,
        )
        if self._on_gap is not None:
            self._health.call_back(self._on_gap, gone, self.subscription_id)

    async def _probe(self, connection: BlipConnection) -> bool:
        """Tell whether the broker knows the subscription; find out whether it knows CREDIT."""
        self._probe_id = connection.next_id()
        self._probe_refusal = None
        if self._traits.credit:
            connection.send(messages.encode_credit(self._probe_id, self.subscription_id, 0))
        else:
            connection.send(messages.encode_poll(self._probe_id, self.subscription_id))
        if not await connection.fence()[1]:
            self._hung_up = connection.ended_by_peer and self._traits.hung_up()
            raise connection.lost()
        self._traits.answered()
        return self._probe_refusal is None

    async def _confirm(self, connection: BlipConnection, delivery_id: int) -> None:
        self._confirming[delivery_id] = None
        try:
            reached = await connection.fence()[1]
        finally:
            refusal = self._confirming.pop(delivery_id)
        if refusal is not None:
            self._stale(delivery_id, refusal.text, confirmed=True)
        elif not reached:
            raise connection.lost()

    @staticmethod
    def _stale(delivery_id: int, text: str, *, confirmed: bool) -> None:
        if confirmed:
            raise StaleDelivery(delivery_id, text)
        log.warning("delivery %d cannot be acknowledged: %s", delivery_id, text)

    async def _leave(self, connection: BlipConnection) -> None:
        if self._keep or not self._traits.credit:
            await connection.settle()
            return
        answer = await connection.ask(
            lambda cid: messages.encode_unsubscribe(cid, self.subscription_id)
        )
        if isinstance(answer, Refusal):
            log.warning("unsubscribing was refused: %d %s", answer.code, answer.text)

    def _left_behind(self) -> None:
        if not self._keep:
            log.warning(
                "subscription %d stays until its lease ends: there is no connection",
                self.subscription_id,
            )
