"""Qumbed clients that keep a ledger, frame by frame, without a broker."""

from random import Random

import pytest

from braidmq.broker.schemas import OPAQUE, PLAIN, SEALED, Schemas
from braidmq.testing import ledger as kinds
from braidmq.testing.ledger import Ledger, digest, summarize
from braidmq.testing.qumbed_clients import (
    FOLLOWERS,
    SENDERS,
    FollowerPlan,
    QumbedFollower,
    QumbedPublisher,
    QumbedScene,
    boxes_of,
)
from braidmq.testing.vibe_clients import QUEUES, URGENT, WORK, QueuePlan
from braidmq.wire.qumbed import frames, messages
from braidmq.wire.qumbed.boxes import NONCE_BYTES, key_id

GATEWAY = boxes_of("the gateway")
ALICE = FOLLOWERS[0]


class Peer:
    """The frames that a client under test has sent, and the clock that it reads."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.now_s = 0.0
        self.scene = QumbedScene(
            Random(1), Ledger(), now_s=lambda: self.now_s, take_within_s=1.0
        )
        self.scene.gateway_key = GATEWAY.public_key

    def publisher(self) -> QumbedPublisher:
        return QumbedPublisher(self.scene, "p1", self.sent.append)

    def follower(self, plan: FollowerPlan) -> QumbedFollower:
        client = QumbedFollower(self.scene, "c1", self.sent.append, plan)
        for _ in plan.topics:
            answer(client, messages.ack())
        return client

    def requests(self) -> list[messages.Frame]:
        decoder = frames.FrameDecoder()
        decoder.receive_data(b"".join(self.sent))
        found = []
        while (payload := decoder.next_payload()) is not None:
            found.append(messages.read_frame(payload))
        return found

    def publishes(self) -> list[messages.Publish]:
        return [one for one in self.requests() if isinstance(one, messages.Publish)]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.scene.ledger.events]


def answer(client: QumbedPublisher | QumbedFollower, frame: bytes) -> None:
    client.receive(messages.read_frame(frame[4:]))


@pytest.fixture
def peer() -> Peer:
    return Peer()


def publish_until_repeatable(peer: Peer, publisher: QumbedPublisher) -> messages.Publish:
    while not peer.scene.sent:
        publisher.publish([WORK])
    return peer.publishes()[-1]


def test_a_publisher_records_answers_in_order(peer: Peer) -> None:
    """An Ack confirms a publish, an Error leaves its outcome open."""
    publisher = peer.publisher()
    publisher.publish([URGENT, URGENT, URGENT])
    answer(publisher, messages.ack("7", 0))
    answer(publisher, messages.error("SERVER_ERROR", "queue full"))
    summary = summarize(peer.scene.ledger)

    assert 1 == publisher.unanswered
    assert (3, 1, 1) == (summary.attempted, summary.confirmed, summary.refused)


@pytest.mark.parametrize(
    "frame", [messages.ack("no id"), messages.error("BAD_FRAME", ""), messages.unsubscribe("t")]
)
def test_an_impossible_answer_is_an_error(peer: Peer, frame: bytes) -> None:
    """An Ack of another frame, a refusal of a correct frame, a frame that is no answer."""
    publisher = peer.publisher()
    publisher.publish([URGENT])

    with pytest.raises(AssertionError):
        answer(publisher, frame)


def test_payloads_are_of_every_kind(peer: Peer) -> None:
    """Plain, with a schema, opaque and sealed, as the broker classifies them; all differ."""
    publisher = peer.publisher()
    publisher.publish([URGENT] * 200)
    schemas = Schemas()
    found = peer.publishes()
    judged = {
        (schemas.judge(one.payload, one.schema_id, one.sender_public_key), one.schema_id)
        for one in found
    }
    recorded = [event.digest for event in peer.scene.ledger.events]

    assert {(PLAIN, ""), (PLAIN, "sensor.Temperature"), (OPAQUE, ""), (SEALED, "")} == judged
    assert [digest(one.payload) for one in found] == recorded
    assert 200 == len(set(recorded))


def test_a_sealed_payload_opens_for_its_recipient(peer: Peer) -> None:
    """The ledger has the recipient's key of each message."""
    publisher = peer.publisher()
    publisher.publish([URGENT] * 200)
    by_key = {plan.key: plan.boxes for plan in FOLLOWERS}
    addressed = 0
    for event, one in zip(peer.scene.ledger.events, peer.publishes(), strict=True):
        assert event.key == one.recipient_key_id.hex()
        if event.key:
            addressed += 1
            assert one.sender_public_key in {sender.public_key for sender in SENDERS}
            secret = by_key[event.key].open(one.payload, one.sender_public_key)
            assert secret.startswith(f"p1/{event.number}/".encode())

    assert addressed > 0


def test_a_repeat_is_an_identical_message(peer: Peer) -> None:
    """With the same id, payload and sender; its answer confirms the message."""
    publisher = peer.publisher()
    first = publish_until_repeatable(peer, publisher)
    for one in peer.publishes():
        answer(publisher, messages.ack(one.id or "7", 0))
    publisher.repeat()
    repeat = peer.publishes()[-1]
    answer(publisher, messages.ack(repeat.id, 0))

    assert (first.id, first.payload) == (repeat.id, repeat.payload)
    assert first.sender_public_key == repeat.sender_public_key
    assert kinds.REPEATED == peer.kinds()[-1]
    assert 0 == publisher.unanswered


def test_old_messages_are_not_repeated(peer: Peer) -> None:
    """Beyond the deduplication window the broker would store them again."""
    publisher = peer.publisher()
    publish_until_repeatable(peer, publisher)
    sent = len(peer.sent)
    peer.now_s = 61.0
    publisher.repeat()

    assert sent == len(peer.sent)


def test_a_publisher_acts_in_bursts(peer: Peer) -> None:
    """To all declared queues, with an occasional repeat."""
    peer.scene.declared.update(plan.name for plan in QUEUES)
    publisher = peer.publisher()
    for _ in range(60):
        publisher.act()
    topics = {one.topic for one in peer.publishes()}

    assert {plan.name for plan in QUEUES} == topics
    assert kinds.REPEAT in peer.kinds()
    assert len(peer.publishes()) == publisher.unanswered > 60


def test_a_follower_records_subscribing_and_its_confirmation(peer: Peer) -> None:
    """Before the frame is sent, and when the answer arrives, topic by topic."""
    peer.follower(ALICE)
    subscribes = [one for one in peer.requests() if isinstance(one, messages.Subscribe)]

    assert [*ALICE.topics] == [one.topic for one in subscribes]
    assert {ALICE.boxes.public_key} == {one.public_key for one in subscribes}
    assert [kinds.FOLLOWING] * 2 + [kinds.FOLLOWED] * 2 == peer.kinds()


def test_a_message_sealed_by_the_gateway_is_opened(peer: Peer) -> None:
    """The ledger records the payload as it was published, on any strand."""
    client = peer.follower(ALICE)
    box = GATEWAY.seal(b"plain", ALICE.boxes.public_key, nonce=bytes(NONCE_BYTES))
    answer(client, messages.message(b'"work"', box, GATEWAY.public_key, message_id="9"))
    event = peer.scene.ledger.events[-1]

    assert (kinds.HANDED, 9, "work") == (event.kind, event.number, event.topic)
    assert (digest(b"plain"), ALICE.key) == (event.digest, event.key)
    assert (1, 0) == (client.take_count(), client.take_count())


def test_a_message_sealed_by_a_publisher_is_recorded_as_received(peer: Peer) -> None:
    """It may be for another follower: the ledger already has its recipient."""
    client = peer.follower(ALICE)
    box = bytes(range(50))
    key = SENDERS[0].public_key
    answer(client, messages.message(b'"work"', box, key, message_id="9"))

    assert digest(box) == peer.scene.ledger.events[-1].digest


def test_an_intermittent_follower_unsubscribes_and_returns(peer: Peer) -> None:
    """One topic at a time; the ledger records the request and its confirmation."""
    plan = next(plan for plan in FOLLOWERS if plan.comes_and_goes)
    client = peer.follower(plan)
    while not isinstance(peer.requests()[-1], messages.Unsubscribe):
        client.act()
        while isinstance(peer.requests()[-1], messages.Discovery) and client.unanswered:
            answer(client, messages.discovery("", (), b"", ""))
    client.act()  # it waits for the answer
    left = peer.requests()[-1]
    answer(client, messages.ack())
    client.act()
    back = next(one for one in reversed(peer.requests()) if one.kind != messages.DISCOVERY)

    assert isinstance(left, messages.Unsubscribe)
    assert isinstance(back, messages.Subscribe)
    assert left.topic == back.topic
    recorded = [kind for kind in peer.kinds() if kind in kinds.OF_FOLLOWERS]
    assert [kinds.UNFOLLOWING, kinds.UNFOLLOWED, kinds.FOLLOWING] == recorded[-3:]


def test_a_slow_follower_pauses_and_resumes(peer: Peer) -> None:
    """While it is paused it sends no request: it would not read the answer."""
    plan = next(plan for plan in FOLLOWERS if plan.slow)
    client = peer.follower(plan)
    states = set()
    for _ in range(300):
        sent = len(peer.sent)
        client.act()
        states.add(client.is_paused)
        assert not client.is_paused or sent == len(peer.sent)

    assert {True, False} == states


def test_keys_are_the_same_in_every_run() -> None:
    """A follower returns under its own key, even to a restarted rig."""
    assert boxes_of("alice").public_key == ALICE.boxes.public_key
    assert key_id(ALICE.boxes.public_key).hex() == ALICE.key
    assert len({plan.key for plan in FOLLOWERS}) == len(FOLLOWERS)


def test_followers_use_only_topics_that_lose_no_messages() -> None:
    """Expired messages, or those redirected from a full queue, would look lost."""
    plans: dict[str, QueuePlan] = {plan.name: plan for plan in QUEUES}
    followed = {topic for plan in FOLLOWERS for topic in plan.topics}

    assert not any(plans[topic].is_bounded for topic in followed)
    assert not any("messageTtl" in dict(plans[topic].options) for topic in followed)
