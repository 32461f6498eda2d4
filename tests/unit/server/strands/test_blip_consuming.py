"""Subscriptions of a Blip connection: their limit, their credit, and what an ACK waits for."""

from braidmq.broker.delivery.subscriptions import SUBSCRIPTIONS_MAX, TOO_MANY_SUBSCRIPTIONS
from tests.integration.blip.peer import (
    ack,
    credit,
    nack,
    ping,
    poll,
    pong,
    publish,
    subscribe,
)
from tests.unit.server.by_hand import DISK_FULL_NACK, Hand, frames


def test_a_pong_behind_an_acknowledgement_waits_for_its_progress() -> None:
    """The acknowledgement is appended again, from the reserve; only then is the PONG sent."""
    hand = Hand()
    connection, wire = hand.subscriber()
    connection.receive(poll(3, 1) + ack(2, 1) + publish(4, "t", b"b") + ping(5))
    wire.take()
    hand.fill_disk()

    assert wire.take() == frames(nack(4, 500, DISK_FULL_NACK))
    assert [True] == hand.log.urgent[-1:]
    hand.commit()
    assert wire.take() == frames(pong(5))


def test_credit_that_waited_behind_a_ping_is_void_after_the_half_close() -> None:
    """Credit ends with the peer's input, even credit that was not granted by then."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t"))
    hand.commit()
    wire.take()
    connection.receive(publish(2, "t", b"a") + ping(3) + credit(4, 1, 100) + ping(5))
    connection.finish_input()
    hand.commit()

    assert wire.take() == frames(pong(3), pong(5))
    assert wire.is_closed


def test_the_number_of_subscriptions_is_limited() -> None:
    """One more is refused, so that memory stays bounded."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t"))
    hand.commit()
    wire.take()
    subscriptions = hand.engine.broker.subscriptions.by_id
    subscriptions.update(dict.fromkeys(range(2, SUBSCRIPTIONS_MAX + 1), subscriptions[1]))
    connection.receive(subscribe(2, "t"))

    text = f"subscribe failed: {TOO_MANY_SUBSCRIPTIONS}"
    assert wire.take() == frames(nack(2, 500, text))
