"""Password checks: in which order, so that a flood of wrong ones delays no real sign-in.

A check takes tens of milliseconds of a core, and a stranger asks for one with a few bytes. Two
threads do them, each with an order of its own:

    ordinary   every attempt in turn, addresses by turns: this is what the asker sees
    express    attempts under names that exist, names by turns, the newest attempt first;
               and the work of administrators, before those

An attempt under a name that exists is in both. If its password is right, it is answered as soon
as the express thread says so. If it is wrong, it is answered when its ordinary turn comes, with
a check against a hash that no password has: neither the time nor the answer tells whether a
name exists, however busy the broker is. With nothing before it, the ordinary thread checks the
password itself, and there is nothing to hide.

An address may have `ADDRESS_WAITING_MAX` attempts waiting and `FAILURES_MAX` failures, which
are forgiven one a second; all addresses together `WAITING_MAX` attempts. An attempt above that
gets no ordinary turn: it is refused after `REFUSAL_S`, whatever its name, unless it is right
and the express thread finds that before.

What is not promised: whoever floods with wrong passwords under the very name that a user signs
in with competes with that user, newest first.
"""

import ipaddress
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from braidmq.transport.threads import start_pool

WAITING_MAX: Final = 64
"""Attempts that may wait for an ordinary turn; a further one would wait for seconds."""

ADDRESS_WAITING_MAX: Final = 16
"""Of those, attempts of one address."""

FAILURES_MAX: Final = 32
"""Failures of one address that are not forgiven yet; with more, it gets no ordinary turns."""

FORGIVEN_US: Final = 1_000_000
"""How long it takes until one failure is forgiven."""

LANE_MAX: Final = 4
"""Attempts under one name that wait for the express thread; the newest push out the oldest."""

ADDRESSES_MAX: Final = 10_000
"""Addresses whose failures are remembered; those before are forgiven."""

REFUSAL_S: Final = 1.0
"""After how long an attempt above the limits is refused: far longer than a check takes."""

_IPV6_NETWORK_BITS: Final = 64  # whoever has one address of such a network has all of them

_T = TypeVar("_T")

RIGHT: Final = 1
WRONG: Final = 2
LIMITED: Final = 3
"""How an attempt ends."""


class Attempt:
    """One password under one name; *expected* is its hash, None if there is no such name."""

    def __init__(
        self, name: str, password: str, expected: str | None, done: Callable[[int], None]
    ) -> None:
        self.name = name
        self.password = password
        self.expected = expected
        self.done = done
        self.network = ""  # that it comes from
        self.is_answered = False
        self.in_express = False  # waits in its lane
        self.is_tried = False  # the express thread checks it, or has checked it
        self.is_wrong = False  # and found that
        self.had_turn = False  # the ordinary one


class PasswordChecks:
    """Does the checks; every method but `close` is for the event loop's thread.

    *verify* is called on a thread with a hash and a password. *post* is the loop's
    `call_soon_threadsafe`, *after* calls something after so many seconds.
    """

    def __init__(
        self,
        verify: Callable[[str, str], bool],
        *,
        decoy: str,
        now_us: Callable[[], int],
        post: Callable[[Callable[[], None]], object],
        after: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._verify = verify
        self._decoy = decoy
        self._now_us = now_us
        self._after = after
        self._ordinary = _Worker("braidmq-users", post)
        self._express = _Worker("braidmq-users-express", post)
        self._turns: OrderedDict[str, deque[Attempt]] = OrderedDict()  # by address
        self._waiting = 0  # in them
        self._lanes: OrderedDict[str, list[Attempt]] = OrderedDict()  # by name, oldest first
        self._work: deque[Callable[[], None]] = deque()  # of administrators
        self._failures = Failures()

    def stop(self) -> None:
        """Start nothing more, and report nothing more."""
        self._ordinary.is_stopped = self._express.is_stopped = True

    def close(self) -> None:
        """Wait until the running checks have ended; on a thread that may block."""
        self._ordinary.close()
        self._express.close()

    def run(self, work: Callable[[], _T], then: Callable[[_T], None]) -> None:
        """Do an administrator's *work* on a thread, and pass its result to *then*."""

        def done(result: _T) -> None:
            then(result)
            self._go_on()

        self._work.append(lambda: self._express.start(work, done))
        self._go_on()

    def ask(self, attempt: Attempt, address: str) -> None:
        """Check an attempt of *address*; its `done` is called later, once."""
        attempt.network = network_of(address)
        if self._is_limited(attempt.network):
            self._after(REFUSAL_S, lambda: self._answer(attempt, LIMITED))
        elif not self._ordinary.is_busy and not self._waiting:
            self._have_turn(attempt)
            return
        else:
            self._turns.setdefault(attempt.network, deque()).append(attempt)
            self._waiting += 1
        if attempt.expected is not None:
            self._line_up(attempt)
            self._go_on()

    # What an address may ask for.

    def _is_limited(self, network: str) -> bool:
        return (
            self._failures.count(network, self._now_us()) >= FAILURES_MAX
            or self._waiting >= WAITING_MAX
            or len(self._turns.get(network, ())) >= ADDRESS_WAITING_MAX
        )

    # The ordinary thread.

    def _next_turn(self) -> None:
        while self._turns and not self._ordinary.is_busy:
            network, attempts = self._turns.popitem(last=False)
            attempt = attempts.popleft()
            self._waiting -= 1
            if attempts:
                self._turns[network] = attempts  # behind the other addresses
            if not attempt.is_answered:
                self._have_turn(attempt)

    def _have_turn(self, attempt: Attempt) -> None:
        if attempt.in_express:
            self._leave_lane(attempt)
        encoded = self._decoy
        if attempt.expected is not None and not attempt.is_tried:
            encoded = attempt.expected

        def checked(is_right: bool) -> None:  # noqa: FBT001 - a verdict, its only argument
            attempt.had_turn = True
            if is_right:
                self._answer(attempt, RIGHT)
            elif not attempt.is_tried or attempt.is_wrong:
                self._answer(attempt, WRONG)
            self._go_on()

        self._ordinary.start(lambda: self._verify(encoded, attempt.password), checked)

    # The express thread.

    def _line_up(self, attempt: Attempt) -> None:
        lane = self._lanes.setdefault(attempt.name, [])
        lane.append(attempt)
        attempt.in_express = True
        if len(lane) > LANE_MAX:
            lane.pop(0).in_express = False  # it has its ordinary turn, or is refused

    def _leave_lane(self, attempt: Attempt) -> None:
        attempt.in_express = False
        lane = self._lanes[attempt.name]
        lane.remove(attempt)
        if not lane:
            del self._lanes[attempt.name]

    def _go_on(self) -> None:
        self._next_turn()
        while not self._express.is_busy and (self._work or self._lanes):
            if self._work:
                self._work.popleft()()
                continue
            name, lane = self._lanes.popitem(last=False)
            attempt = lane.pop()
            attempt.in_express = False
            if lane:
                self._lanes[name] = lane  # behind the other names
            if not attempt.is_answered:
                self._try(attempt)

    def _try(self, attempt: Attempt) -> None:
        encoded = attempt.expected
        assert encoded is not None
        attempt.is_tried = True

        def checked(is_right: bool) -> None:  # noqa: FBT001 - a verdict, its only argument
            attempt.is_wrong = not is_right
            if is_right:
                self._answer(attempt, RIGHT)
            elif attempt.had_turn:
                self._answer(attempt, WRONG)
            self._go_on()

        self._express.start(lambda: self._verify(encoded, attempt.password), checked)

    def _answer(self, attempt: Attempt, outcome: int) -> None:
        if not attempt.is_answered and not self._ordinary.is_stopped:
            attempt.is_answered = True
            if outcome == WRONG:
                self._failures.note(attempt.network, self._now_us())
            attempt.done(outcome)


class Failures:
    """How many attempts of each address failed and are not forgiven yet."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, int]] = OrderedDict()  # count, and since when

    def __len__(self) -> int:
        return len(self._known)

    def count(self, network: str, now_us: int) -> int:
        """Return how many failures count against an address now."""
        count, since_us = self._known.get(network, (0, now_us))
        return max(0, count - max(0, now_us - since_us) // FORGIVEN_US)

    def note(self, network: str, now_us: int) -> None:
        """Count a failure; the addresses that failed longest ago are forgotten."""
        left = self.count(network, now_us)
        before, since_us = self._known.pop(network, (0, now_us))
        since_us = since_us + (before - left) * FORGIVEN_US if left else now_us
        self._known[network] = (left + 1, since_us)
        if len(self._known) > ADDRESSES_MAX:
            self._known.popitem(last=False)


class _Worker:
    """One thread that does one thing at a time."""

    def __init__(self, name: str, post: Callable[[Callable[[], None]], object]) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        start_pool(self._pool, name, 1)  # later there may be no memory for it
        self._post = post
        self.is_busy = False
        self.is_stopped = False

    def start(self, work: Callable[[], _T], then: Callable[[_T], None]) -> None:
        assert not self.is_busy
        if self.is_stopped:
            return
        self.is_busy = True

        def finish(future: Future[_T]) -> None:
            # On the event loop, as `stop` is: nothing is reported after it.
            self.is_busy = False
            if not self.is_stopped:
                then(future.result())

        self._pool.submit(work).add_done_callback(
            lambda future: self._post(lambda: finish(future))
        )

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def network_of(address: str) -> str:
    """Return what an address is counted by: itself, or the network of an IPv6 address."""
    if ":" not in address:
        return address
    try:
        given = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(ipaddress.IPv6Network((given, _IPV6_NETWORK_BITS), strict=False))
