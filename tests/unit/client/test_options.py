"""Options of a client."""

import math
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
@pytest.mark.parametrize("value", [0, -1.0, math.nan])
def test_a_duration_must_be_above_zero(name: str, value: float) -> None:
    """0 does not mean "off" or "unlimited" anywhere, so it is an error."""
    with pytest.raises(
        InvalidArgument, match=f"{name} must be more than 0 seconds, not {value}"
    ):
        Options(**{name: value})  # type: ignore[arg-type] # the name is a parameter of this test


def test_reconnecting_can_be_switched_off() -> None:
    """By its own flag, not by a delay of 0."""
    assert not Options(reconnect=False).reconnect


def test_a_private_key_is_not_shown() -> None:
    """A repr may end up in a log, so it holds no secret."""
    assert "secret" not in repr(Options(private_key="secret"))


def test_the_keywords_of_connect_are_the_options() -> None:
    """The typed keywords and the fields of the options have the same names."""
    assert {option.name for option in fields(Options)} == set(Choices.__annotations__)


def test_priorities_are_numbers_in_order() -> None:
    """A priority may be given as a member or as its number."""
    assert [0, 1, 2, 3] == [
        Priority.LOW,
        Priority.NORMAL,
        Priority.HIGH,
        Priority.CRITICAL,
    ]
