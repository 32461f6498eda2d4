"""Queue policies."""

from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker import policy
from braidmq.broker.policy import Policy

declared = st.tuples(
    st.integers(0, 3),
    st.integers(0, 2**40),
    st.integers(0, 3),
    st.integers(0, 2**50),
    st.booleans(),
    st.text(max_size=9),
    st.integers(0, 2**31),
    st.booleans(),
).map(list)


def test_the_default_policy() -> None:
    """RoundRobin, durable, unbounded, no time to live, three attempts, with dead letters."""
    assert [policy.ROUND_ROBIN, 0, policy.REDIRECT_TO_DLQ, 0, True, "", 3, True] == (
        Policy().values()
    )


@given(declared)
def test_a_policy_survives_conversion_to_values(values: list[int | str | bool]) -> None:
    """Snapshots keep policies as values, and policies are compared by their values."""
    again = policy.of_values(values).values()

    assert values == again
    assert [type(value) for value in values] == [type(value) for value in again]


def test_the_policy_for_dead_letters_has_no_limits() -> None:
    """No limit on size, time or attempts, and no dead letters of its own."""
    letters = policy.for_dead_letters()

    assert (0, 0, 0, False) == (
        letters.max_size,
        letters.ttl_us,
        letters.max_attempts,
        letters.dead_letters,
    )
    assert letters.durable


def test_modes_and_strategies_have_the_protocols_numbers() -> None:
    """Clients send them as integers, in the order in which the specification lists them."""
    assert [0, 1, 2, 3] == [
        policy.ROUND_ROBIN,
        policy.FAN_OUT_WITH_ACK,
        policy.FAN_OUT_WITHOUT_ACK,
        policy.PRIORITY_BASED,
    ]
    assert [0, 1, 2, 3] == [
        policy.DROP_OLDEST,
        policy.DROP_NEWEST,
        policy.BLOCK_PUBLISHER,
        policy.REDIRECT_TO_DLQ,
    ]
