"""How many messages to have ahead of the handler."""

from hypothesis import given
from hypothesis import strategies as st

from braidmq.client.credit import WAITED_LONG_S, WAITED_SOON_S, CreditWindow


def window_of(size: int) -> CreditWindow:
    """Return a window that has grown to *size*."""
    window = CreditWindow(size)
    while window.size < size:
        window.taken(0.0)
    return window


def test_the_first_credit_is_one() -> None:
    """Until the handler has shown its speed, it is taken for slow."""
    assert 1 == CreditWindow(256).due(0)


def test_a_window_may_begin_larger_and_never_above_its_limit() -> None:
    """Where asking is dear, more is asked for before the handler's speed is known."""
    assert [16, 4] == [CreditWindow(256, begin=16).size, CreditWindow(4, begin=16).size]


def test_a_window_grows_to_what_somebody_waits_for() -> None:
    """As far as the prefetch allows, and never smaller."""
    window = CreditWindow(8, begin=2)
    sizes = []
    for wanted in (1, 5, 3, 9):
        window.reach(wanted)
        sizes.append(window.size)

    assert [2, 5, 5, 8] == sizes


def test_credit_goes_out_in_halves() -> None:
    """Nothing is due until half of the window is used up; then all that is missing."""
    window = window_of(8)

    assert [8, 7, 6, 5, 4, 0, 0, 0, 0] == [window.due(held) for held in range(9)]


def test_a_window_of_one_is_filled_when_it_is_empty() -> None:
    """The smallest window still moves."""
    assert [1, 0] == [CreditWindow(1).due(held) for held in range(2)]


def test_a_fast_handler_gets_a_larger_window_up_to_the_prefetch() -> None:
    """The window doubles while messages are taken soon."""
    window = CreditWindow(6)
    sizes = []
    for _ in range(4):
        window.taken(WAITED_SOON_S / 2)
        sizes.append(window.size)

    assert [2, 4, 6, 6] == sizes


def test_a_slow_handler_gets_a_smaller_window_down_to_one() -> None:
    """A message that waited long is close to being sent again: fewer should wait."""
    window = window_of(4)
    sizes = []
    for _ in range(3):
        window.taken(WAITED_LONG_S * 2)
        sizes.append(window.size)

    assert [2, 1, 1] == sizes


def test_in_between_nothing_changes() -> None:
    """Between soon and long the window is right."""
    window = window_of(4)
    window.taken((WAITED_SOON_S + WAITED_LONG_S) / 2)

    assert 4 == window.size


@given(st.integers(1, 500), st.lists(st.floats(0.0, 3.0), max_size=30), st.integers(0, 500))
def test_what_is_held_never_exceeds_the_prefetch(
    prefetch: int, waits: list[float], held: int
) -> None:
    """Whatever the handler did, credit fills the window and no more."""
    window = CreditWindow(prefetch)
    for waited in waits:
        window.taken(waited)

    assert 1 <= window.size <= prefetch
    assert window.due(held) == 0 or held + window.due(held) == window.size
