"""The strand-neutral behaviour of messages."""

import asyncio

import pytest

from braidmq.client.deliveries import Message
from braidmq.client.errors import Closed, NotSupported

pytestmark = pytest.mark.asyncio


class RecordedMessage(Message):
    """A message that records its acks and nacks, or fails to send them."""

    strand = "vibe"

    def __init__(self, *, fails: bool = False) -> None:
        self.topic, self.payload, self.id, self.qos = "orders", b"secret", 7, 1
        self._settled = False
        self.notes: list[str] = []
        self.fails = fails

    async def _ack(self, *, confirmed: bool) -> None:
        await self._note(f"ack {confirmed=}")

    async def _nack(self, *, delay: float | None, dead_letter: bool) -> None:
        await self._note(f"nack {delay=} {dead_letter=}")

    async def _note(self, note: str) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise Closed("the subscription was closed")
        self.notes.append(note)


class RecordedOnBlip(RecordedMessage):
    """The same on a strand without nack."""

    strand = "blip"


async def test_a_message_is_settled_once() -> None:
    """Acked or nacked, by whichever task is first."""
    message = RecordedMessage()
    await asyncio.gather(message.ack(confirmed=True), message.ack())
    await message.nack(delay=1.5)

    assert ["ack confirmed=True"] == message.notes


async def test_a_settlement_that_failed_may_be_retried() -> None:
    """A message counts as settled only after the ack or nack was sent."""
    message = RecordedMessage(fails=True)
    with pytest.raises(Closed):
        await message.ack()
    message.fails = False
    await message.nack(delay=1.5, dead_letter=True)

    assert ["nack delay=1.5 dead_letter=True"] == message.notes


async def test_a_strand_without_nack_says_so() -> None:
    """The error says what the strand does instead."""
    message = RecordedOnBlip()
    with pytest.raises(NotSupported, match="redelivers what is not acknowledged; vibe does"):
        await message.nack()
    await message.failed()

    assert [] == message.notes


async def test_a_failed_nack_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The caller must see the handler's own exception."""
    await RecordedMessage(fails=True).failed()

    assert ["message 7 was not given back: the subscription was closed"] == caplog.messages


async def test_processing_acknowledges_when_the_block_ends_normally() -> None:
    """The block gets the message; leaving the block acknowledges it."""
    message = RecordedMessage()
    async with message.process() as same:
        assert message is same
        assert [] == message.notes

    assert ["ack confirmed=False"] == message.notes


async def test_processing_that_raises_does_not_acknowledge() -> None:
    """The message is nacked where the strand can, and the exception reaches the caller."""
    message = RecordedMessage()
    with pytest.raises(ZeroDivisionError):
        async with message.process():
            raise ZeroDivisionError

    assert ["nack delay=None dead_letter=False"] == message.notes


async def test_attributes_that_a_strand_lacks_are_empty() -> None:
    """Every message has the attributes that only some strands fill in."""
    message = RecordedMessage()

    assert (None, {}) == (message.attempt, dict(message.headers))
    assert (None, False, "") == (message.sender, message.sealed_by_gateway, message.schema)


async def test_a_message_shows_its_size_and_not_its_payload() -> None:
    """A repr may end up in a log, so it holds no payload."""
    assert "<RecordedMessage topic='orders' id=7 qos=1 payload=6 bytes>" == repr(
        RecordedMessage()
    )
