"""Answers to requests that were handed over together."""

import pytest

from braidmq.client.replies import Refusal, Replies, Requests

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


async def test_an_answer_goes_to_the_request_with_its_id() -> None:
    """Once; what was not asked for is left to the caller."""
    requests: Requests[str] = Requests()
    replies: Replies[str] = Replies(2)
    requests.expect(7, replies, 0)
    requests.expect("a-1", replies, 1)

    assert (True, True, False) == (
        requests.reply("a-1", "second"),
        requests.reply(7, "first"),
        requests.reply(7, "again"),
    )
    assert ["first", "second"] == replies.answers
    assert 0 == len(requests)


async def test_dropped_requests_get_no_answer() -> None:
    """Whoever waits is told, and nothing is owed any longer."""
    requests: Requests[str] = Requests()
    replies: Replies[str] = Replies(1)
    requests.expect(7, replies, 0)
    requests.drop()

    assert not await replies.done
    assert not requests.reply(7, "late")
