"""Followers: which of them get a message, and how they come and go."""

import pytest

from braidmq.broker.delivery.channels import Peer
from braidmq.broker.settings import Settings
from braidmq.broker.topics import ORIGIN_VIBE
from tests.unit.broker.drive import MS, ROOM_BYTES, Drive, S, peer_of
from tests.unit.broker.following import (
    BOX,
    KEY,
    OTHER_KEY,
    SENDER,
    fall_behind,
    follow,
    follower_of,
    give_room,
    id_of,
    leave,
    payloads,
    qumbed,
    take,
)

# Routing.


def test_a_follower_gets_later_messages_in_order() -> None:
    """Delivery settles a message: the broker waits for no acknowledgement."""
    drive = Drive()
    drive.publish_many("a", 3)
    peer = follow(drive, "a")
    drive.publish_many("a", 3)
    drive.publish_many("b", 1)

    assert [] != peer.deliveries
    assert all((0, None) == (delivery.qos, delivery.entry) for delivery in peer.deliveries)
    assert payloads(3) == take(peer)
    assert 0 == drive.broker.in_flight_count()
    assert 3 == drive.broker.stats.delivered
    assert [peer] == drive.broker.take_touched()


def test_nothing_is_pushed_before_it_is_committed() -> None:
    """A message accepted before the follower but committed after it belongs to it."""
    drive = Drive()
    drive.publish("a", b"accepted")
    peer = peer_of("ada")
    drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    before = take(peer)
    drive.commit()

    assert ([], [b"accepted"]) == (before, take(peer))


def test_each_follower_of_a_topic_gets_the_message() -> None:
    """The publisher is told how many there were."""
    drive = Drive()
    peers = [follow(drive, "a"), follow(drive, "a"), follow(drive, "a", OTHER_KEY)]
    message = qumbed(drive, "a")
    before = message.routed
    drive.commit()

    assert (0, 3) == (before, message.routed)
    assert [[b"x"]] * 3 == [take(peer) for peer in peers]


def test_followers_do_not_affect_subscriptions_and_queues() -> None:
    """A subscription and a queue of the topic get the message as well."""
    drive = Drive()
    subscribed = drive.subscribe("a")
    consumer = drive.join(drive.declare("a"))
    peer = follow(drive, "a")
    message_id = drive.publish("a")
    drive.commit()

    assert message_id == drive.poll_id(subscribed)
    assert [message_id] == [entry.id for entry in drive.taken(consumer)]
    assert [b"x"] == take(peer)


def test_a_message_for_a_key_goes_only_to_that_keys_followers() -> None:
    """Other followers skip it; subscriptions of other kinds are not filtered."""
    drive = Drive()
    mine, yours = follow(drive, "a"), follow(drive, "a", OTHER_KEY)
    subscribed = drive.subscribe("a")
    addressed = qumbed(drive, "a", b"addressed", to=OTHER_KEY)
    broadcast = qumbed(drive, "a", b"broadcast")
    drive.commit()

    assert (1, 2) == (addressed.routed, broadcast.routed)
    assert [b"broadcast"] == take(mine)
    assert [b"addressed", b"broadcast"] == take(yours)
    assert [addressed.id, broadcast.id] == drive.poll_ids(subscribed, 2)


def test_the_recipient_is_read_back_from_the_log() -> None:
    """Messages that waited in the log are filtered by the same rule."""
    drive = Drive()
    mine, yours = follow(drive, "a"), follow(drive, "a", OTHER_KEY)
    mine.room_bytes = yours.room_bytes = 0
    qumbed(drive, "a", b"first")
    qumbed(drive, "a", b"addressed", to=OTHER_KEY)
    qumbed(drive, "a", b"last")
    drive.commit()
    give_room(drive, mine, ROOM_BYTES)
    give_room(drive, yours, ROOM_BYTES)

    assert [b"first", b"last"] == take(mine)
    assert [b"first", b"addressed", b"last"] == take(yours)


def test_the_recipient_header_means_nothing_on_another_strand() -> None:
    """Only a Qumbed publisher can address a key."""
    drive = Drive()
    peer = follow(drive, "a")
    peer.room_bytes = 0
    message = qumbed(drive, "a", to=OTHER_KEY)
    message.recipient_key_id = b""
    drive.commit()
    other = drive.message("a", b"vibe")
    other.headers = message.headers
    other.origin = ORIGIN_VIBE
    drive.broker.publish(other, drive.now_us)
    drive.commit()
    give_room(drive, peer, ROOM_BYTES)

    assert [b"vibe"] == take(peer)


def test_route_all_delivers_to_every_follower() -> None:
    """With it, the recipient key is ignored, as in the original protocol."""
    drive = Drive(Settings(qumbed_route_all=True))
    peer = follow(drive, "a")
    message = qumbed(drive, "a", to=OTHER_KEY)
    drive.commit()

    assert ([b"x"], 1) == (take(peer), message.routed)


@pytest.mark.parametrize("has_room", [True, False])
def test_without_a_gateway_only_sealed_messages_are_pushed(has_room: bool) -> None:
    """A box needs a sender, and JSON is no box, however long."""
    drive = Drive(Settings(qumbed_gateway_off=True))
    peer = follow(drive, "a")
    peer.room_bytes = ROOM_BYTES if has_room else 0
    drive.publish("a", BOX)
    qumbed(drive, "a", BOX)
    qumbed(drive, "a", b'"%s"' % (b"x" * 60), sender=SENDER)
    qumbed(drive, "a", BOX[:-1], sender=SENDER)
    sealed = qumbed(drive, "a", BOX, sender=SENDER)
    drive.commit()
    give_room(drive, peer, ROOM_BYTES)

    assert ([BOX], 1) == (take(peer), sealed.routed)


def test_a_dead_letter_keeps_its_messages_recipient() -> None:
    """Both when it is pushed directly and when it is read back."""
    drive = Drive(Settings(max_retries=1))
    subscribed = drive.subscribe("a")
    mine, yours = follow(drive, "dlq.a"), follow(drive, "dlq.a", OTHER_KEY)
    late = follow(drive, "dlq.a", OTHER_KEY)
    late.room_bytes = 0
    qumbed(drive, "a", to=OTHER_KEY)
    drive.commit()
    drive.poll(subscribed)
    drive.disconnect(subscribed)
    drive.commit()
    give_room(drive, late, ROOM_BYTES)

    assert ([], [b"x"], [b"x"]) == (take(mine), take(yours), take(late))


# Memory-only and expired messages.


def test_a_memory_only_message_is_pushed_at_once_or_dropped_and_counted() -> None:
    """It does not wait, and overtakes messages that wait in the log."""
    drive = Drive()
    peer = follow(drive, "a")
    drive.publish("a", b"now", qos=0)
    peer.room_bytes = 0
    drive.publish_many("a", 1)
    drive.publish("a", b"dropped", qos=0)
    peer.room_bytes = 1
    drive.publish("a", b"overtakes", qos=0)
    give_room(drive, peer, ROOM_BYTES)

    assert [b"now", b"overtakes", b"0"] == take(peer)
    assert 1 == drive.broker.stats.dropped.overflow


def test_a_memory_only_message_counts_the_followers_that_got_it() -> None:
    """A follower without room or with another key does not get it."""
    drive = Drive()
    follow(drive, "a")
    follow(drive, "a").room_bytes = 0
    follow(drive, "a", OTHER_KEY)
    message = drive.message("a", qos=0)
    message.recipient_key_id = id_of(KEY)
    drive.broker.publish(message, drive.now_us)

    assert (1, 1) == (message.routed, drive.broker.stats.dropped.overflow)


def test_expired_messages_are_skipped_and_counted() -> None:
    """Whether they expire before the commit, in the log, or were never stored."""
    drive = Drive()
    peer = follow(drive, "a")
    drive.publish("a", b"slow commit", ttl_us=5 * MS)
    drive.now_us += 5 * MS
    drive.commit()
    expired = drive.message("a", qos=0)
    expired.expires_us = drive.now_us
    drive.broker.publish(expired, drive.now_us)
    peer.room_bytes = 0
    drive.publish("a", b"waits too long", ttl_us=5 * MS)
    drive.publish("a", b"lasts", ttl_us=50 * MS)
    drive.commit()
    drive.now_us += 5 * MS
    give_room(drive, peer, ROOM_BYTES)

    assert [b"lasts"] == take(peer)
    assert 3 == drive.broker.stats.expired


# Coming and going.


def test_a_second_subscribe_with_another_key_replaces_the_first() -> None:
    """Unsent deliveries of the first are not sent under the other key."""
    drive = Drive()
    peer = follow(drive, "a")
    qumbed(drive, "a", b"unsent", to=KEY)
    drive.commit()
    follow(drive, "a", OTHER_KEY, peer=peer)
    qumbed(drive, "a", b"old", to=KEY)
    qumbed(drive, "a", b"new", to=OTHER_KEY)
    drive.commit()

    assert [b"new"] == take(peer)
    assert (OTHER_KEY, 1) == (follower_of(peer).key, len(drive.topic("a").followers))


def test_a_second_subscribe_with_the_same_key_changes_nothing() -> None:
    """It keeps its position, so nothing is missed or repeated."""
    drive = Drive()
    peer = follow(drive, "a")
    first = follower_of(peer)
    peer.room_bytes = 0
    drive.publish_many("a", 2)

    assert 0 == drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    assert first is follower_of(peer)

    give_room(drive, peer, ROOM_BYTES)

    assert payloads(2) == take(peer)


def test_an_unsubscribed_follower_gets_nothing_more() -> None:
    """Its unsent deliveries are dropped; other followers are not affected."""
    drive = Drive()
    peer = follow(drive, "a")
    follow(drive, "b", peer=peer)
    drive.publish_many("a", 1)
    drive.publish_many("b", 1)

    assert 0 == drive.broker.followers.unfollow(peer, drive.topic("a"))
    assert 0 == drive.broker.followers.unfollow(peer, drive.topic("a"))

    drive.publish_many("a", 1)

    assert [b"0"] == take(peer)
    assert (["b"], []) == (list(peer.following), drive.topic("a").followers)
    assert 1 == drive.broker.subscription_count()


def test_unsubscribing_during_a_read_lets_the_next_follower_read() -> None:
    """The messages read are discarded."""
    drive = Drive()
    peer = peer_of("ada")
    for name in ("a", "b"):
        follow(drive, name, peer=peer)
    peer.room_bytes = 0
    drive.publish_many("a", 1)
    drive.publish("b", b"b")
    drive.commit()
    peer.room_bytes = ROOM_BYTES
    drive.broker.resume(peer, drive.now_us)
    drive.requests = drive.broker.take_reads(drive.now_us)
    drive.broker.followers.unfollow(peer, drive.topic("a"))
    drive.serve_reads()

    assert [b"b"] == take(peer)


def test_a_follower_that_leaves_cancels_its_read() -> None:
    """The read had not been requested from the log yet."""
    drive = Drive()
    peer = follow(drive, "a")
    fall_behind(drive, peer, 1)
    leave(drive, peer)

    assert [] == drive.log.reads


def test_a_disconnected_peer_leaves_nothing_behind() -> None:
    """No follower, no record, no deliveries."""
    drive = Drive()
    peer = follow(drive, "a")
    follow(drive, "b", peer=peer)
    peer.room_bytes = 1
    drive.publish_many("a", 2)
    records_before = len(drive.log.records)
    leave(drive, peer)

    assert ({}, [], []) == (peer.following, peer.laggards, peer.deliveries)
    assert ({}, 0) == (drive.broker.followers.by_id, drive.broker.subscription_count())
    assert ([], []) == (drive.topic("a").followers, drive.topic("b").followers)
    assert records_before == len(drive.log.records)


def test_followers_count_as_subscriptions_of_their_topic() -> None:
    """Operators see them, and the limit on subscriptions includes them."""
    drive = Drive()
    drive.subscribe("a")
    follow(drive, "a")
    follow(drive, "a")

    topic = drive.topic("a")

    assert 3 == len(topic.subscriptions) + len(topic.followers)
    assert 3 == drive.broker.subscription_count()


def test_retention_waits_for_a_follower_that_is_behind() -> None:
    """It waits for unsent deliveries too."""
    drive = Drive()
    peer = follow(drive, "a")
    first, second = drive.publish_many("a", 2)
    all_unsent = drive.broker.needed_id()
    peer.deliveries.pop(0)
    one_unsent = drive.broker.needed_id()
    take(peer)
    all_sent = drive.broker.needed_id()
    peer.room_bytes = 0
    third, _ = drive.publish_many("a", 2)

    assert (first, second, third) == (all_unsent, one_unsent, all_sent)
    assert third == drive.broker.needed_id()


def test_a_peer_that_follows_nothing_can_be_detached() -> None:
    """Peers of other strands have no followers."""
    drive = Drive()
    peer = Peer()
    drive.broker.resume(peer, drive.now_us)
    drive.advance(2 * S)
    leave(drive, peer)

    assert ({}, []) == (peer.following, drive.log.records)
