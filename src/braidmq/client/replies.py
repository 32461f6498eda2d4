"""Answers to requests that were sent together. No frame and no socket is known here."""

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
        if self._missing == 0 and not self.done.done():
            self.done.set_result(True)

    def lose(self) -> None:
        """Record that no more answers will come."""
        if not self.done.done():
            self.done.set_result(False)
