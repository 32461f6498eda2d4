"""Messages, as far as no strand is concerned."""

import pytest

from braidmq.client.deliveries import Message, Priority, Receipt

pytestmark = pytest.mark.asyncio


class Noted(Message):
    """A message that notes what is done with it."""

    def __init__(self) -> None:
        self.topic, self.payload, self.id, self.qos = "orders", b"secret", 7, 1
        self.notes: list[str] = []

    async def ack(self, *, confirmed: bool = False) -> None:
        self.notes.append("ack")

    async def nack(self, *, delay: float | None = None, dead_letter: bool = False) -> None:
        self.notes.append("nack")

    async def failed(self) -> None:
        self.notes.append("failed")


async def test_processing_that_ends_well_acknowledges() -> None:
    """The block gets the message, and its end is its acknowledgement."""
    message = Noted()
    async with message.process() as same:
        assert message is same
        assert [] == message.notes

    assert ["ack"] == message.notes


async def test_processing_that_raises_does_not_acknowledge_and_raises_on() -> None:
    """The strand does what it can for the message; the exception is the caller's."""
    message = Noted()
    with pytest.raises(ZeroDivisionError):
        async with message.process():
            raise ZeroDivisionError

    assert ["failed"] == message.notes


async def test_what_a_strand_does_not_say_is_empty() -> None:
    """What only some strands tell is there on every one, if only to say nothing."""
    message = Noted()

    assert (None, {}) == (message.attempt, dict(message.headers))
    assert (None, False, "") == (message.sender, message.sealed_by_gateway, message.schema)


async def test_a_message_shows_its_size_and_not_its_payload() -> None:
    """What is printed in passing holds no payload."""
    assert "<Noted topic='orders' id=7 qos=1 payload=6 bytes>" == repr(Noted())


async def test_priorities_are_numbers_in_order() -> None:
    """A priority may be given by its name or as what it is."""
    assert [0, 1, 2, 3] == [
        Priority.LOW,
        Priority.NORMAL,
        Priority.HIGH,
        Priority.CRITICAL,
    ]


async def test_a_receipt_claims_nothing_by_default() -> None:
    """Id and repetition are said only when they are known."""
    receipt = Receipt("orders", 1, durable=True)

    assert (None, False, None) == (receipt.id, receipt.repeated, receipt.delivered)
