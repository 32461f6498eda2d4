"""Followers that outlive their connections: offline, and resumed."""

from braidmq.broker import records
from braidmq.broker.broker import MAINTENANCE_US
from tests.unit.broker.drive import ROOM_BYTES, Drive, S, peer_of
from tests.unit.broker.following import (
    KEY,
    OFFLINE_US,
    OTHER_KEY,
    fall_behind,
    follow,
    follower_of,
    give_room,
    leave,
    offline_drive,
    qumbed,
    take,
)


def kinds(drive: Drive) -> list[int]:
    return [record[0] for record in drive.log.records]


# Offline and back.


def test_a_follower_counts_once_its_record_is_committed() -> None:
    """Only messages after that record belong to it."""
    drive = offline_drive()
    peer = peer_of("ada")
    drive.publish("a", b"before")
    record_id = drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    again = drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    drive.publish("a", b"behind it")
    drive.publish("a", b"memory only, too early", qos=0)
    drive.commit()

    assert (2, 2) == (record_id, again)
    assert 0 == drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    assert [records.FIRST_MESSAGE, records.FOLLOW, records.MESSAGE] == kinds(drive)[:3]
    assert [b"behind it"] == take(peer)


def test_a_returning_follower_gets_what_it_missed() -> None:
    """In order, only its own messages, and then new ones."""
    drive = offline_drive()
    peer = follow(drive, "a")
    drive.publish("a", b"had")
    drive.commit()
    take(peer)
    leave(drive, peer)
    missed = qumbed(drive, "a", b"missed")
    qumbed(drive, "a", b"another's", to=OTHER_KEY)
    qumbed(drive, "a", b"mine", to=KEY)
    drive.publish("a", b"memory only", qos=0)
    drive.commit()
    back = peer_of("ada")
    record_id = drive.broker.followers.follow(back, drive.topic("a"), KEY, drive.now_us)
    drive.serve_reads()
    drive.publish("a", b"new")
    drive.commit()

    assert (0, 0) == (record_id, missed.routed)
    assert [b"missed", b"mine", b"new"] == take(back)


def test_a_follower_that_missed_nothing_resumes_without_a_read() -> None:
    """Messages for other keys need not be read."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    qumbed(drive, "a", b"another's", to=OTHER_KEY)
    drive.commit()
    back = follow(drive, "a")
    drive.publish_many("a", 1)

    assert ([b"0"], []) == (take(back), drive.log.reads)


def test_another_key_principal_or_topic_is_a_separate_follower() -> None:
    """None of them gets what the offline follower missed."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    drive.publish_many("a", 1)
    other_key = follow(drive, "a", OTHER_KEY)
    other_name = follow(drive, "a", name="bob")
    other_topic = follow(drive, "b")

    assert ([], [], []) == (take(other_key), take(other_name), take(other_topic))
    assert 4 == drive.broker.subscription_count()


def test_unsent_deliveries_are_repeated_after_a_reconnect() -> None:
    """Sending a message settles it, and these were never sent."""
    drive = offline_drive()
    peer = follow(drive, "a")
    drive.publish_many("a", 4)
    peer.deliveries = peer.deliveries[2:]  # two were sent
    leave(drive, peer)
    back = follow(drive, "a")

    assert [b"2", b"3"] == take(back)
    assert [] == peer.deliveries


def test_a_disconnect_during_a_read_loses_and_repeats_nothing() -> None:
    """The answer to the old read is discarded after the follower resumes."""
    drive = offline_drive()
    peer = follow(drive, "a")
    fall_behind(drive, peer, 2)
    drive.requests = drive.broker.take_reads(drive.now_us)
    (early,) = drive.requests
    drive.broker.detach(peer, drive.now_us)
    drive.serve_reads()
    back = follow(drive, "a")
    got = take(back)
    found, reached_id = drive.log.read(early)
    drive.broker.supply(early, found, reached_id, drive.now_us)

    assert [b"0", b"1"] == got
    assert [] == take(back)


def test_a_read_cancelled_by_a_disconnect_is_made_after_the_reconnect() -> None:
    """The peer disconnected before the log was asked."""
    drive = offline_drive()
    peer = follow(drive, "a")
    fall_behind(drive, peer, 1)
    drive.broker.detach(peer, drive.now_us)
    drive.serve_reads()

    assert [b"0"] == take(follow(drive, "a"))


def test_messages_read_twice_are_delivered_once() -> None:
    """The answer to a read for the previous connection may come late."""
    drive = offline_drive()
    peer = follow(drive, "a")
    fall_behind(drive, peer, 3)
    (early,) = drive.broker.take_reads(drive.now_us)
    drive.broker.detach(peer, drive.now_us)
    back = peer_of("ada")
    back.room_bytes = 1
    follow(drive, "a", peer=back)
    first = take(back)
    back.room_bytes = ROOM_BYTES
    found, reached_id = drive.log.read(early)
    drive.broker.supply(early, found, reached_id, drive.now_us)

    assert ([b"0"], [b"1", b"2"]) == (first, take(back))


def test_a_read_beyond_the_reset_position_is_discarded() -> None:
    """Using it would skip what the last connection did not send."""
    drive = offline_drive()
    peer = follow(drive, "a")
    fall_behind(drive, peer, 3, room_bytes=1)
    (early,) = drive.broker.take_reads(drive.now_us)  # starts at the second message
    drive.broker.detach(peer, drive.now_us)  # the first was not sent
    back = peer_of("ada")
    drive.broker.followers.follow(back, drive.topic("a"), KEY, drive.now_us)
    found, reached_id = drive.log.read(early)
    drive.broker.supply(early, found, reached_id, drive.now_us)
    before = take(back)
    drive.serve_reads()

    assert ([], [b"0", b"1", b"2"]) == (before, take(back))


def test_an_offline_follower_ends_after_the_configured_time() -> None:
    """The time counts from the disconnect; the end is recorded and counted."""
    drive = offline_drive()
    peer = follow(drive, "a")
    drive.advance(2 * OFFLINE_US)
    leave(drive, peer)
    drive.publish_many("a", 1)
    drive.advance(OFFLINE_US - MAINTENANCE_US)
    before = drive.broker.subscription_count()
    drive.advance(2 * MAINTENANCE_US)
    drive.commit()

    assert (1, 0) == (before, drive.broker.subscription_count())
    assert 1 == drive.broker.stats.leases_ended
    assert ["a"] == [lease.topic for lease in drive.broker.take_leases_over()]
    assert records.UNSUBSCRIBE == kinds(drive)[-1]
    drive.restart()
    assert 0 == drive.broker.subscription_count()


def test_no_offline_follower_ends_while_the_log_is_full() -> None:
    """The log would refuse the record of its end."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    drive.refuse()
    drive.advance(2 * OFFLINE_US)
    while_full = drive.broker.subscription_count()
    drive.broker.accept_again()
    drive.advance(2 * MAINTENANCE_US)

    assert (1, 0) == (while_full, drive.broker.subscription_count())


def test_unsubscribing_ends_the_follower_for_good() -> None:
    """It is not kept offline, and a restart does not restore it."""
    drive = offline_drive()
    peer = follow(drive, "a")
    record_id = drive.broker.followers.unfollow(peer, drive.topic("a"))
    drive.commit()
    leave(drive, peer)
    drive.publish_many("a", 1)
    drive.restart()

    assert 2 == record_id
    assert [records.FOLLOW, records.UNSUBSCRIBE, records.FIRST_MESSAGE] == kinds(drive)
    assert [] == take(follow(drive, "a"))


def test_unsubscribing_before_the_commit_leaves_no_follower() -> None:
    """The commit does not bring it back."""
    drive = offline_drive()
    peer = peer_of("ada")
    drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    drive.broker.followers.unfollow(peer, drive.topic("a"))
    drive.publish_many("a", 1)
    drive.restart()

    assert ([], {}) == (take(peer), peer.following)
    assert 0 == drive.broker.subscription_count()


def test_a_follower_whose_peer_leaves_before_the_commit_is_kept() -> None:
    """A peer that returns before the commit resumes it."""
    drive = offline_drive()
    peer = peer_of("ada")
    record_id = drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    drive.broker.detach(peer, drive.now_us)
    back = peer_of("ada")
    again = drive.broker.followers.follow(back, drive.topic("a"), KEY, drive.now_us)
    drive.publish_many("a", 1)

    assert record_id == again == follower_of(back).id
    assert [b"0"] == take(back)
    assert 1 == drive.broker.subscription_count()


def test_a_refused_follower_does_not_exist() -> None:
    """Its peer may follow again once there is room."""
    drive = offline_drive()
    peer = peer_of("ada")
    drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    refused = drive.refuse()
    drive.broker.accept_again()
    left = ({}, [], 0) == (
        peer.following,
        drive.topic("a").followers,
        drive.broker.subscription_count(),
    )
    follow(drive, "a", peer=peer)
    drive.publish_many("a", 1)

    assert (1, True) == (len(refused), left)
    assert [b"0"] == take(peer)


# Several followers with one key.


def test_two_connections_with_one_key_both_get_everything() -> None:
    """While both are connected they are separate followers."""
    drive = offline_drive()
    one, two = follow(drive, "a"), follow(drive, "a")
    drive.publish_many("a", 1)

    assert ([b"0"], [b"0"]) == (take(one), take(two))


def test_a_follower_with_a_connected_twin_ends_if_it_missed_nothing() -> None:
    """A client that reconnects early leaves no old follower behind."""
    drive = offline_drive()
    old, new = follow(drive, "a"), follow(drive, "a")
    drive.publish_many("a", 1)
    take(old)
    leave(drive, old)
    take(new)
    leave(drive, new)
    drive.publish("a", b"missed")
    drive.commit()
    back = follow(drive, "a")

    assert [b"missed"] == take(back)
    assert 1 == drive.broker.subscription_count()


def test_a_follower_does_not_end_before_its_twin_is_committed() -> None:
    """A message between the two records belongs only to the old one."""
    drive = offline_drive()
    old, new = follow(drive, "a"), peer_of("ada")
    drive.publish("a", b"between")
    drive.broker.followers.follow(new, drive.topic("a"), KEY, drive.now_us)
    leave(drive, old)
    leave(drive, new)

    assert [b"between"] == take(follow(drive, "a"))


def test_the_offline_follower_that_missed_most_is_resumed() -> None:
    """The others are redundant and end."""
    drive = offline_drive()
    slow = follow(drive, "a")
    slow.room_bytes = 0
    drive.publish_many("a", 2)
    quick = follow(drive, "a")
    quick.room_bytes = 0  # so it has not taken over what the slow one missed
    leave(drive, slow)
    leave(drive, quick)
    before = drive.broker.subscription_count()
    back = follow(drive, "a")

    assert [b"0", b"1"] == take(back)
    assert (2, 1) == (before, drive.broker.subscription_count())


def test_a_client_that_reconnects_early_gets_what_never_arrived() -> None:
    """A device changed networks, and the old connection still seems open."""
    drive = offline_drive()
    lost = follow(drive, "a")
    lost.room_bytes = 0
    drive.publish_many("a", 2)
    back = follow(drive, "a")
    drive.serve_reads()
    found = take(back)
    drive.publish_many("a", 1)
    found += take(back)
    leave(drive, lost)  # noticed only now

    assert [b"0", b"1", b"0"] == found
    assert 1 == drive.broker.subscription_count()
    leave(drive, back)
    assert [] == take(follow(drive, "a"))


def test_an_offline_follower_ends_once_its_twin_has_caught_up() -> None:
    """Otherwise it would hold the log back, and the next return would repeat everything."""
    drive = offline_drive()
    lost = follow(drive, "a")
    lost.room_bytes = 0
    drive.publish_many("a", 3)
    back = follow(drive, "a")
    back.room_bytes = 0
    leave(drive, lost)  # before the other one has caught up
    between = drive.broker.subscription_count()
    back.room_bytes = 1 << 20
    drive.broker.resume(back, drive.now_us)
    drive.serve_reads()
    taken = take(back)
    drive.advance(2 * S)

    assert [b"0", b"1", b"2"] == taken
    assert (2, 1) == (between, drive.broker.subscription_count())
    assert drive.broker.committed_id + 1 == drive.broker.needed_id()


# Other features.


def test_a_follower_cannot_be_polled() -> None:
    """Its id is not that of a Blip subscription."""
    drive = offline_drive()
    peer = follow(drive, "a")
    follower_id = follower_of(peer).id

    assert drive.broker.subscriptions.attach(peer, follower_id) is None


def test_retention_waits_for_an_offline_follower() -> None:
    """Until it has returned and caught up."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    (missed,) = drive.publish_many("a", 1)
    drive.publish_many("b", 3)
    needed = drive.broker.needed_id()
    back = follow(drive, "a")
    take(back)

    assert missed == needed
    assert drive.broker.committed_id + 1 == drive.broker.needed_id()


def test_an_offline_follower_holds_no_messages_in_memory() -> None:
    """However many are published, and also when it returns without room."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    drive.publish_many("a", 50)
    back = peer_of("ada")
    back.room_bytes = 0
    follow(drive, "a", peer=back)
    before = (len(back.deliveries), len(drive.log.reads))
    held_bytes = drive.broker.dispatch.windows.held_bytes
    give_room(drive, back, ROOM_BYTES)

    assert ((0, 0), 0) == (before, held_bytes)
    assert 50 == len(take(back))


def test_very_many_followers_take_turns() -> None:
    """Each turn looks at a bounded number; one that returns between two of them stays."""
    drive = offline_drive()
    followers = drive.broker.followers
    peers = [follow(drive, f"t.{number}") for number in range(30)]
    for peer in peers:
        leave(drive, peer)
    due_us = drive.now_us + OFFLINE_US + 1
    left: list[int] = []
    while not followers.end_overdue(due_us, 10):
        assert followers.is_in_round()
        left.append(len(followers.by_id))
        if len(left) == 3:
            follow(drive, "t.29")

    assert [30, 30, 30, 20, 10] == left
    assert not followers.is_in_round()
    assert ["t.29"] == [follower.topic.name for follower in followers.by_id.values()]


def test_ending_many_followers_of_one_topic_takes_turns() -> None:
    """Each end copies its topic's list, which counts as rows too."""
    drive = offline_drive()
    followers = drive.broker.followers
    topic = drive.topic("a")
    for number in range(640):
        peer = peer_of(f"p{number}")
        followers.follow(peer, topic, KEY, drive.now_us)
        drive.broker.detach(peer, drive.now_us)
    drive.commit()
    before = len(followers.by_id)
    assert not followers.end_overdue(drive.now_us + OFFLINE_US + 1, before + 100)
    ended = before - len(followers.by_id)

    assert 0 < ended < 15
