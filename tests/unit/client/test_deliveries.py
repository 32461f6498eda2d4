"""Messages, as far as no strand is concerned."""

import asyncio

import pytest

from braidmq.client.deliveries import Message
from braidmq.client.errors import Closed, NotSupported

pytestmark = pytest.mark.asyncio


class Noted(Message):
    """A message that notes what is sent about it, or cannot be sent."""

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


class OnBlip(Noted):
    """The same on a strand that cannot give back."""

    strand = "blip"


async def test_a_message_is_settled_once() -> None:
    """Acknowledged or given back, by whichever task is first."""
    message = Noted()
    await asyncio.gather(message.ack(confirmed=True), message.ack())
    await message.nack(delay=1.5)

    assert ["ack confirmed=True"] == message.notes


async def test_what_could_not_be_sent_may_be_tried_again() -> None:
    """Only what was sent settles a message."""
    message = Noted(fails=True)
    with pytest.raises(Closed):
        await message.ack()
    message.fails = False
    await message.nack(delay=1.5, dead_letter=True)

    assert ["nack delay=1.5 dead_letter=True"] == message.notes


async def test_a_strand_that_cannot_give_back_says_so() -> None:
    """And what it does instead."""
    message = OnBlip()
    with pytest.raises(NotSupported, match="redelivers what is not acknowledged; vibe does"):
        await message.nack()
    await message.failed()

    assert [] == message.notes


async def test_a_failure_to_give_back_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The handler's own exception is what the caller must see."""
    await Noted(fails=True).failed()

    assert ["message 7 was not given back: the subscription was closed"] == caplog.messages


async def test_processing_that_ends_well_acknowledges() -> None:
    """The block gets the message, and its end is its acknowledgement."""
    message = Noted()
    async with message.process() as same:
        assert message is same
        assert [] == message.notes

    assert ["ack confirmed=False"] == message.notes


async def test_processing_that_raises_does_not_acknowledge_and_raises_on() -> None:
    """The strand does what it can for the message; the exception is the caller's."""
    message = Noted()
    with pytest.raises(ZeroDivisionError):
        async with message.process():
            raise ZeroDivisionError

    assert ["nack delay=None dead_letter=False"] == message.notes


async def test_what_a_strand_does_not_say_is_empty() -> None:
    """What only some strands tell is there on every one, if only to say nothing."""
    message = Noted()

    assert (None, {}) == (message.attempt, dict(message.headers))
    assert (None, False, "") == (message.sender, message.sealed_by_gateway, message.schema)


async def test_a_message_shows_its_size_and_not_its_payload() -> None:
    """What is printed in passing holds no payload."""
    assert "<Noted topic='orders' id=7 qos=1 payload=6 bytes>" == repr(Noted())
