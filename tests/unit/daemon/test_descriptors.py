"""File descriptors: the limit that is asked for, and the connections that fit within it."""

import resource

import pytest
from structlog.testing import capture_logs

from braidmq.daemon.descriptors import (
    CONNECTIONS_MIN,
    FLIGHT_CONNECTIONS_MAX,
    RESERVED,
    flight_connections,
    raise_limit,
    within_descriptors,
)

FITTING = {
    "all of them": (10_000, 10_000 + RESERVED, 10_000),
    "one fewer": (10_000, 9_999 + RESERVED, 9_999),
    "without a limit": (10_000, resource.RLIM_INFINITY, 10_000),
    "a usual limit": (10_000, 1_024, 1_024 - RESERVED),
    "fewer than the reserve": (10_000, 256, 16),
    "few connections are wanted": (5, 64, 5),
}


@pytest.mark.parametrize(("wanted", "soft", "fitting"), FITTING.values(), ids=FITTING)
def test_connections_leave_a_reserve(
    monkeypatch: pytest.MonkeyPatch, wanted: int, soft: int, fitting: int
) -> None:
    """Fewer than are wanted is said, with the number and what to do."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    with capture_logs() as lines:
        assert fitting == within_descriptors(wanted)

    said = [str(line["event"]) for line in lines]
    assert (fitting < wanted) == bool(said)
    for line in said:
        assert f"limits.connections is {wanted}" in line
        assert f"accepts {fitting} connections" in line
        assert "LimitNOFILE" in line


@pytest.mark.parametrize(
    ("soft", "flight", "fitting"),
    [
        (resource.RLIM_INFINITY, FLIGHT_CONNECTIONS_MAX, 10_000),
        (65_536, FLIGHT_CONNECTIONS_MAX, 10_000),
        (10_000, 625, 10_000 - RESERVED - 2 * 625),
        (8, 1, CONNECTIONS_MIN),
    ],
)
def test_connections_of_flight_have_room_for_their_way_to_grpc(
    monkeypatch: pytest.MonkeyPatch, soft: int, flight: int, fitting: int
) -> None:
    """Each takes two descriptors besides its own."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))

    assert flight == flight_connections()
    assert fitting == within_descriptors(10_000, with_flight=True)


def test_the_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And left alone where it is there already."""
    limits = [(256, 4_096), (4_096, 4_096)]
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits.pop(0))
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: set_to.append(to))
    raise_limit()
    raise_limit()

    assert [(4_096, 4_096)] == set_to
