"""Blip clients that keep a ledger, frame by frame, without a broker."""

from random import Random

from braidmq.testing import ledger as books
from braidmq.testing.clients import PLANS, Consumer, Plan, Publisher, Scene
from braidmq.testing.ledger import Ledger, summarize
from braidmq.wire.blip import frames, messages

PLAN = Plan("test", "orders", care=1.0, pulls=True)
SUBSCRIBED, TAG = 3, 9


def subscribed(sent: list[bytes]) -> Consumer:
    consumer = Consumer(Scene(Random(1), Ledger()), "c1", sent.append, PLAN)
    consumer.act()
    correlation_id = frames_of(sent)[-1][1]
    consumer.receive(frames.ACK, correlation_id, SUBSCRIBED.to_bytes(8, "big"))
    return consumer


def frames_of(sent: list[bytes]) -> list[tuple[int, int, bytes]]:
    decoder = frames.FrameDecoder()
    decoder.receive_data(b"".join(sent))
    found = []
    while kind := decoder.advance():
        found.append((kind, decoder.correlation_id, decoder.payload()))
    return found


def deliver(consumer: Consumer, tag: int = TAG) -> None:
    consumer.scene.ledger.attempt("p1", tag, "orders", b"%d" % tag)
    payload = b"\x01" + messages.topic_and_message("orders", b"%d" % tag)
    consumer.receive(frames.PUBLISH, tag, payload)


def test_a_publisher_records_an_attempt_before_sending_it() -> None:
    """The ledger has every publish; a PONG confirms those that were not refused."""
    sent: list[bytes] = []
    scene = Scene(Random(1), Ledger())
    publisher = Publisher(scene, "p1", sent.append)
    publisher.publish(["orders", "orders", "events"])
    publisher.receive(frames.NACK, 2, messages.encode_nack(2, 500, "no")[13:])
    publisher.receive(frames.PONG, 3, b"")
    summary = summarize(scene.ledger)

    assert [frames.PUBLISH] * 3 + [frames.PING] == [kind for kind, _, _ in frames_of(sent)[2:]]
    assert (3, 2, 1) == (summary.attempted, summary.confirmed, summary.refused)


def test_a_delivery_is_settled_when_its_acknowledgement_is_confirmed() -> None:
    """Only the PONG after an ACK settles it, unless the ACK was refused."""
    consumer = subscribed([])
    deliver(consumer, 8)
    deliver(consumer, 9)
    consumer.acknowledge_all()
    refusal = messages.encode_nack(8, 404, "unknown subscription or delivery tag")[13:]
    consumer.receive(frames.NACK, 8, refusal)
    assert 0 == summarize(consumer.scene.ledger).settled
    consumer.receive(frames.PONG, (1 << 41) + 1, b"")

    assert 1 == summarize(consumer.scene.ledger).settled
    assert 9 == consumer.scene.ledger.events[-1].number


def test_an_unknown_subscription_is_recorded_and_replaced() -> None:
    """After a 404 to a POLL, the consumer records it and subscribes again."""
    sent: list[bytes] = []
    consumer = subscribed(sent)
    consumer.ask(1)
    poll = frames_of(sent)[-1]
    refusal = messages.encode_nack(poll[1], 404, "unknown subscription or delivery tag")[13:]
    consumer.receive(frames.NACK, poll[1], refusal)
    consumer.act()

    assert books.MISSING == consumer.scene.ledger.events[-1].kind
    assert frames.SUBSCRIBE == frames_of(sent)[-1][0]


def test_dead_letter_consumers_join_before_all_other_clients() -> None:
    """A dead letter must find a subscription."""
    scene = Scene(Random(1), Ledger())
    letters = [plan for plan in PLANS if plan.topic.startswith("dlq.")]

    assert letters == scene.roles()
    scene.subscriptions = {plan: number for number, plan in enumerate(letters, 1)}
    assert [None, *PLANS] == scene.roles()
