"""What can be chosen about a client."""

from dataclasses import fields

import pytest

from braidmq.client.errors import InvalidArgument
from braidmq.client.options import QUMBED_OPTIONS, Choices, Options


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
    with pytest.raises(InvalidArgument, match=f"{name} is seconds above 0, not {value}"):
        Options(**{name: value})  # type: ignore[arg-type] # the name is a parameter of this test


def test_reconnecting_can_be_switched_off() -> None:
    """False is a choice, not a time of 0."""
    assert not Options(reconnect=False).reconnect


def test_a_private_key_is_not_shown() -> None:
    """What is printed in passing holds no secret."""
    assert "secret" not in repr(Options(private_key="secret"))


def test_options_of_one_strand_are_options() -> None:
    """And by default they say nothing."""
    assert set(QUMBED_OPTIONS) <= {option.name for option in fields(Options)}
    assert not any(getattr(Options(), name) for name in QUMBED_OPTIONS)


def test_the_choices_are_the_options() -> None:
    """What can be passed on and what is understood have the same names."""
    assert {option.name for option in fields(Options)} == set(Choices.__annotations__)
