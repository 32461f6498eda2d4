"""Messages that wait for handlers, and handlers that wait for messages."""

import asyncio

import pytest

from braidmq.client.deliveries import Message
from braidmq.client.inbox import Inbox

pytestmark = pytest.mark.asyncio


class Plain(Message):
    """A message of no strand."""

    id: int | None

    def __init__(self, delivery_id: int | None) -> None:
        self.topic, self.payload, self.id, self.qos = "t", b"", delivery_id, 1

    async def _ack(self, *, confirmed: bool) -> None: ...


def inbox_of(*ids: int | None) -> Inbox[Plain]:
    inbox: Inbox[Plain] = Inbox()
    for one in ids:
        inbox.put(Plain(one))
    return inbox


def ids_in(inbox: Inbox[Plain]) -> list[int | None]:
    return [inbox.pop().id for _ in range(len(inbox))]


async def test_messages_come_out_in_order() -> None:
    """First come, first served."""
    assert [3, 1, None, 2] == ids_in(inbox_of(3, 1, None, 2))


async def test_a_delivery_waits_at_most_once() -> None:
    """Sent again before anyone has taken it, it is the same delivery; QoS 0 has no identity."""
    assert [1, 2, None, None] == ids_in(inbox_of(1, 2, 1, None, None, 2))


async def test_a_delivery_that_was_taken_may_come_again() -> None:
    """Only what waits is remembered."""
    inbox = inbox_of(1)
    inbox.pop()
    inbox.put(Plain(1))

    assert [1] == ids_in(inbox)


async def test_where_ids_are_not_unique_every_delivery_waits() -> None:
    """On strands whose publishers choose the ids, two messages may have the same."""
    inbox: Inbox[Plain] = Inbox(once=False)
    for one in (1, 2, 1):
        inbox.put(Plain(one))

    assert [1, 2, 1] == ids_in(inbox)


async def test_what_the_broker_sends_again_is_forgotten() -> None:
    """A broken connection brings deliveries back, but never QoS 0 messages."""
    inbox = inbox_of(1, None, 2)
    inbox.forget_deliveries()
    inbox.put(Plain(1))

    assert [None, 1] == ids_in(inbox)


async def waiting(inbox: Inbox[Plain], count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(inbox.arrival(None)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_as_many_are_woken_as_there_are_messages() -> None:
    """Two messages wake two of three, those who have waited longest."""
    inbox = inbox_of(1, 2)
    tasks = await waiting(inbox, 3)
    inbox.wake()
    await asyncio.gather(*tasks[:2])

    assert not tasks[2].done()
    inbox.wake_all()
    await tasks[2]


async def test_a_wake_up_is_not_lost_with_the_task_that_got_it() -> None:
    """Cancelled between being woken and running, it passes the wake-up on."""
    inbox = inbox_of(1)
    first, second = await waiting(inbox, 2)
    inbox.wake()
    first.cancel()
    await second

    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_cancelled_waiter_is_no_longer_woken() -> None:
    """Cancelled before being woken, it takes nobody's turn."""
    inbox = inbox_of(1)
    first, second = await waiting(inbox, 2)
    first.cancel()
    inbox.wake()
    await second

    assert first.cancelled() or first.cancelling()


async def test_waiting_ends_with_its_time() -> None:
    """A timeout is no error: nothing may have come."""
    inbox = inbox_of()
    await inbox.arrival(0.001)

    assert 0 == len(inbox)
