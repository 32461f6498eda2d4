"""A subscription over the Blip strand, on a connection of its own.

Messages are requested with CREDIT: the broker pushes as many as it was given credit for. A
broker that knows only the frames of the specification hangs up at the first CREDIT; the client
then requests messages with POLL and a fence, which tells "nothing there" from "not yet
answered".

The subscription outlives its connection: on the next one it is resumed by its id, and the
broker redelivers what was not acknowledged.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from braidmq.client.blip.connection import OWN_IDS_FROM, BlipConnection, Receiver
from braidmq.client.deliveries import Message
from braidmq.client.errors import Closed, ConnectionLost, SubscriptionGone
from braidmq.client.inbox import CreditWindow, Inbox
from braidmq.client.link import Dialer, backoff
from braidmq.client.options import SubscribeOptions
from braidmq.client.replies import Refusal
from braidmq.client.subscription import (
    FETCH_GRACE_S,
    Consumer,
    Subscription,
    report_stale,
)
from braidmq.wire.blip import messages

CREDIT_STRIKES_MAX: Final = 2
"""Connections that end at the first CREDIT before the client concludes that the broker does not
know it. One alone may be a coincidence, such as a restart."""

POLL_DELAY_S: Final = 0.002
POLL_DELAY_MAX_S: Final = 0.25
"""Between polls of a broker without CREDIT that has no messages."""

POLLS_PER_FENCE_MAX: Final = 256
"""Polls that `fetch` sends at once."""

_NOT_FOUND: Final = 404

log = logging.getLogger("braidmq.client")


class Traits:
    """What a client has found out about its broker, shared by all of its subscriptions."""

    def __init__(self) -> None:
        self.credit = True
        self._proven = False
        self._strikes = 0

    @property
    def known(self) -> bool:
        """Whether it is settled that the broker knows CREDIT, or that it does not."""
        return self._proven or not self.credit

    def answered(self) -> None:
        """Note that the broker answered after a CREDIT frame."""
        self._proven = self.credit

    def hung_up(self) -> bool:
        """Note that it hung up instead; return whether CREDIT may be the reason."""
        if self.known:
            return False
        self._strikes += 1
        self.credit = self._strikes < CREDIT_STRIKES_MAX
        return True


@dataclass(slots=True, eq=False)
class Confirmation:
    """An acknowledgement on *connection* whose outcome is awaited."""

    connection: BlipConnection
    waiters: int = 0
    refusal: Refusal | None = None


class BlipMessage(Message):
    """A message of a Blip subscription."""

    __slots__ = ("_subscription", "received_at", "subscription_id")

    strand = "blip"
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
        self._settled = delivery_id is None  # QoS 0 is not acknowledged

    def _ack(self, *, confirmed: bool) -> Awaitable[None]:
        return self._subscription.acknowledge(self, confirmed=confirmed)


class BlipSubscription(Consumer[BlipConnection, BlipMessage], Receiver):
    """A subscription of a :class:`~braidmq.client.blip.strand.BlipStrand`."""

    def __init__(
        self,
        topic: str,
        options: SubscribeOptions,
        *,
        dialer: Dialer[BlipConnection, Receiver],
        traits: Traits,
        on_closed: Callable[[Subscription], None],
    ) -> None:
        super().__init__(
            topic,
            qos=options.qos,
            inbox=Inbox(),
            dialer=dialer,
            on_closed=on_closed,
        )
        self.subscription_id = options.subscription_id or 0
        self._ours = not self.subscription_id  # created here, not resumed by its id
        self._keep = not self._ours if options.keep is None else options.keep
        self._on_gap = options.on_gap
        self._traits = traits
        # Until the first iteration no credit is given: a program that only calls `fetch` gets
        # the messages it asks for, and none that it leaves waiting here.
        self._pushing = False
        self._hung_up = False  # the broker closed the connection, perhaps because of a CREDIT
        self._window = CreditWindow(options.prefetch)
        self._under_way = 0  # credit that was given and not yet used
        # One poller at a time: two would each ask for what both are missing.
        self._asking = asyncio.Lock()
        self._confirming: dict[int, Confirmation] = {}
        self._late_acks: list[tuple[int, int]] = []  # subscription and delivery
        self._probe_id = 0
        self._probe_refusal: Refusal | None = None

    # --- called by messages, the connection and the link -----------------------------------

    async def acknowledge(self, message: BlipMessage, *, confirmed: bool) -> None:
        """Send an acknowledgement, or keep it until there is a connection."""
        delivery_id = message.id
        assert delivery_id is not None
        connection = self._connection
        if connection is None:
            if self._end is not None:
                raise Closed("the subscription was closed")
            if not confirmed:
                # A delivery belongs to its subscription, not to the connection that brought
                # it: acknowledged on the next connection, it is not redelivered.
                self._late_acks.append((message.subscription_id, delivery_id))
                return
            connection = await self._link.ready()
        if message.subscription_id != self.subscription_id:
            report_stale(delivery_id, "its subscription was replaced", confirmed=confirmed)
            return
        # One frame for a message and its redelivery: both have the same id, so that the NACK
        # to a second one would be taken for the answer to the first.
        under_way = self._confirming.get(delivery_id)
        if under_way is None or under_way.connection is not connection:
            under_way = None
            connection.send(messages.encode_ack(delivery_id, self.subscription_id))
        if confirmed:
            await self._confirm(under_way or Confirmation(connection), delivery_id)
        else:
            await connection.writable()

    def deliver(
        self, correlation_id: int, qos: int, topic: str, payload: bytes, now: float
    ) -> None:
        """Take a message that the broker sent."""
        if self._under_way:  # not so for the answer to a POLL
            self._under_way -= 1
        if self._end is None:
            delivery_id = correlation_id if qos and correlation_id < OWN_IDS_FROM else None
            self._inbox.put(BlipMessage(self, delivery_id, topic, payload, now))

    def delivered(self) -> None:
        """Wake one waiter for each message, and give credit for more."""
        super().delivered()
        if self._pushing:
            self._give()

    def take_refusal(self, correlation_id: int, refusal: Refusal) -> bool:
        """Take a NACK to an acknowledgement, a POLL or a CREDIT."""
        if correlation_id in self._confirming:
            self._confirming[correlation_id].refusal = refusal
        elif correlation_id < OWN_IDS_FROM:
            report_stale(correlation_id, refusal.text, confirmed=False)
        elif correlation_id == self._probe_id:
            self._probe_refusal = refusal
        elif refusal.code == _NOT_FOUND and self._connection is not None:
            # It ended while the connection was up: another client of the same principal may
            # have removed it. Only `prepare` makes a subscription, so force a new connection.
            self._connection.abort("the subscription is gone")
        else:
            log.warning("refused by the broker: %s %s", refusal.code, refusal.text)
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
            # A caller that asked to resume must learn that there is nothing to resume. Later,
            # a replacement and `on_gap` serve it better than an end would.
            if not self._ours and not self._opened:
                raise SubscriptionGone(self.topic, _NOT_FOUND, "unknown subscription")
            await self._replace(connection)
        for subscription_id, delivery_id in self._late_acks:
            if subscription_id == self.subscription_id:
                connection.send(messages.encode_ack(delivery_id, subscription_id))
        self._late_acks.clear()
        self._connection = connection
        if self._pushing:
            self._give()
        self._inbox.wake_all()  # waiters can poll now, or must: CREDIT may have been ruled out

    def went_down(self) -> None:
        """Drop what the broker will redeliver."""
        self._connection = None
        self._inbox.forget_deliveries()

    # --- inside -----------------------------------------------------------------------------

    async def _open(self) -> None:
        # A broker without CREDIT hangs up at the probe, CREDIT_STRIKES_MAX times at most; the
        # caller, who waits for the first connection, should not see that.
        while True:
            try:
                await self._link.open()
            except ConnectionLost:
                if not self._hung_up:
                    raise
            else:
                return

    async def _gather(self, count: int, deadline: float) -> None:
        """Ask for *count* messages, and wait for the first until *deadline*."""
        clock = asyncio.get_running_loop().time
        delays = backoff(POLL_DELAY_S, POLL_DELAY_MAX_S)
        while True:
            self._check_open()
            await self._collect(count, deadline)
            left = deadline - clock()
            if self._inbox or left <= 0:
                return
            if self._traits.credit or self._connection is None:
                if not self._under_way:
                    self._give(1)  # so that the first message is pushed
                await self._inbox.arrival(left)
            else:
                await self._inbox.arrival(min(left, next(delays)))

    async def _wait(self) -> None:
        """Wait until a message is here; ask for it in the way that the broker knows."""
        self._check_open()
        if not self._pushing:
            self._pushing = True
            self._give()
        delays = backoff(POLL_DELAY_S, POLL_DELAY_MAX_S)
        while not self._inbox:
            if self._traits.credit or self._connection is None:
                await self._inbox.arrival(None)
            else:
                async with self._asking:
                    if not self._inbox:
                        await self._ask(self._connection, self._window.size)
                if not self._inbox:
                    await self._inbox.arrival(next(delays))
            self._check_open()

    def _next(self) -> BlipMessage:
        message = self._inbox.pop()
        # The handler's speed is judged only when credit is due, once for half a window.
        if self._pushing and self._window.due(self._under_way + len(self._inbox)):
            self._window.taken(asyncio.get_running_loop().time() - message.received_at)
            self._give()
        return message

    def _give(self, count: int = 0) -> None:
        """Give the broker credit: for *count* messages, or for what the window lacks."""
        count = count or self._window.due(self._under_way + len(self._inbox))
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
                while self._connection is not None:
                    before = len(self._inbox)
                    missing = min(count - before, POLLS_PER_FENCE_MAX)
                    if missing <= 0 or (self._pushing and self._traits.credit):
                        return  # what the broker has is pushed anyway
                    await self._ask(self._connection, missing)
                    if len(self._inbox) < before + missing:
                        return
        except TimeoutError:
            return  # nothing is lost: late answers go to the inbox

    async def _ask(self, connection: BlipConnection, count: int) -> None:
        """Ask for *count* messages; return when they are here, or there are no more."""
        for _ in range(count):
            connection.send(messages.encode_poll(connection.next_id(), self.subscription_id))
        await connection.fence()[1]

    async def _create(self, connection: BlipConnection) -> None:
        answer = await connection.ask(
            lambda number: messages.encode_subscribe(number, self.topic, self.qos),
            self._refused,
        )
        assert isinstance(answer, int)
        self.subscription_id = answer

    async def _replace(self, connection: BlipConnection) -> None:
        gone = self.subscription_id
        await self._create(connection)
        if not self._opened:
            return  # the caller has not seen the old one
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
        # CREDIT 0 asks for nothing. Without CREDIT only a POLL will do, and the message that
        # it may bring goes to the inbox like any other.
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

    async def _confirm(self, confirmation: Confirmation, delivery_id: int) -> None:
        connection = confirmation.connection
        self._confirming[delivery_id] = confirmation
        confirmation.waiters += 1
        try:
            reached = await connection.fence()[1]
        finally:
            confirmation.waiters -= 1
            # Not before the last: the one that sent it may be cancelled before the answer.
            is_current = self._confirming.get(delivery_id) is confirmation
            if is_current and not confirmation.waiters:
                del self._confirming[delivery_id]
        if confirmation.refusal is not None:
            report_stale(delivery_id, confirmation.refusal.text, confirmed=True)
        elif not reached:
            raise connection.lost()

    async def _leave(self, connection: BlipConnection) -> None:
        if self._keep or not self._traits.credit:  # UNSUBSCRIBE is an extension, as CREDIT is
            await connection.settle()
            return
        await self._unsubscribe(
            connection,
            lambda number: messages.encode_unsubscribe(number, self.subscription_id),
        )

    def _left_behind(self) -> None:
        if not self._keep:
            log.warning(
                "subscription %d stays until its lease ends: there is no connection",
                self.subscription_id,
            )
