"""Requests in flight, and the answers to them. No frame and no socket is known here."""

import asyncio
from typing import Generic, NamedTuple, TypeVar

A = TypeVar("A")
"""An answer, as the strand reads it."""


class Refusal(NamedTuple):
    """The broker's refusal of a request: a number on Blip, a name on the other strands."""

    code: int | str
    text: str


class Replies(Generic[A]):
    """Requests that were sent together, and the answer to each.

    *done* resolves once: True when all answers are here, False when the connection broke
    first. Answers that came before a break stay in *answers*.
    """

    __slots__ = ("_missing", "answers", "done")

    def __init__(self, count: int) -> None:
        self.answers: list[A | None] = [None] * count
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._missing = count
        if count == 0:
            self.done.set_result(True)

    def take(self, at: int, answer: A) -> None:
        """Record the answer to the request at index *at*."""
        self.answers[at] = answer
        self._missing -= 1
        # `done` may be over already: a caller that gave up has cancelled it.
        if self._missing == 0 and not self.done.done():
            self.done.set_result(True)

    def lose(self) -> None:
        """Record that no more answers will come."""
        if not self.done.done():
            self.done.set_result(False)


class Requests(Generic[A]):
    """The requests that a broker owes an answer to, by their ids."""

    def __init__(self) -> None:
        self._waiting: dict[int | str, tuple[Replies[A], int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, request_id: int | str, replies: Replies[A], at: int) -> None:
        """Remember that the answer with this id goes to *replies*, at index *at*."""
        self._waiting[request_id] = (replies, at)

    def reply(self, request_id: int | str, answer: A) -> bool:
        """Hand an answer to its request; return False if no request has this id."""
        replies, at = self._waiting.pop(request_id, (None, 0))
        if replies is None:
            return False
        replies.take(at, answer)
        return True

    def drop(self) -> None:
        """Tell all waiters that their answer will not come."""
        waiting, self._waiting = self._waiting, {}
        for replies, _ in waiting.values():
            replies.lose()
