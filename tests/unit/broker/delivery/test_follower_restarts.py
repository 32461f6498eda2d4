"""Followers that outlive the broker: their records, their progress, their snapshots."""

import msgspec

from braidmq.broker import state
from braidmq.broker.broker import MAINTENANCE_US
from braidmq.broker.outgoing import PROGRESS_DELAY_US
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import ROOM_BYTES, START_US, Drive, peer_of
from tests.unit.broker.following import (
    KEY,
    OFFLINE_US,
    OTHER_KEY,
    follow,
    give_room,
    leave,
    offline_drive,
    take,
)


def test_a_restart_finds_who_is_away_and_where_it_was() -> None:
    """By its record and those of its progress."""
    drive = offline_drive()
    peer = follow(drive, "a")
    drive.publish_many("a", 2)
    take(peer)
    drive.advance(PROGRESS_DELAY_US)
    drive.publish("a", b"handed, not recorded")
    drive.commit()
    drive.restart()
    back = follow(drive, "a")

    assert [b"handed, not recorded"] == take(back)


def test_progress_goes_on_after_a_restart_where_it_was() -> None:
    """What was recorded before and after it leaves nothing between."""
    drive = offline_drive()
    for _ in range(3):
        peer = follow(drive, "a")
        drive.publish("a", b"new")
        drive.commit()
        assert [b"new"] == take(peer)
        drive.advance(PROGRESS_DELAY_US)
        drive.commit()
        drive.restart()


def test_a_restart_finds_it_in_a_snapshot() -> None:
    """With key and place; what came behind the snapshot is in the records."""
    drive = offline_drive()
    peer = follow(drive, "a")
    drive.publish_many("a", 2)
    take(peer)
    drive.snapshot()
    drive.commit()
    assert 1 == len(drive.log.snapshots)
    drive.publish("a", b"behind it")
    drive.commit()
    drive.restart()

    assert ([], [b"behind it"]) == (
        take(follow(drive, "a", OTHER_KEY)),
        take(follow(drive, "a")),
    )


def test_a_snapshot_has_those_that_are_not_committed_yet() -> None:
    """It counts once its last id is committed, and they are by then."""
    drive = offline_drive()
    peer = peer_of("ada")
    drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    drive.snapshot()
    drive.commit()
    drive.publish_many("a", 1)
    drive.restart()

    assert [b"0"] == take(follow(drive, "a"))


def test_a_snapshot_does_not_say_settled_of_what_was_not_taken() -> None:
    """Nor does a progress record, however long its peer does not take it."""
    drive = offline_drive()
    peer = follow(drive, "a")
    drive.publish_many("a", 3)
    peer.deliveries = peer.deliveries[1:]
    drive.advance(10 * PROGRESS_DELAY_US)
    drive.commit()
    by_records = Drive(drive.settings)
    by_records.log.records = list(drive.log.records)
    by_records.restart()
    drive.snapshot()
    drive.commit()
    drive.restart()

    assert [b"1", b"2"] == take(follow(drive, "a"))
    assert [b"1", b"2"] == take(follow(by_records, "a"))


def test_what_a_peer_takes_late_is_recorded_then() -> None:
    """The broker asks again about it, without being busy with it."""
    drive = offline_drive()
    peer = follow(drive, "a")
    drive.publish_many("a", 3)
    peer.deliveries = peer.deliveries[1:]
    drive.advance(PROGRESS_DELAY_US)
    drive.commit()
    peer.deliveries = peer.deliveries[1:]
    drive.commit()
    untaken = drive.broker.wants_commit()
    is_idle = drive.broker.next_deadline_us() > drive.now_us
    take(peer)
    drive.advance(2 * MAINTENANCE_US)
    drive.commit()
    drive.restart()

    assert (False, True) == (untaken, is_idle)
    assert [] == take(follow(drive, "a"))


def test_others_do_not_wait_for_a_peer_that_takes_nothing() -> None:
    """Their progress is recorded as soon as ever."""
    drive = offline_drive()
    follow(drive, "a")
    drive.publish_many("a", 1)
    drive.advance(PROGRESS_DELAY_US)
    other = follow(drive, "b")
    drive.publish_many("b", 1)
    take(other)
    drive.advance(PROGRESS_DELAY_US)

    assert drive.broker.wants_commit()


def test_progress_that_the_log_refused_is_recorded_later() -> None:
    """Together with what happened since."""
    drive = offline_drive()
    peer = follow(drive, "a")
    peer.room_bytes = 1
    drive.publish_many("a", 2)
    take(peer)
    drive.advance(PROGRESS_DELAY_US)
    drive.refuse()
    drive.broker.accept_again()
    give_room(drive, peer, ROOM_BYTES)
    take(peer)
    drive.commit()
    drive.restart()

    assert [] == take(follow(drive, "a"))


def test_after_a_restart_the_time_away_counts_from_then() -> None:
    """Nobody knows how long the broker was down."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    drive.advance(OFFLINE_US - 2 * MAINTENANCE_US)
    drive.snapshot()
    drive.restart()
    drive.advance(OFFLINE_US - MAINTENANCE_US)
    before = drive.broker.subscription_count()
    drive.advance(2 * MAINTENANCE_US)

    assert (1, 0) == (before, drive.broker.subscription_count())


def test_places_end_when_they_are_no_longer_wanted() -> None:
    """A broker that is started without them lets go of those it finds."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    drive.settings = Settings()
    drive.restart()
    back = follow(drive, "a")
    leave(drive, back)

    assert 0 == drive.broker.subscription_count()


def test_a_replayed_end_finds_the_follower() -> None:
    """Also one that a snapshot has."""
    drive = offline_drive()
    peer = follow(drive, "a")
    drive.snapshot()
    drive.broker.followers.unfollow(peer, drive.topic("a"))
    drive.commit()
    drive.restart()

    assert (1, 0) == (len(drive.log.snapshots), drive.broker.subscription_count())


def test_a_snapshot_from_before_there_were_followers_is_read() -> None:
    """Nobody follows in it."""
    drive = Drive()
    drive.publish_many("a", 1)
    drive.snapshot()
    last_id, data = drive.log.snapshots[0]
    older = msgspec.msgpack.decode(data)
    older["version"] = 2
    del older["followers"]
    drive.log.snapshots = [(last_id, msgspec.msgpack.encode(older))]
    drive.restart()

    assert 1 == drive.topic("a").message_count


def test_a_snapshot_leaves_out_who_has_no_record() -> None:
    """Its peer is gone by then."""
    drive = Drive()
    follow(drive, "a")
    _, data = state.snapshot(drive.broker, drive.now_us)

    assert [] == msgspec.msgpack.decode(data)["followers"]


def test_the_time_of_the_record_is_met_in_recovery() -> None:
    """Time does not go back behind it."""
    drive = offline_drive()
    follow(drive, "a")
    drive.restart()

    assert START_US == drive.broker.latest_us
