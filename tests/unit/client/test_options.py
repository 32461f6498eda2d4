"""What can be chosen about a client."""

from dataclasses import fields

import pytest

from braidmq.client.errors import InvalidArgument
from braidmq.client.options import Choices, Options, Priority


@pytest.mark.parametrize(
    "name",
    [
        "connect_timeout",
        "answer_timeout",
        "offline_timeout",
        "keepalive",
        "close_timeout",
        "reconnect_delay",
        "reconnect_delay_max",
    ],
)
@pytest.mark.parametrize("value", [0, -1.0])
def test_times_are_above_zero(name: str, value: float) -> None:
    """No time means nothing when it is 0, so 0 is a mistake."""
    with pytest.raises(
        InvalidArgument, match=f"{name} must be more than 0 seconds, not {value}"
    ):
        Options(**{name: value})  # type: ignore[arg-type] # the name is a parameter of this test


def test_reconnecting_can_be_switched_off() -> None:
    """False is a choice, not a time of 0."""
    assert not Options(reconnect=False).reconnect


def test_a_private_key_is_not_shown() -> None:
    """What is printed in passing holds no secret."""
    assert "secret" not in repr(Options(private_key="secret"))


def test_the_choices_are_the_options() -> None:
    """What can be passed on and what is understood have the same names."""
    assert {option.name for option in fields(Options)} == set(Choices.__annotations__)


def test_priorities_are_numbers_in_order() -> None:
    """A priority may be given by its name or as what it is."""
    assert [0, 1, 2, 3] == [
        Priority.LOW,
        Priority.NORMAL,
        Priority.HIGH,
        Priority.CRITICAL,
    ]
