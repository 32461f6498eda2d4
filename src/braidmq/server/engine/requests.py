"""Requests from outside a connection: can the engine serve them now, and when are they done?

HTTP, Flight and the sink are up before recovery is done and stay up while the broker drains, so
each of their requests begins with `running` or `changing`. The errors say why it cannot be
served, and every endpoint translates them: HTTP into 503, Flight into its status for a service
that is unavailable.

    UnavailableError         not now
    |-- RecoveringError      the log is still being recovered
    |-- ShuttingDownError    the broker drains, or has stopped
    |-- LogRefusedError      the log did not take the record; it will never be committed
    `-- LogFailedError       the log has failed; whether the record is stored is unknown

A connection is woken by the engine itself. Everything else that has to wait (an HTTP publish, a
replay, the sink, the drain) is a coroutine among the engine's `Waiters`, for one of two things:

    committed(id)      the log has committed every record up to this id
    until(condition)   the condition holds; the engine evaluates it at the end of each turn

The broker's state changes in turns only, so a condition over it that is evaluated at the end of
each turn is never missed. A condition must be cheap and must change nothing: while a coroutine
waits, it is evaluated once per turn. With none, a turn costs the engine one look at a dict.

Every wait has an end: the engine ends it with a typed error when the log refuses the record or
fails, when the broker drains, and when it stops. A coroutine that is cancelled leaves nothing
behind. There is one entry for each waiting request, and the listeners bound those.

What is not promised: that a condition still holds when the coroutine runs. The engine completes
a future, and other coroutines may run first. Callers check again and wait again.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker

if TYPE_CHECKING:
    from braidmq.server.engine.engine import Engine

RECOVERING: Final = "recovering the log"
SHUTTING_DOWN: Final = "the broker is shutting down"

FindEngine = Callable[[], "Engine | None"]
"""Returns the engine, or None until recovery is done."""

Future = asyncio.Future[None]


class UnavailableError(BraidError):
    """The broker cannot serve the request now; the text says why."""


class RecoveringError(UnavailableError):
    """The broker is still reading its log."""

    def __init__(self) -> None:
        super().__init__(RECOVERING)


class ShuttingDownError(UnavailableError):
    """The broker accepts no more changes: it drains or has stopped."""

    def __init__(self) -> None:
        super().__init__(SHUTTING_DOWN)


class LogRefusedError(UnavailableError):
    """The log did not take a record, for example because its disk is full."""


class LogFailedError(UnavailableError):
    """The log has failed; what it was writing may or may not be stored."""


def running(engine: "Engine | None") -> "Engine":
    """Return the engine once it can be read from.

    Raises:
        RecoveringError: The log is still being recovered.
    """
    if engine is None:
        raise RecoveringError
    return engine


def changing(engine: "Engine | None") -> "Engine":
    """Return the engine if it accepts changes.

    Raises:
        RecoveringError: The log is still being recovered.
        LogFailedError: The log has failed.
        ShuttingDownError: The broker drains.
    """
    engine = running(engine)
    if engine.failed is not None:
        raise LogFailedError(str(engine.failed))
    if engine.draining:
        raise ShuttingDownError
    return engine


class Waiters:
    """The coroutines that wait for one engine."""

    def __init__(self, broker: Broker, end_turn: Callable[[], None]) -> None:
        self._broker = broker
        self._end_turn = end_turn
        self._is_draining = False
        self._is_stopped = False
        self._failure = ""
        # The engine looks at both each turn, and does nothing more while they are empty.
        self.commits: dict[Future, tuple[int, bool]] = {}  # record id, with lasts
        self.conditions: dict[Future, tuple[Callable[[], bool], bool]] = {}  # with outlasts_end

    # For the coroutines.

    async def committed(self, record_id: int, *, lasts: bool = False) -> None:
        """End the turn, and return once the log has committed everything up to *record_id*.

        *lasts* is for records that the broker queues again when a full log refuses them
        (progress, the end of a queue): they may use the log's reserve, and the wait goes on for
        their new id. It ends in a refusal only when the reserve is used up as well.

        Raises:
            LogRefusedError: The log did not take the record.
            LogFailedError: The log has failed; the record may or may not be stored.
            ShuttingDownError: The broker stopped before the log answered.
        """
        future: Future = asyncio.get_running_loop().create_future()
        # Registered before the turn ends: a log that answers at once must find it.
        self.commits[future] = (record_id, lasts)
        try:
            self._end_turn()
            if self._failure or (self._is_stopped and record_id > self._broker.committed_id):
                raise self._end()
            self.wake_committed(self._broker.committed_id)
            await future
        finally:
            self.commits.pop(future, None)

    async def until(
        self,
        condition: Callable[[], bool],
        *,
        within_s: float | None = None,
        outlasts_end: bool = False,
    ) -> bool:
        """End the turn, and return True once *condition* holds, False after *within_s*.

        *outlasts_end* is for the code that ends the broker: neither a drain nor a failed log
        answers it, so its condition must see both.

        Raises:
            LogFailedError: The log has failed.
            ShuttingDownError: The broker drains or has stopped.
        """
        self._end_turn()
        # Checked first: a condition that holds is a success, even while the broker drains.
        if condition():
            return True
        if not outlasts_end and (self._failure or self._is_draining):
            raise self._end()
        future: Future = asyncio.get_running_loop().create_future()
        self.conditions[future] = (condition, outlasts_end)
        try:
            async with asyncio.timeout(within_s):
                await future
        except TimeoutError:
            return False
        finally:
            self.conditions.pop(future, None)
        return True

    # For the engine.

    def wake_committed(self, up_to: int) -> None:
        """Wake coroutines whose record is committed."""
        for future, (record_id, _) in self.commits.items():
            if record_id <= up_to and not future.done():
                future.set_result(None)

    def wake_true(self) -> None:
        """Wake coroutines whose condition holds."""
        for future, (condition, _) in self.conditions.items():
            if not future.done() and condition():
                future.set_result(None)

    def refuse_commits(self, again_id: int, reason: str, *, is_final: bool) -> None:
        """Fail the waits for records that the log refused; lasting ones wait for *again_id*."""
        # Every wait here is for a refused record: those for committed ones have been woken.
        for future, (_, lasts) in self.commits.items():
            if lasts and not is_final:
                self.commits[future] = (again_id, lasts)
            elif not future.done():
                future.set_exception(LogRefusedError(reason))

    def drain(self) -> None:
        """Fail the waits for conditions; the log still commits what it was given."""
        self._is_draining = True
        self._fail_conditions()

    def fail(self, reason: str) -> None:
        """Fail all waits, present and future: the log has failed."""
        self._failure = reason
        self._fail_commits()
        self._fail_conditions()

    def stop(self) -> None:
        """Fail all waits that are left: the log reports nothing more."""
        self._is_draining = True
        self._is_stopped = True
        self._fail_commits()
        self._fail_conditions()

    def _fail_commits(self) -> None:
        for future in self.commits:
            if not future.done():
                future.set_exception(self._end())

    def _fail_conditions(self) -> None:
        for future, (_, outlasts_end) in self.conditions.items():
            if not outlasts_end and not future.done():
                future.set_exception(self._end())

    def _end(self) -> UnavailableError:
        # A new one each time: an exception object accumulates tracebacks when raised.
        return LogFailedError(self._failure) if self._failure else ShuttingDownError()
