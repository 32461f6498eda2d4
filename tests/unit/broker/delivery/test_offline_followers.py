"""Followers that outlive their peers: away, and taken up again."""

from braidmq.broker import records
from braidmq.broker.broker import MAINTENANCE_US
from tests.unit.broker.drive import ROOM_BYTES, Drive, S, peer_of
from tests.unit.broker.following import (
    KEY,
    OFFLINE_US,
    OTHER_KEY,
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


# Away and back.


def test_a_follower_counts_once_its_record_is_committed() -> None:
    """Only messages behind that record belong to it."""
    drive = offline_drive()
    peer = peer_of("ada")
    drive.publish("a", b"before")
    given = drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    again = drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    drive.publish("a", b"behind it")
    drive.publish("a", b"memory only, too early", qos=0)
    drive.commit()

    assert (2, 2) == (given, again)
    assert 0 == drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    assert [records.MESSAGE, records.FOLLOW, records.MESSAGE] == kinds(drive)[:3]
    assert [b"behind it"] == take(peer)


def test_who_returns_with_the_same_key_gets_what_it_missed() -> None:
    """In order, what was for it only, and then what comes."""
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
    given = drive.broker.followers.follow(back, drive.topic("a"), KEY, drive.now_us)
    drive.serve_reads()
    drive.publish("a", b"new")
    drive.commit()

    assert (0, 0) == (given, missed.routed)
    assert [b"missed", b"mine", b"new"] == take(back)


def test_who_missed_nothing_goes_on_at_once() -> None:
    """What was passed over meanwhile needs no reading."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    qumbed(drive, "a", b"another's", to=OTHER_KEY)
    drive.commit()
    back = follow(drive, "a")
    drive.publish_many("a", 1)

    assert ([b"0"], []) == (take(back), drive.log.reads)


def test_another_key_or_principal_has_a_place_of_its_own() -> None:
    """What somebody missed is nobody else's."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    drive.publish_many("a", 1)
    other_key = follow(drive, "a", OTHER_KEY)
    other_name = follow(drive, "a", name="bob")
    other_topic = follow(drive, "b")

    assert ([], [], []) == (take(other_key), take(other_name), take(other_topic))
    assert 4 == drive.broker.subscription_count()


def test_what_was_not_taken_when_a_peer_went_is_still_to_come() -> None:
    """Handing over settles a message, and these bytes never left."""
    drive = offline_drive()
    peer = follow(drive, "a")
    drive.publish_many("a", 4)
    peer.deliveries = peer.deliveries[2:]  # two were sent
    leave(drive, peer)
    back = follow(drive, "a")

    assert [b"2", b"3"] == take(back)
    assert [] == peer.deliveries


def test_a_read_on_its_way_when_a_peer_goes_is_not_lost() -> None:
    """It comes to whoever has the place then, or to nobody."""
    drive = offline_drive()
    peer = follow(drive, "a")
    peer.room_bytes = 0
    drive.publish_many("a", 2)
    peer.room_bytes = ROOM_BYTES
    drive.broker.resume(peer, drive.now_us)
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


def test_a_read_that_was_never_made_is_made_for_who_returns() -> None:
    """The peer went before the log was asked."""
    drive = offline_drive()
    peer = follow(drive, "a")
    peer.room_bytes = 0
    drive.publish_many("a", 1)
    peer.room_bytes = ROOM_BYTES
    drive.broker.resume(peer, drive.now_us)
    drive.broker.detach(peer, drive.now_us)
    drive.serve_reads()

    assert [b"0"] == take(follow(drive, "a"))


def test_what_was_read_twice_is_handed_out_once() -> None:
    """A read for the peer before may come after one for the peer of now."""
    drive = offline_drive()
    peer = follow(drive, "a")
    peer.room_bytes = 0
    drive.publish_many("a", 3)
    peer.room_bytes = ROOM_BYTES
    drive.broker.resume(peer, drive.now_us)
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


def test_what_was_read_beyond_a_place_that_was_set_back_is_not_used() -> None:
    """Between the two lies what its last peer did not take."""
    drive = offline_drive()
    peer = follow(drive, "a")
    peer.room_bytes = 1
    drive.publish_many("a", 3)
    peer.room_bytes = ROOM_BYTES
    drive.broker.resume(peer, drive.now_us)
    (early,) = drive.broker.take_reads(drive.now_us)  # from the second message on
    drive.broker.detach(peer, drive.now_us)  # and the first was not taken
    back = peer_of("ada")
    drive.broker.followers.follow(back, drive.topic("a"), KEY, drive.now_us)
    found, reached_id = drive.log.read(early)
    drive.broker.supply(early, found, reached_id, drive.now_us)
    before = take(back)
    drive.serve_reads()

    assert ([], [b"0", b"1", b"2"]) == (before, take(back))


def test_a_place_is_kept_for_so_long_and_no_longer() -> None:
    """It counts from when the peer went; the end is recorded and counted."""
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
    assert ["a"] == [over.topic for over in drive.broker.take_leases_over()]
    assert records.UNSUBSCRIBE == kinds(drive)[-1]
    drive.restart()
    assert 0 == drive.broker.subscription_count()


def test_no_place_ends_while_the_log_is_full() -> None:
    """Its end could not be recorded."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    drive.refuse()
    drive.advance(2 * OFFLINE_US)
    while_full = drive.broker.subscription_count()
    drive.broker.accept_again()
    drive.advance(2 * MAINTENANCE_US)

    assert (1, 0) == (while_full, drive.broker.subscription_count())


def test_unsubscribing_ends_the_place_for_good() -> None:
    """It was asked for: nobody is away then, and a restart finds nobody."""
    drive = offline_drive()
    peer = follow(drive, "a")
    given = drive.broker.followers.unfollow(peer, drive.topic("a"))
    drive.commit()
    leave(drive, peer)
    drive.publish_many("a", 1)
    drive.restart()

    assert 2 == given
    assert [records.FOLLOW, records.UNSUBSCRIBE, records.MESSAGE] == kinds(drive)
    assert [] == take(follow(drive, "a"))


def test_unsubscribing_before_the_commit_leaves_nothing() -> None:
    """Nor does the commit bring it back."""
    drive = offline_drive()
    peer = peer_of("ada")
    drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    drive.broker.followers.unfollow(peer, drive.topic("a"))
    drive.publish_many("a", 1)
    drive.restart()

    assert ([], {}) == (take(peer), peer.following)
    assert 0 == drive.broker.subscription_count()


def test_who_goes_before_the_commit_has_a_place_all_the_same() -> None:
    """And who comes back before it takes up that one."""
    drive = offline_drive()
    peer = peer_of("ada")
    given = drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    drive.broker.detach(peer, drive.now_us)
    back = peer_of("ada")
    again = drive.broker.followers.follow(back, drive.topic("a"), KEY, drive.now_us)
    drive.publish_many("a", 1)

    assert given == again == follower_of(back).id
    assert [b"0"] == take(back)
    assert 1 == drive.broker.subscription_count()


def test_a_follower_that_the_log_refused_is_none() -> None:
    """It may come again when there is room."""
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


# Several with one key.


def test_two_streams_with_one_key_get_everything_each() -> None:
    """While both are there they are two."""
    drive = offline_drive()
    one, two = follow(drive, "a"), follow(drive, "a")
    drive.publish_many("a", 1)

    assert ([b"0"], [b"0"]) == (take(one), take(two))


def test_a_place_whose_twin_is_there_ends_when_nothing_was_missed() -> None:
    """A client that reconnects early leaves no old place behind to be taken up later."""
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


def test_a_place_does_not_end_before_its_twin_counts() -> None:
    """A message between the two records is the old one's only."""
    drive = offline_drive()
    old, new = follow(drive, "a"), peer_of("ada")
    drive.publish("a", b"between")
    drive.broker.followers.follow(new, drive.topic("a"), KEY, drive.now_us)
    leave(drive, old)
    leave(drive, new)

    assert [b"between"] == take(follow(drive, "a"))


def test_of_several_places_the_one_that_missed_most_is_taken_up() -> None:
    """The others are of no use any more, and end."""
    drive = offline_drive()
    slow = follow(drive, "a")
    slow.room_bytes = 0
    drive.publish_many("a", 2)
    quick = follow(drive, "a")
    quick.room_bytes = 0  # and so it has not taken over what the slow one missed
    leave(drive, slow)
    leave(drive, quick)
    before = drive.broker.subscription_count()
    back = follow(drive, "a")

    assert [b"0", b"1"] == take(back)
    assert (2, 1) == (before, drive.broker.subscription_count())


def test_who_comes_back_before_its_end_was_noticed_gets_what_never_arrived() -> None:
    """A device changes its network: the old connection still looks as if it were there."""
    drive = offline_drive()
    lost = follow(drive, "a")
    lost.room_bytes = 0
    drive.publish_many("a", 2)
    back = follow(drive, "a")
    drive.serve_reads()
    found = take(back)
    drive.publish_many("a", 1)
    found += take(back)
    leave(drive, lost)  # only now it is noticed

    assert [b"0", b"1", b"0"] == found
    assert 1 == drive.broker.subscription_count()
    leave(drive, back)
    assert [] == take(follow(drive, "a"))


def test_a_place_that_is_taken_over_later_ends_then() -> None:
    """Else it held the log back, and all of it came again at the next return."""
    drive = offline_drive()
    lost = follow(drive, "a")
    lost.room_bytes = 0
    drive.publish_many("a", 3)
    back = follow(drive, "a")
    back.room_bytes = 0
    leave(drive, lost)  # before the other one has what it missed
    between = drive.broker.subscription_count()
    back.room_bytes = 1 << 20
    drive.broker.resume(back, drive.now_us)
    drive.serve_reads()
    taken = take(back)
    drive.advance(2 * S)

    assert [b"0", b"1", b"2"] == taken
    assert (2, 1) == (between, drive.broker.subscription_count())
    assert drive.broker.committed_id + 1 == drive.broker.needed_id()


# What others see of it.


def test_nobody_polls_a_follower() -> None:
    """Its id is no subscription's that Blip could consume."""
    drive = offline_drive()
    peer = follow(drive, "a")
    given = follower_of(peer).id

    assert drive.broker.subscriptions.attach(peer, given) is None


def test_retention_waits_for_who_is_away() -> None:
    """Until it has come back, or its time is over."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    (missed,) = drive.publish_many("a", 1)
    drive.publish_many("b", 3)
    needed = drive.broker.needed_id()
    back = follow(drive, "a")
    take(back)

    assert missed == needed
    assert drive.broker.committed_id + 1 == drive.broker.needed_id()


def test_who_is_away_costs_a_place_and_no_memory_for_messages() -> None:
    """Whatever comes, and also when it comes back without room."""
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
