"""Vibe clients that keep a ledger, frame by frame, without a broker."""

import base64
import json
from random import Random

import pytest

from braidmq.testing import ledger as kinds
from braidmq.testing.ledger import Ledger, summarize
from braidmq.testing.vibe_clients import (
    LETTERS,
    QUEUES,
    SILENT,
    TEMPORARY,
    WORK,
    QueuePlan,
    QueueScene,
    VibeConsumer,
    VibePublisher,
)
from braidmq.wire.vibe import frames, messages


class Peer:
    """The frames that a client under test has sent, and the clock that it reads."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.now_s = 0.0
        self.scene = QueueScene(
            Random(1), Ledger(), now_s=lambda: self.now_s, take_within_s=1.0
        )

    def consumer(self, plan: QueuePlan) -> VibeConsumer:
        client = VibeConsumer(self.scene, "c1", self.sent.append, plan)
        client.care = 1.0
        answer(client, messages.CREATE_QUEUE, "create")
        answer(client, messages.SUBSCRIBE_ACK, "subscribe")
        return client

    def requests(self) -> list[messages.Body]:
        decoder = frames.FrameDecoder()
        decoder.receive_data(b"".join(self.sent))
        found = []
        while (body := decoder.next_body()) is not None:
            found.append(messages.read_body(body))
        return found

    def kinds(self) -> list[str]:
        return [event.kind for event in self.scene.ledger.events]


def answer(
    client: VibeConsumer | VibePublisher,
    kind: int,
    message_id: str,
    payload: bytes = b"",
    headers: dict[str, str] | None = None,
) -> None:
    body = messages.Body()
    body.type, body.id, body.payload, body.headers = kind, message_id, payload, headers or {}
    client.receive(body)


def deliver(client: VibeConsumer, message_id: str, **headers: str) -> None:
    payload = json.dumps(message_id).encode()
    client.scene.ledger.attempt("p1", len(client.scene.ledger.events), "work", payload)
    answer(client, messages.DELIVER, message_id, payload, {"deliveryAttempts": "1", **headers})


@pytest.fixture
def peer() -> Peer:
    return Peer()


def test_a_publisher_records_answers_one_by_one(peer: Peer) -> None:
    """A PublishAck confirms a publish, an Error leaves its outcome open."""
    publisher = VibePublisher(peer.scene, "p1", peer.sent.append)
    publisher.publish([WORK, WORK, WORK])
    answer(publisher, messages.CONNECT_ACK, "connect")
    assert 3 == publisher.unanswered
    answer(publisher, messages.PUBLISH_ACK, "p1-1")
    answer(publisher, messages.ERROR, "p1-2")
    summary = summarize(peer.scene.ledger)

    assert 1 == publisher.unanswered
    assert (3, 1, 1) == (summary.attempted, summary.confirmed, summary.refused)


def test_a_repeat_has_the_dedup_id_of_the_first_publish(peer: Peer) -> None:
    """It has the same payload under another id; its answer confirms the message."""
    publisher = VibePublisher(peer.scene, "p1", peer.sent.append)
    while not peer.scene.repeatable:
        publisher.publish([WORK])
    first = peer.requests()[-1]
    publisher.repeat()
    repeat = peer.requests()[-1]
    answer(publisher, messages.PUBLISH_ACK, repeat.id)

    assert first.headers["dedupId"] == repeat.headers["dedupId"]
    assert (first.payload, first.queue) == (repeat.payload, repeat.queue)
    assert first.id != repeat.id
    assert kinds.REPEATED == peer.kinds()[-1]


def test_old_messages_are_not_repeated(peer: Peer) -> None:
    """Beyond the deduplication window the broker would store them again."""
    publisher = VibePublisher(peer.scene, "p1", peer.sent.append)
    while not peer.scene.repeatable:
        publisher.publish([WORK])
    sent = len(peer.sent)
    peer.now_s = 61.0
    publisher.repeat()

    assert sent == len(peer.sent)


def test_a_consumer_declares_before_it_subscribes(peer: Peer) -> None:
    """A Subscribe would create the queue without its options, so it waits for the answer."""
    client = VibeConsumer(peer.scene, "c1", peer.sent.append, WORK)
    expected = [messages.CONNECT, messages.QUEUE_INFO, messages.CREATE_QUEUE]
    assert expected == [request.type for request in peer.requests()]
    answer(client, messages.CREATE_QUEUE, "create")

    assert messages.SUBSCRIBE == peer.requests()[-1].type
    assert kinds.DECLARED == peer.kinds()[-1]
    assert {"work"} == peer.scene.declared


def test_a_refused_declaration_is_retried(peer: Peer) -> None:
    """Without the queue there is nothing to subscribe or publish to."""
    client = VibeConsumer(peer.scene, "c1", peer.sent.append, WORK)
    answer(client, messages.ERROR, "create")
    client.act()

    assert messages.CREATE_QUEUE == peer.requests()[-1].type
    assert [TEMPORARY] == peer.scene.publishable()


def test_a_queue_that_is_not_as_declared_is_recorded(peer: Peer) -> None:
    """Unknown, with another mode, or with another dead-letter queue."""
    as_declared = {"deliveryMode": 0, "deadLetterQueueName": "graves.work"}
    infos = [
        b"",
        json.dumps({**as_declared, "deliveryMode": 1}).encode(),
        json.dumps({**as_declared, "deadLetterQueueName": "dlq.work"}).encode(),
    ]

    assert WORK.is_as_declared(json.dumps(as_declared).encode())
    for info in infos:
        client = VibeConsumer(peer.scene, "c1", peer.sent.append, WORK)
        answer(client, messages.QUEUE_INFO, "info", info)
        assert kinds.UNDECLARED == peer.kinds()[-1]


def test_the_retry_limit_is_part_of_a_declaration() -> None:
    """A declared limit must still be there after a restart."""
    info = {"deliveryMode": 0, "deadLetterQueueName": "dlq.silent", "maxRetryAttempts": 3}

    assert not SILENT.is_as_declared(json.dumps(info).encode())
    assert SILENT.is_as_declared(json.dumps({**info, "maxRetryAttempts": 1000}).encode())


def test_an_acknowledgement_counts_only_with_a_pong_in_time(peer: Peer) -> None:
    """After the timeout the broker may have redelivered the message and ignore the ACK."""
    client = peer.consumer(WORK)
    for message_id, waits_s in (("m1", 0.5), ("m2", 1.5)):
        deliver(client, message_id)
        client.acknowledge_all()
        peer.now_s += waits_s
        answer(client, messages.PONG, peer.requests()[-1].id)

    assert 1 == peer.kinds().count(kinds.TAKEN)
    assert 2 == peer.kinds().count(kinds.TAKE)
    assert 0 == client.unanswered


def test_the_payload_of_another_strand_is_unpacked(peer: Peer) -> None:
    """Bytes that are not JSON arrive as base64; the ledger records them as published."""
    client = peer.consumer(WORK)
    packed = json.dumps(base64.b64encode(b"\xff").decode()).encode()
    headers = {"deliveryAttempts": "2", "contentEncoding": "base64"}
    answer(client, messages.DELIVER, "9", packed, headers)
    event = peer.scene.ledger.events[-1]

    assert (kinds.PUSH, kinds.digest(b"\xff"), 2) == (event.kind, event.digest, event.attempts)


def test_a_redelivery_is_answered_only_once(peer: Peer) -> None:
    """The pending answer to the earlier delivery is dropped."""
    client = peer.consumer(WORK)
    deliver(client, "m1")
    answer(client, messages.DELIVER, "m1", b'"m1"', {"deliveryAttempts": "2"})
    client.acknowledge_all()

    assert 1 == [request.type for request in peer.requests()].count(messages.ACK)


def test_a_careless_consumer_rejects_requeues_and_forgets(peer: Peer) -> None:
    """None of that settles a message by itself."""
    client = peer.consumer(WORK)
    client.care = 0.0
    for number in range(60):
        deliver(client, f"m{number}")
    client.acknowledge_all()
    answers = [request for request in peer.requests() if request.type == messages.ACK]

    assert {"reject", "requeue"} == {request.headers["result"] for request in answers}
    assert 0 < len(answers) < 60
    assert kinds.TAKE not in peer.kinds()


def test_a_rejection_without_dead_letters_settles_the_message(peer: Peer) -> None:
    """The message is gone, so the ledger must not expect it."""
    client = peer.consumer(SILENT)
    client.care = 0.0
    for number in range(20):
        deliver(client, f"m{number}")
    client.acknowledge_all()
    rejected = [r for r in peer.requests() if r.headers.get("result") == "reject"]

    assert len(rejected) == peer.kinds().count(kinds.TAKE) > 0


def test_a_consumer_that_unsubscribes_returns(peer: Peer) -> None:
    """The ledger records the request and its answer; then the consumer subscribes again."""
    client = peer.consumer(WORK)
    client.leave()
    answer(client, messages.UNSUBSCRIBE_ACK, "leave")

    assert 2 == peer.kinds().count(kinds.RETURN)
    assert messages.CREATE_QUEUE == peer.requests()[-1].type


def test_a_deleted_queue_is_declared_again(peer: Peer) -> None:
    """The ledger records the request and its answer."""
    client = peer.consumer(TEMPORARY)
    client.delete()
    answer(client, messages.DELETE_QUEUE, "delete")

    assert [kinds.DELETING, kinds.DELETED] == peer.kinds()[-2:]
    assert messages.CREATE_QUEUE == peer.requests()[-1].type


def test_every_dead_letter_queue_has_a_consumer() -> None:
    """Otherwise dead-lettered messages would look lost."""
    kept = {plan.letters_name for plan in QUEUES if plan.keeps_letters}

    assert kept == {plan.name for plan in LETTERS}
