"""Messages that wait for handlers, and handlers that wait for messages."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.client.deliveries import Message
from braidmq.client.inbox import WAITED_LONG_S, WAITED_SOON_S, CreditWindow, Inbox

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


def window_of(size: int) -> CreditWindow:
    """Return a window that has grown to *size*."""
    window = CreditWindow(size)
    while window.size < size:
        window.taken(0.0)
    return window


async def test_the_first_credit_is_one() -> None:
    """Until the handler has shown its speed, it is taken for slow."""
    assert 1 == CreditWindow(256).due(0)


async def test_a_window_may_begin_larger_and_never_above_its_limit() -> None:
    """Where asking is dear, more is asked for before the handler's speed is known."""
    assert [16, 4] == [CreditWindow(256, begin=16).size, CreditWindow(4, begin=16).size]


async def test_a_window_grows_to_what_somebody_waits_for() -> None:
    """As far as the prefetch allows, and never smaller."""
    window = CreditWindow(8, begin=2)
    sizes = []
    for wanted in (1, 5, 3, 9):
        window.reach(wanted)
        sizes.append(window.size)

    assert [2, 5, 5, 8] == sizes


async def test_credit_goes_out_in_halves() -> None:
    """Nothing is due until half of the window is used up; then all that is missing."""
    window = window_of(8)

    assert [8, 7, 6, 5, 4, 0, 0, 0, 0] == [window.due(held) for held in range(9)]


async def test_a_window_of_one_is_filled_when_it_is_empty() -> None:
    """The smallest window still moves."""
    assert [1, 0] == [CreditWindow(1).due(held) for held in range(2)]


async def test_a_fast_handler_gets_a_larger_window_up_to_the_prefetch() -> None:
    """The window doubles while messages are taken soon."""
    window = CreditWindow(6)
    sizes = []
    for _ in range(4):
        window.taken(WAITED_SOON_S / 2)
        sizes.append(window.size)

    assert [2, 4, 6, 6] == sizes


async def test_a_slow_handler_gets_a_smaller_window_down_to_one() -> None:
    """A message that waited long is close to being sent again: fewer should wait."""
    window = window_of(4)
    sizes = []
    for _ in range(3):
        window.taken(WAITED_LONG_S * 2)
        sizes.append(window.size)

    assert [2, 1, 1] == sizes


async def test_in_between_nothing_changes() -> None:
    """Between soon and long the window is right."""
    window = window_of(4)
    window.taken((WAITED_SOON_S + WAITED_LONG_S) / 2)

    assert 4 == window.size


@given(st.integers(1, 500), st.lists(st.floats(0.0, 3.0), max_size=30), st.integers(0, 500))
async def test_what_is_held_never_exceeds_the_prefetch(
    prefetch: int, waits: list[float], held: int
) -> None:
    """Whatever the handler did, credit fills the window and no more."""
    window = CreditWindow(prefetch)
    for waited in waits:
        window.taken(waited)

    assert 1 <= window.size <= prefetch
    assert window.due(held) == 0 or held + window.due(held) == window.size
