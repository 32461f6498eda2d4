"""Who a topic or queue is charged to, how it is forgotten, and how it is deleted."""

import pytest

from braidmq.broker import endings, records
from braidmq.broker.authorize import Principal
from braidmq.broker.dedup import NEW
from braidmq.broker.quotas import DEFAULTS, Quotas, refusal
from braidmq.broker.topics import IDLE_US, LOOKED_AT_MAX, Topics
from tests.unit.broker.drive import Drive, peer_of, policy_of

ADA = Principal("ada", publish=[], subscribe=[], quotas=Quotas({"topics": 2}))
BOB = Principal("bob", publish=[], subscribe=[])


def used(drive: Drive, name: str = "ada") -> tuple[int, ...]:
    """Return what a principal uses: topics, bytes of names, queues, subscriptions."""
    account = drive.broker.topics.accounts.of(name)
    return tuple(account.used(quota) for quota in list(DEFAULTS)[:4])


def restarts(drive: Drive, name: str = "ada") -> list[tuple[int, ...]]:
    """Return the same after a crash, and after one behind a snapshot."""
    drive.restart()
    from_log = used(drive, name)
    drive.snapshot()
    drive.restart()
    return [from_log, used(drive, name)]


# Who pays.


def test_a_topic_above_the_quota_is_refused_by_name_and_others_get_theirs() -> None:
    """A topic that exists is not counted again, whoever made it."""
    topics = Topics()
    made = [topics.open(name, ADA) for name in ("a", "b", "c", "a")]

    assert [True, True, False, True] == [topic is not None for topic in made]
    assert refusal("topics", 2, "ada") == topics.refusal
    assert topics.open("c", BOB) is not None
    assert topics.open("c", ADA) is not None
    assert 1 == topics.accounts.refused["topics"]


def test_the_bytes_of_names_have_a_quota_of_their_own() -> None:
    """Few long names take as much memory as many short ones."""
    topics = Topics()
    eve = Principal("eve", publish=[], subscribe=[], quotas=Quotas({"topic_name_bytes": 5}))

    assert topics.open("\u00e4\u00e4", eve) is not None
    assert topics.open("bb", eve) is None
    assert refusal("topic_name_bytes", 5, "eve") == topics.refusal
    assert topics.open("b", eve) is not None


@pytest.mark.parametrize("qos", [0, 1])
def test_owners_survive_a_crash(qos: int) -> None:
    """By the topic's first durable message, a subscription, or the queue's declaration."""
    drive = Drive()
    drive.publish("m", qos=qos)
    drive.publish("m", qos=1)
    drive.publish("m", qos=1)
    drive.subscribe("s")
    drive.declare("q", policy_of(max_attempts=1))
    consumer = drive.join(drive.queue("q"))
    drive.publish("q")
    drive.commit()
    drive.broker.queues.reject(drive.taken(consumer)[0], "rejected", drive.now_us)
    drive.commit()

    expected = (4, len("msqdlq.q"), 2, 1)
    assert [expected] * 3 == [used(drive), *restarts(drive)]


def test_a_topic_stays_with_who_made_it() -> None:
    """Even if the first record that mentions it is another principal's."""
    drive = Drive()
    drive.publish("a", qos=0)
    drive.subscribe("a", name="bob")
    drive.publish("a")
    drive.commit()

    assert [(1, 1, 0, 0)] * 2 == restarts(drive)
    assert (0, 0, 0, 1) == used(drive, "bob")


def test_a_refused_first_message_is_followed_by_one_that_names_the_owner() -> None:
    """Else a full disk and a crash would reset the quota."""
    drive = Drive()
    drive.publish("a")
    drive.broker.queues.declare(
        drive.topic("q"), policy_of(), drive.now_us, drive.topic("q").owner
    )
    drive.broker.subscribe(peer_of("ada"), drive.topic("s"), 1, drive.now_us)
    drive.refuse()
    drive.broker.accept_again()
    before = used(drive)
    drive.publish_many("a", 1)
    drive.publish_many("q", 1)

    assert (3, 3, 0, 0) == before
    assert [records.FIRST_MESSAGE] * 2 == [record[0] for record in drive.log.records]
    assert [(2, 2, 0, 0)] * 2 == restarts(drive)


def test_what_ends_is_given_back() -> None:
    """Queues and subscriptions at once."""
    drive = Drive()
    consumer = drive.subscribe("s")
    queue = drive.declare("q")
    drive.broker.unsubscribe(consumer)
    drive.broker.queues.delete(queue)
    drive.commit()

    assert [(2, 2, 0, 0)] * 3 == [used(drive), *restarts(drive)]


# Forgetting.


def idle(drive: Drive) -> list[str]:
    """Let two rounds pass; return the topics that are left."""
    drive.advance(2 * IDLE_US + 2_000_000)
    drive.commit()
    return [topic.name for topic in drive.broker.topics.all()]


def test_a_topic_without_messages_in_the_log_and_readers_is_forgotten() -> None:
    """Its owner's quota gets it back; one with any of them stays."""
    drive = Drive()
    drive.publish_many("old", 3)
    drive.publish("memory", qos=0)
    drive.subscribe("s")
    drive.declare("q")
    drive.publish_many("new", 1)
    drive.broker.topics.floor_id = 4  # as retention says

    assert ["s", "q", "new"] == idle(drive)
    assert (3, len("sqnew")) == used(drive)[:2]
    assert drive.broker.topics.removed


def test_a_topic_that_is_used_is_not_forgotten() -> None:
    """Messages that live in memory only count too."""
    drive = Drive()
    drive.broker.topics.floor_id = 1
    for _ in range(4):
        drive.publish("memory", qos=0)
        drive.advance(IDLE_US)

    assert drive.broker.topics.find("memory") is not None
    assert [] == idle(drive)


def test_a_topic_is_not_forgotten_while_a_record_of_it_is_on_its_way() -> None:
    """The commit would reach a topic that no consumer can find."""
    drive = Drive()
    drive.broker.topics.floor_id = 1
    message, subscribed = drive.topic("m"), drive.topic("s")
    drive.advance(2_000_000)
    drive.publish("m")
    drive.broker.subscribe(peer_of("ada"), subscribed, 1, drive.now_us)
    drive.advance(2 * IDLE_US)
    drive.commit()

    assert [False, False] == [message.gone, subscribed.gone]
    assert (1, 1) == (message.message_count, len(subscribed.subscriptions))


def test_one_turn_looks_at_a_bounded_number_of_topics() -> None:
    """The rest waits for later turns; a round is finished before the next begins."""
    drive = Drive()
    for number in range(LOOKED_AT_MAX + 5):
        drive.topic(str(number))
    topics = drive.broker.topics
    topics.floor_id = 1
    found = [len(topics.idle(IDLE_US * n)) for n in (1, 1, 1, 2, 2)]

    assert [0, 0, 0, LOOKED_AT_MAX, 5] == found


def test_a_forgotten_topic_begins_anew() -> None:
    """As if it had never been there, before and after a restart."""
    drive = Drive()
    drive.publish_many("a", 3)
    drive.broker.topics.floor_id = 4
    idle(drive)
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 2)

    assert [*ids, 0] == drive.poll_ids(consumer, 3)
    assert (5, 2) == (max(ids) - 1, drive.topic("a").message_count)


# Deleting.


def test_a_deleted_topic_is_gone_with_its_subscriptions_and_unread_messages() -> None:
    """Also after a restart, from the log or a snapshot; a new one of its name is empty."""
    drive = Drive()
    drive.subscribe("a")
    peer = peer_of("ada")
    drive.broker.followers.follow(peer, drive.topic("a"), bytes(32), drive.now_us)
    drive.publish_once(drive.message("a"), "d")
    drive.publish_many("b", 1)
    endings.end_topic(drive.broker, drive.topic("a"))
    drive.commit()

    assert [(1, 1, 0, 0)] * 3 == [used(drive), *restarts(drive)]
    assert drive.broker.topics.find("a") is None
    assert NEW == drive.broker.dedup.find("a", "d", drive.now_us)
    assert 0 == drive.poll_id(drive.subscribe("a"))
    assert drive.broker.topics.ended_id == drive.topic("a").began_id > 0


def test_messages_on_their_way_do_not_bring_a_deleted_topic_back() -> None:
    """They are committed before its end; a snapshot that is taken meanwhile leaves it out."""
    drive = Drive()
    drive.publish("a")
    endings.end_topic(drive.broker, drive.topic("a"))
    drive.snapshot()
    drive.publish("a", b"new")
    drive.commit()

    assert [1, 1] == [drive.topic("a").message_count, len(drive.log.snapshots)]
    drive.restart()
    assert 1 == drive.topic("a").message_count


def test_the_end_of_a_topic_that_the_log_refused_is_recorded_again() -> None:
    """It was answered, or will be: after a restart the topic must not be back."""
    drive = Drive()
    drive.publish_many("a", 1)
    endings.end_topic(drive.broker, drive.topic("a"))
    drive.refuse()
    drive.broker.accept_again()
    drive.commit()
    drive.restart()

    assert drive.broker.topics.find("a") is None
    assert records.END_TOPIC == drive.log.records[-1][0]


def test_a_subscription_on_its_way_is_known() -> None:
    """Deleting its topic now would leave it on one that no message reaches."""
    drive = Drive()
    topic = drive.topic("a")
    before = endings.is_awaited(drive.broker, topic)
    drive.broker.subscribe(peer_of("ada"), topic, 1, drive.now_us)

    assert (False, True) == (before, endings.is_awaited(drive.broker, topic))
