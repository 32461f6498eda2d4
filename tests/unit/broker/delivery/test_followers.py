"""Followers: who gets a message, who comes and goes, and what a publisher said."""

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
    follow,
    follower_of,
    give_room,
    id_of,
    leave,
    qumbed,
    take,
)


def payloads(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# Who gets what.


def test_a_follower_gets_what_is_committed_after_it_in_order() -> None:
    """Handing a message out settles it: nobody waits for an answer."""
    drive = Drive()
    drive.publish_many("a", 3)
    peer = follow(drive, "a")
    drive.publish_many("a", 3)
    drive.publish_many("b", 1)

    assert [] != peer.deliveries
    assert all((0, None) == (given.qos, given.entry) for given in peer.deliveries)
    assert payloads(3) == take(peer)
    assert 0 == drive.broker.in_flight_count()
    assert 3 == drive.broker.stats.delivered
    assert [peer] == drive.broker.take_touched()


def test_nothing_is_pushed_before_it_is_committed() -> None:
    """What was accepted before the follower and is committed after it belongs to it."""
    drive = Drive()
    drive.publish("a", b"accepted")
    peer = peer_of("ada")
    drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    before = take(peer)
    drive.commit()

    assert ([], [b"accepted"]) == (before, take(peer))


def test_followers_of_one_topic_get_a_message_each() -> None:
    """And the publisher is told how many there were."""
    drive = Drive()
    peers = [follow(drive, "a"), follow(drive, "a"), follow(drive, "a", OTHER_KEY)]
    message = qumbed(drive, "a")
    before = message.routed
    drive.commit()

    assert (0, 3) == (before, message.routed)
    assert [[b"x"]] * 3 == [take(peer) for peer in peers]


def test_other_subscriptions_of_the_topic_have_it_as_well() -> None:
    """A follower takes nothing from a subscription or from a queue."""
    drive = Drive()
    subscribed = drive.subscribe("a")
    consumer = drive.join(drive.declare("a"))
    peer = follow(drive, "a")
    given = drive.publish("a")
    drive.commit()

    assert given == drive.poll_id(subscribed)
    assert [given] == [entry.id for entry in drive.taken(consumer)]
    assert [b"x"] == take(peer)


def test_a_message_for_a_key_goes_to_that_keys_followers_only() -> None:
    """The others pass it over; subscriptions of other kinds are not filtered."""
    drive = Drive()
    mine, yours = follow(drive, "a"), follow(drive, "a", OTHER_KEY)
    subscribed = drive.subscribe("a")
    addressed = qumbed(drive, "a", b"addressed", to=OTHER_KEY)
    everybodys = qumbed(drive, "a", b"everybody's")
    drive.commit()

    assert (1, 2) == (addressed.routed, everybodys.routed)
    assert [b"everybody's"] == take(mine)
    assert [b"addressed", b"everybody's"] == take(yours)
    assert [addressed.id, everybodys.id] == drive.poll_ids(subscribed, 2)


def test_whom_a_message_is_for_is_read_back_from_the_log() -> None:
    """What waits in the log is filtered by the same rule as what does not."""
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


def test_a_header_of_that_name_means_nothing_on_another_strand() -> None:
    """Only a Qumbed publisher addresses a key."""
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


def test_everybody_gets_everything_when_the_settings_say_so() -> None:
    """`route_all` is the original's way."""
    drive = Drive(Settings(qumbed_route_all=True))
    peer = follow(drive, "a")
    message = qumbed(drive, "a", to=OTHER_KEY)
    drive.commit()

    assert ([b"x"], 1) == (take(peer), message.routed)


@pytest.mark.parametrize("has_room", [True, False])
def test_without_a_gateway_only_sealed_messages_are_pushed(has_room: bool) -> None:
    """A box needs a sender; JSON is none, however long."""
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


def test_a_dead_letter_is_for_whom_its_message_was() -> None:
    """The letter has the same recipient, at hand and read back."""
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


# Messages that live in memory only, and those whose time is over.


def test_a_memory_only_message_is_pushed_at_once_or_dropped_and_counted() -> None:
    """It waits nowhere, and overtakes what waits in the log."""
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


def test_a_memory_only_message_counts_those_it_was_pushed_to() -> None:
    """Who has no room, or is not meant, does not get it."""
    drive = Drive()
    follow(drive, "a")
    follow(drive, "a").room_bytes = 0
    follow(drive, "a", OTHER_KEY)
    message = drive.message("a", qos=0)
    message.recipient_key_id = id_of(KEY)
    drive.broker.publish(message, drive.now_us)

    assert (1, 1) == (message.routed, drive.broker.stats.dropped.overflow)


def test_what_has_expired_is_passed_over_and_counted() -> None:
    """While it is committed, in the log, and when it was never stored."""
    drive = Drive()
    peer = follow(drive, "a")
    drive.publish("a", b"slow commit", ttl_us=5 * MS)
    drive.now_us += 5 * MS
    drive.commit()
    over = drive.message("a", qos=0)
    over.expires_us = drive.now_us
    drive.broker.publish(over, drive.now_us)
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
    """What the first was given and has not been sent is not sent under the other key."""
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
    """Its place is kept, so that nothing is missed and nothing comes twice."""
    drive = Drive()
    peer = follow(drive, "a")
    first = follower_of(peer)
    peer.room_bytes = 0
    drive.publish_many("a", 2)

    assert 0 == drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    assert first is follower_of(peer)

    give_room(drive, peer, ROOM_BYTES)

    assert payloads(2) == take(peer)


def test_who_has_unsubscribed_gets_nothing_more() -> None:
    """Nothing is left of it, nor what it was given and was not sent; others go on."""
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


def test_the_end_of_one_that_was_being_read_for_lets_the_next_read() -> None:
    """What was read for it goes nowhere."""
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


def test_a_read_that_was_not_asked_yet_ends_with_its_follower() -> None:
    """Whoever is gone needs no reading."""
    drive = Drive()
    peer = follow(drive, "a")
    peer.room_bytes = 0
    drive.publish_many("a", 1)
    peer.room_bytes = ROOM_BYTES
    drive.broker.resume(peer, drive.now_us)
    leave(drive, peer)

    assert [] == drive.log.reads


def test_a_peer_that_is_gone_leaves_nothing_behind() -> None:
    """No follower, no record, nothing that it was given."""
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
    """An operator sees them, and the bound on subscriptions holds for them."""
    drive = Drive()
    drive.subscribe("a")
    follow(drive, "a")
    follow(drive, "a")

    topic = drive.topic("a")

    assert 3 == len(topic.subscriptions) + len(topic.followers)
    assert 3 == drive.broker.subscription_count()


def test_retention_waits_for_a_follower_that_is_behind() -> None:
    """And for what its peer was given and has not taken."""
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


def test_a_peer_that_follows_nothing_is_let_go_as_ever() -> None:
    """Other strands' peers have deliveries of their own."""
    drive = Drive()
    peer = Peer()
    drive.broker.resume(peer, drive.now_us)
    drive.advance(2 * S)
    leave(drive, peer)

    assert ({}, []) == (peer.following, drive.log.records)
