"""The inbox of a subscription, and its credit window."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.client.deliveries import Message
from braidmq.client.inbox import WAITED_LONG_S, WAITED_SOON_S, CreditWindow, Inbox

pytestmark = pytest.mark.asyncio


class Plain(Message):
    """A message that belongs to no strand."""

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


async def test_messages_leave_in_the_order_they_arrived() -> None:
    """Ids play no part in the order."""
    assert [3, 1, None, 2] == ids_in(inbox_of(3, 1, None, 2))


async def test_a_delivery_is_queued_at_most_once() -> None:
    """A redelivery of a message still in the inbox is dropped; QoS 0 messages have no id."""
    assert [1, 2, None, None] == ids_in(inbox_of(1, 2, 1, None, None, 2))


async def test_a_delivery_that_was_taken_may_be_redelivered() -> None:
    """The inbox remembers only the ids it still holds."""
    inbox = inbox_of(1)
    inbox.pop()
    inbox.put(Plain(1))

    assert [1] == ids_in(inbox)


async def test_every_delivery_is_queued_where_ids_are_not_unique() -> None:
    """On strands where publishers choose the ids, two messages may share one."""
    inbox: Inbox[Plain] = Inbox(once=False)
    for one in (1, 2, 1):
        inbox.put(Plain(one))

    assert [1, 2, 1] == ids_in(inbox)


async def test_deliveries_that_the_broker_will_repeat_are_dropped() -> None:
    """After a lost connection the broker redelivers them, but never QoS 0 messages."""
    inbox = inbox_of(1, None, 2)
    inbox.forget_deliveries()
    inbox.put(Plain(1))

    assert [None, 1] == ids_in(inbox)


async def waiting(inbox: Inbox[Plain], count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(inbox.arrival(None)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_as_many_waiters_are_woken_as_there_are_messages() -> None:
    """Two messages wake the two of three tasks that have waited longest."""
    inbox = inbox_of(1, 2)
    tasks = await waiting(inbox, 3)
    inbox.wake()
    await asyncio.gather(*tasks[:2])

    assert not tasks[2].done()
    inbox.wake_all()
    await tasks[2]


async def test_a_cancelled_task_passes_its_wake_up_on() -> None:
    """A task cancelled after it was woken and before it ran does not swallow the wake-up."""
    inbox = inbox_of(1)
    first, second = await waiting(inbox, 2)
    inbox.wake()
    first.cancel()
    await second

    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_cancelled_waiter_is_not_woken() -> None:
    """A task cancelled before a wake-up does not take the next waiter's turn."""
    inbox = inbox_of(1)
    first, second = await waiting(inbox, 2)
    first.cancel()
    inbox.wake()
    await second

    assert first.cancelled() or first.cancelling()


async def test_waiting_ends_at_its_timeout() -> None:
    """A timeout is no error; the inbox may still be empty."""
    inbox = inbox_of()
    await inbox.arrival(0.001)

    assert 0 == len(inbox)


def window_of(size: int) -> CreditWindow:
    """Return a window that has grown to *size*."""
    window = CreditWindow(size)
    while window.size < size:
        window.taken(0.0)
    return window


async def test_the_first_credit_is_one() -> None:
    """A handler counts as slow until it has shown its speed."""
    assert 1 == CreditWindow(256).due(0)


async def test_a_window_may_start_larger_but_never_above_its_limit() -> None:
    """Where granting credit is expensive, the first grant is larger."""
    assert [16, 4] == [CreditWindow(256, begin=16).size, CreditWindow(4, begin=16).size]


async def test_a_window_grows_to_the_size_of_a_waiting_request() -> None:
    """It stops at the prefetch, and never shrinks."""
    window = CreditWindow(8, begin=2)
    sizes = []
    for wanted in (1, 5, 3, 9):
        window.reach(wanted)
        sizes.append(window.size)

    assert [2, 5, 5, 8] == sizes


async def test_credit_is_granted_in_halves_of_the_window() -> None:
    """No credit is due until half of the window is used up; then all of the missing part is."""
    window = window_of(8)

    assert [8, 7, 6, 5, 4, 0, 0, 0, 0] == [window.due(held) for held in range(9)]


async def test_a_window_of_one_is_refilled_when_it_is_empty() -> None:
    """The smallest window does not stall."""
    assert [1, 0] == [CreditWindow(1).due(held) for held in range(2)]


async def test_a_fast_handler_gets_a_larger_window_up_to_the_prefetch() -> None:
    """The window doubles while messages are taken quickly."""
    window = CreditWindow(6)
    sizes = []
    for _ in range(4):
        window.taken(WAITED_SOON_S / 2)
        sizes.append(window.size)

    assert [2, 4, 6, 6] == sizes


async def test_a_slow_handler_gets_a_smaller_window_down_to_one() -> None:
    """A message that waited long is close to its redelivery: fewer should wait."""
    window = window_of(4)
    sizes = []
    for _ in range(3):
        window.taken(WAITED_LONG_S * 2)
        sizes.append(window.size)

    assert [2, 1, 1] == sizes


async def test_a_medium_wait_leaves_the_window_as_it_is() -> None:
    """Between the two thresholds the window has the right size."""
    window = window_of(4)
    window.taken((WAITED_SOON_S + WAITED_LONG_S) / 2)

    assert 4 == window.size


@given(st.integers(1, 500), st.lists(st.floats(0.0, 3.0), max_size=30), st.integers(0, 500))
async def test_credit_never_exceeds_the_prefetch(
    prefetch: int, waits: list[float], held: int
) -> None:
    """Whatever the handler's speed, credit fills the window and no more."""
    window = CreditWindow(prefetch)
    for waited in waits:
        window.taken(waited)

    assert 1 <= window.size <= prefetch
    assert window.due(held) == 0 or held + window.due(held) == window.size
