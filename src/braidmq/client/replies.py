"""Answers to requests that were handed over together. It knows neither frames nor sockets."""

import asyncio
from typing import Generic, NamedTuple, TypeVar

A = TypeVar("A")
"""An answer, as the strand reads it."""


class Refusal(NamedTuple):
    """An Error."""

    code: str
    text: str


class Replies(Generic[A]):
    """Requests that were handed over together, and what was answered to each."""

    __slots__ = ("_missing", "answers", "done")

    def __init__(self, count: int) -> None:
        self.answers: list[A | None] = [None] * count
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._missing = count
        if count == 0:
            self.done.set_result(True)

    def take(self, at: int, answer: A) -> None:
        """Take the answer to one of them."""
        self.answers[at] = answer
        self._missing -= 1
        if self._missing == 0 and not self.done.done():
            self.done.set_result(True)

    def lose(self) -> None:
        """Learn that no more answers will come."""
        if not self.done.done():
            self.done.set_result(False)
