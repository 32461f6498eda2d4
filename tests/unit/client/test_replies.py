"""Answers to requests that were handed over together."""

import pytest

from braidmq.client.replies import Refusal, Replies

pytestmark = pytest.mark.asyncio


async def test_replies_are_done_with_the_last_answer() -> None:
    """One future stands for any number of requests."""
    replies: Replies[str] = Replies(2)
    replies.take(1, "second")

    assert not replies.done.done()
    replies.take(0, "first")
    assert await replies.done
    replies.lose()
    assert ["first", "second"] == replies.answers


async def test_no_requests_are_answered_at_once() -> None:
    """There is nothing to wait for."""
    replies: Replies[str] = Replies(0)

    assert await replies.done


async def test_what_was_answered_before_the_loss_is_known() -> None:
    """The rest never will be."""
    replies: Replies[str] = Replies(2)
    replies.take(0, "first")
    replies.lose()

    assert not await replies.done
    assert ["first", None] == replies.answers


async def test_a_refusal_is_a_code_and_a_text() -> None:
    """In this order."""
    assert ("CODE", "text") == Refusal("CODE", "text")
