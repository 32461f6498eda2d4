"""Replies to requests that were sent together."""

import pytest

from braidmq.client.replies import Refusal, Replies, Requests

pytestmark = pytest.mark.asyncio


async def test_replies_are_done_when_the_last_answer_arrives() -> None:
    """One future stands for any number of requests."""
    replies: Replies[str] = Replies(2)
    replies.take(1, "second")

    assert not replies.done.done()
    replies.take(0, "first")
    assert await replies.done
    replies.lose()
    assert ["first", "second"] == replies.answers


async def test_replies_to_no_requests_are_done_at_once() -> None:
    """There is nothing to wait for."""
    replies: Replies[str] = Replies(0)

    assert await replies.done


async def test_answers_from_before_the_loss_are_kept() -> None:
    """The other requests stay unanswered."""
    replies: Replies[str] = Replies(2)
    replies.take(0, "first")
    replies.lose()

    assert not await replies.done
    assert ["first", None] == replies.answers


async def test_a_refusal_is_a_code_and_a_text() -> None:
    """The code comes first."""
    assert ("CODE", "text") == Refusal("CODE", "text")


async def test_an_answer_goes_to_the_request_with_its_id() -> None:
    """Only once; a reply to no pending request is reported to the caller."""
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


async def test_dropped_requests_stay_unanswered() -> None:
    """The waiter is told, and a late reply is ignored."""
    requests: Requests[str] = Requests()
    replies: Replies[str] = Replies(1)
    requests.expect(7, replies, 0)
    requests.drop()

    assert not await replies.done
    assert not requests.reply(7, "late")
