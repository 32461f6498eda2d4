"""Password checks: their order, their limits, and that neither tells which names exist."""

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from braidmq.server.access.checks import (
    ADDRESS_WAITING_MAX,
    ADDRESSES_MAX,
    FAILURES_MAX,
    FORGIVEN_US,
    LANE_MAX,
    LIMITED,
    REFUSAL_S,
    RIGHT,
    WAITING_MAX,
    WRONG,
    Attempt,
    Failures,
    PasswordChecks,
    network_of,
)

WAIT_S = 20.0
DECOY = "decoy"
HERE = "10.0.0.1"


class Bench:
    """Checks whose threads wait until the test lets each of them do one thing."""

    def __init__(self) -> None:
        self.now_us = 0
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.ordinary = threading.Semaphore(0)
        self.express = threading.Semaphore(0)
        self.verified: dict[str, list[str]] = {"ordinary": [], "express": []}
        self.answers: list[tuple[str, int]] = []
        self.checks = PasswordChecks(
            self._verify,
            decoy=DECOY,
            now_us=lambda: self.now_us,
            post=self.calls.put,
            after=lambda delay_s, call: self.timers.append((delay_s, call)),
        )

    def _verify(self, encoded: str, password: str) -> bool:
        is_express = "express" in threading.current_thread().name
        assert (self.express if is_express else self.ordinary).acquire(timeout=WAIT_S)
        self.verified["express" if is_express else "ordinary"].append(encoded)
        return encoded == password

    def ask(self, name: str, password: str, address: str = HERE, label: str = "") -> None:
        """Try a password; known names begin with `u`, and each has its name as password."""
        expected = name if name.startswith("u") else None
        label = label or name
        self.checks.ask(
            Attempt(name, password, expected, lambda out: self.answers.append((label, out))),
            address,
        )

    def turn(self) -> None:
        self.calls.get(timeout=WAIT_S)()

    def do(self, thread: str, count: int = 1) -> None:
        """Let a thread do some checks, and report them."""
        for _ in range(count):
            (self.express if thread == "express" else self.ordinary).release()
            self.turn()

    def close(self) -> None:
        self.checks.stop()
        for _ in range(4):
            self.ordinary.release()
            self.express.release()
        self.checks.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def test_a_right_password_does_not_wait_for_a_flood_of_wrong_ones(bench: Bench) -> None:
    """It is answered first, though it was asked for last."""
    for number in range(90):
        bench.ask(f"stranger {number}", "x")
    bench.ask("u1", "u1")
    bench.do("express")

    assert [("u1", RIGHT)] == bench.answers


def test_a_wrong_password_has_the_turn_and_the_work_of_an_unknown_name(bench: Bench) -> None:
    """The express thread knows before; the answer and its time do not tell."""
    for name in ("a", "u1", "b"):
        bench.ask(name, "wrong")
    bench.do("express")
    early = list(bench.answers)
    bench.do("ordinary", 3)

    assert [] == early
    assert [("a", WRONG), ("u1", WRONG), ("b", WRONG)] == bench.answers
    assert {"ordinary": 3 * [DECOY], "express": ["u1"]} == bench.verified


def test_with_nothing_before_it_a_password_is_checked_once(bench: Bench) -> None:
    """By the ordinary thread, right or wrong."""
    for password in ("u1", "wrong"):
        bench.ask("u1", password)
        bench.do("ordinary")
    bench.ask("a", "wrong")
    bench.do("ordinary")

    assert [("u1", RIGHT), ("u1", WRONG), ("a", WRONG)] == bench.answers
    assert {"ordinary": ["u1", "u1", DECOY], "express": []} == bench.verified


def test_an_attempt_whose_turn_comes_first_is_checked_there(bench: Bench) -> None:
    """It leaves the express lane: no password is checked twice."""
    bench.ask("a", "wrong")
    for name in ("u1", "u2", "u3"):
        bench.ask(name, name)
    bench.do("ordinary", 4)  # u1 is with the express thread, so its turn is for show
    bench.do("express")

    assert {"ordinary": [DECOY, DECOY, "u2", "u3"], "express": ["u1"]} == bench.verified
    assert {("u1", RIGHT), ("u2", RIGHT), ("u3", RIGHT)} == set(bench.answers[1:])


def test_a_turn_that_ends_before_the_express_check_waits_for_it(bench: Bench) -> None:
    """Its verdict is the password's."""
    for password in ("wrong", "u1"):
        bench.ask("a", "wrong")
        bench.ask("u1", password)
        bench.do("ordinary", 2)
        bench.do("express")

    assert [("a", WRONG), ("u1", WRONG), ("a", WRONG), ("u1", RIGHT)] == bench.answers


def test_addresses_take_turns(bench: Bench) -> None:
    """One that asks often delays itself."""
    for number in range(5):
        bench.ask(f"a{number}", "x", "10.0.0.1")
    bench.ask("b", "x", "10.0.0.2")
    bench.do("ordinary", 3)

    assert ["a0", "a1", "b"] == [name for name, _ in bench.answers]


@pytest.mark.parametrize(
    ("count", "addresses"), [(1 + ADDRESS_WAITING_MAX, 1), (1 + WAITING_MAX, WAITING_MAX)]
)
def test_an_attempt_above_the_limits_is_refused_later(
    bench: Bench, count: int, addresses: int
) -> None:
    """All after the same time, known name or not; a right one gets in before."""
    for number in range(count):
        bench.ask(f"a{number}", "x", f"10.0.0.{number % addresses}")
    for name, password in (("b", "x"), ("u1", "x"), ("u2", "u2")):
        bench.ask(name, password, "10.0.0.0")
    bench.do("express", 2)
    for _, refuse in bench.timers:
        refuse()

    assert [("u2", RIGHT), ("b", LIMITED), ("u1", LIMITED)] == bench.answers
    assert 3 * [REFUSAL_S] == [delay_s for delay_s, _ in bench.timers]


def test_failures_of_an_address_use_up_its_turns_until_they_are_forgiven(
    bench: Bench,
) -> None:
    """One a second; successes cost nothing, and other addresses have turns of their own."""
    for _ in range(FAILURES_MAX):
        bench.ask("a", "x")
        bench.do("ordinary")
    bench.ask("a", "x", label="limited")
    bench.ask("a", "x", "10.0.0.2", label="elsewhere")
    bench.do("ordinary")
    bench.now_us += FORGIVEN_US
    bench.ask("u1", "u1", label="forgiven")
    bench.do("ordinary")
    bench.ask("a", "x", label="last")
    bench.do("ordinary")
    bench.ask("a", "x", label="limited again")

    assert [("elsewhere", WRONG), ("forgiven", RIGHT), ("last", WRONG)] == bench.answers[-3:]
    assert 2 == len(bench.timers)


def test_a_name_keeps_its_newest_attempts_in_express(bench: Bench) -> None:
    """Whoever floods under a user's own name does not keep the user waiting behind them."""
    bench.ask("a", "x", "10.0.0.9")
    bench.ask("u1", "wrong")  # with the express thread
    for _ in range(2 * LANE_MAX):
        bench.ask("u1", "wrong")
    bench.ask("u1", "u1", label="real")
    bench.ask("u2", "u2", label="other")
    bench.do("express", 2)

    assert [("real", RIGHT)] == bench.answers
    bench.do("express")
    assert [("real", RIGHT), ("other", RIGHT)] == bench.answers


def test_administrators_work_goes_before_waiting_attempts(bench: Bench) -> None:
    """And its result is passed on."""
    results: list[str] = []
    bench.ask("a", "x")
    for number in range(5):
        bench.ask(f"u{number}", "x")
    bench.checks.run(lambda: "done", results.append)
    bench.do("express")
    bench.turn()

    assert ["done"] == results


def test_after_stop_nothing_is_answered(bench: Bench) -> None:
    """Neither what runs, nor what waits, nor a refusal."""
    for number in range(30):
        bench.ask(f"u{number}", f"u{number}")
    bench.close()
    while not bench.calls.empty():
        bench.turn()
    for _, refuse in bench.timers:
        refuse()

    assert [] == bench.answers


def test_the_table_of_failures_is_bounded() -> None:
    """The addresses that failed longest ago are forgotten."""
    failures = Failures()
    for number in range(ADDRESSES_MAX + 3):
        failures.note(str(number), number)

    assert ADDRESSES_MAX == len(failures)
    assert [0, 1] == [failures.count(address, ADDRESSES_MAX) for address in ("0", "9")]


def test_a_clock_that_steps_back_forgives_nothing_and_breaks_nothing() -> None:
    """Failures are counted on."""
    failures = Failures()
    for now_us in (10 * FORGIVEN_US, 2 * FORGIVEN_US, 11 * FORGIVEN_US):
        failures.note(HERE, now_us)

    assert 2 == failures.count(HERE, 11 * FORGIVEN_US)


def test_an_ipv6_address_counts_as_its_network() -> None:
    """Whoever has one address of a /64 has all of them."""
    assert network_of("2001:db8::1") == network_of("2001:db8::2:3%eth0")
    assert network_of("2001:db8::1") != network_of("2001:db8:0:1::1")
    assert ["10.0.0.1", "", "no:address"] == [
        network_of(address) for address in ("10.0.0.1", "", "no:address")
    ]
