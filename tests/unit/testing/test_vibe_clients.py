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
    """What a client under test has sent, and the clock that it reads."""

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


def test_a_publisher_notes_answers_one_by_one(peer: Peer) -> None:
    """Each PublishAck confirms, each Error leaves the outcome open, and none is waited for."""
    publisher = VibePublisher(peer.scene, "p1", peer.sent.append)
    publisher.publish([WORK, WORK, WORK])
    answer(publisher, messages.CONNECT_ACK, "connect")
    assert 3 == publisher.unanswered
    answer(publisher, messages.PUBLISH_ACK, "p1-1")
    answer(publisher, messages.ERROR, "p1-2")
    told = summarize(peer.scene.ledger)

    assert 1 == publisher.unanswered
    assert (3, 1, 1) == (told.attempted, told.confirmed, told.refused)


def test_a_repeat_has_the_dedup_id_of_its_first(peer: Peer) -> None:
    """What is published again is the same payload under another id; its answer confirms."""
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
    """Beyond the window in which the broker knows a dedup id it would be stored again."""
    publisher = VibePublisher(peer.scene, "p1", peer.sent.append)
    while not peer.scene.repeatable:
        publisher.publish([WORK])
    sent = len(peer.sent)
    peer.now_s = 61.0
    publisher.repeat()

    assert sent == len(peer.sent)


def test_a_consumer_declares_before_it_subscribes(peer: Peer) -> None:
    """A Subscribe would make a queue without its options; so it waits for the answer."""
    client = VibeConsumer(peer.scene, "c1", peer.sent.append, WORK)
    asked = [messages.CONNECT, messages.QUEUE_INFO, messages.CREATE_QUEUE]
    assert asked == [request.type for request in peer.requests()]
    answer(client, messages.CREATE_QUEUE, "create")

    assert messages.SUBSCRIBE == peer.requests()[-1].type
    assert kinds.DECLARED == peer.kinds()[-1]
    assert {"work"} == peer.scene.declared


def test_a_refused_declaration_is_tried_again(peer: Peer) -> None:
    """Without a queue there is no subscription, and nothing to publish to."""
    client = VibeConsumer(peer.scene, "c1", peer.sent.append, WORK)
    answer(client, messages.ERROR, "create")
    client.act()

    assert messages.CREATE_QUEUE == peer.requests()[-1].type
    assert [TEMPORARY] == peer.scene.publishable()


def test_a_queue_that_is_not_as_declared_is_noted(peer: Peer) -> None:
    """Unknown, of another mode, with other dead letters: each is told to the ledger."""
    as_declared = {"deliveryMode": 0, "deadLetterQueueName": "graves.work"}
    told = [
        b"",
        json.dumps({**as_declared, "deliveryMode": 1}).encode(),
        json.dumps({**as_declared, "deadLetterQueueName": "dlq.work"}).encode(),
    ]

    assert WORK.is_as_declared(json.dumps(as_declared).encode())
    for info in told:
        client = VibeConsumer(peer.scene, "c1", peer.sent.append, WORK)
        answer(client, messages.QUEUE_INFO, "info", info)
        assert kinds.UNDECLARED == peer.kinds()[-1]


def test_attempts_are_part_of_a_declaration() -> None:
    """A limit that was declared must be there after a restart."""
    info = {"deliveryMode": 0, "deadLetterQueueName": "dlq.silent", "maxRetryAttempts": 3}

    assert not SILENT.is_as_declared(json.dumps(info).encode())
    assert SILENT.is_as_declared(json.dumps({**info, "maxRetryAttempts": 1000}).encode())


def test_only_a_pong_in_time_makes_an_acknowledgement_taken(peer: Peer) -> None:
    """Later, another consumer may have had the message, and the broker ignores the first."""
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
    """Bytes that are no JSON come as base64; the ledger knows them as they were sent."""
    client = peer.consumer(WORK)
    packed = json.dumps(base64.b64encode(b"\xff").decode()).encode()
    headers = {"deliveryAttempts": "2", "contentEncoding": "base64"}
    answer(client, messages.DELIVER, "9", packed, headers)
    event = peer.scene.ledger.events[-1]

    assert (kinds.PUSH, kinds.digest(b"\xff"), 2) == (event.kind, event.digest, event.attempts)


def test_a_delivery_is_answered_once_whatever_came_before(peer: Peer) -> None:
    """What was to be said to an earlier delivery of the same message is not said any more."""
    client = peer.consumer(WORK)
    deliver(client, "m1")
    answer(client, messages.DELIVER, "m1", b'"m1"', {"deliveryAttempts": "2"})
    client.acknowledge_all()

    assert 1 == [request.type for request in peer.requests()].count(messages.ACK)


def test_without_care_deliveries_end_otherwise(peer: Peer) -> None:
    """Some are rejected, some given back, some forgotten; none of that is an end by itself."""
    client = peer.consumer(WORK)
    client.care = 0.0
    for number in range(60):
        deliver(client, f"m{number}")
    client.acknowledge_all()
    answers = [request for request in peer.requests() if request.type == messages.ACK]

    assert {"reject", "requeue"} == {request.headers["result"] for request in answers}
    assert 0 < len(answers) < 60
    assert kinds.TAKE not in peer.kinds()


def test_a_rejection_without_dead_letters_is_an_end(peer: Peer) -> None:
    """Nothing is left of it anywhere: the ledger must not wait for it."""
    client = peer.consumer(SILENT)
    client.care = 0.0
    for number in range(20):
        deliver(client, f"m{number}")
    client.acknowledge_all()
    rejected = [r for r in peer.requests() if r.headers.get("result") == "reject"]

    assert len(rejected) == peer.kinds().count(kinds.TAKE) > 0


def test_whoever_leaves_comes_back(peer: Peer) -> None:
    """An Unsubscribe is told before and after, and followed by a new subscription."""
    client = peer.consumer(WORK)
    client.leave()
    answer(client, messages.UNSUBSCRIBE_ACK, "leave")

    assert 2 == peer.kinds().count(kinds.RETURN)
    assert messages.CREATE_QUEUE == peer.requests()[-1].type


def test_a_deleted_queue_is_declared_again(peer: Peer) -> None:
    """The end is noted when it is asked for and when it is answered."""
    client = peer.consumer(TEMPORARY)
    client.delete()
    answer(client, messages.DELETE_QUEUE, "delete")

    assert [kinds.DELETING, kinds.DELETED] == peer.kinds()[-2:]
    assert messages.CREATE_QUEUE == peer.requests()[-1].type


def test_every_queue_that_keeps_letters_has_a_reader_of_them() -> None:
    """Otherwise what was given up on would look lost."""
    kept = {plan.letters_name for plan in QUEUES if plan.keeps_letters}

    assert kept == {plan.name for plan in LETTERS}
