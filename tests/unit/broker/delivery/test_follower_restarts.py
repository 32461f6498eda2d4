"""Followers that outlive the broker: records, progress and snapshots."""

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


def test_a_restart_restores_an_offline_follower_and_its_position() -> None:
    """From its record and its progress records."""
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


def test_progress_continues_after_a_restart() -> None:
    """Progress recorded before and after leaves no gap."""
    drive = offline_drive()
    for _ in range(3):
        peer = follow(drive, "a")
        drive.publish("a", b"new")
        drive.commit()
        assert [b"new"] == take(peer)
        drive.advance(PROGRESS_DELAY_US)
        drive.commit()
        drive.restart()


def test_a_follower_is_restored_from_a_snapshot() -> None:
    """With its key and position; later messages come from the records."""
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


def test_a_snapshot_includes_uncommitted_followers() -> None:
    """The snapshot counts only once its last id is committed, and then so are they."""
    drive = offline_drive()
    peer = peer_of("ada")
    drive.broker.followers.follow(peer, drive.topic("a"), KEY, drive.now_us)
    drive.snapshot()
    drive.commit()
    drive.publish_many("a", 1)
    drive.restart()

    assert [b"0"] == take(follow(drive, "a"))


def test_unsent_deliveries_are_not_recorded_as_settled() -> None:
    """Neither in a snapshot nor in a progress record, however long they stay unsent."""
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


def test_late_sends_are_recorded_when_they_happen() -> None:
    """The broker checks again later, without a busy loop."""
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


def test_a_stalled_peer_does_not_delay_the_progress_of_others() -> None:
    """Their progress is recorded after the usual delay."""
    drive = offline_drive()
    follow(drive, "a")
    drive.publish_many("a", 1)
    drive.advance(PROGRESS_DELAY_US)
    other = follow(drive, "b")
    drive.publish_many("b", 1)
    take(other)
    drive.advance(PROGRESS_DELAY_US)

    assert drive.broker.wants_commit()


def test_refused_progress_is_recorded_later() -> None:
    """Together with the progress since."""
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


def test_a_restart_resets_the_offline_time() -> None:
    """The broker does not know how long it was down."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    drive.advance(OFFLINE_US - 2 * MAINTENANCE_US)
    drive.snapshot()
    drive.restart()
    drive.advance(OFFLINE_US - MAINTENANCE_US)
    before = drive.broker.subscription_count()
    drive.advance(2 * MAINTENANCE_US)

    assert (1, 0) == (before, drive.broker.subscription_count())


def test_followers_end_when_offline_delivery_is_switched_off() -> None:
    """A broker restarted without it does not keep the followers it recovers."""
    drive = offline_drive()
    leave(drive, follow(drive, "a"))
    drive.settings = Settings()
    drive.restart()
    back = follow(drive, "a")
    leave(drive, back)

    assert 0 == drive.broker.subscription_count()


def test_a_replayed_unsubscribe_ends_the_follower() -> None:
    """Also one from a snapshot."""
    drive = offline_drive()
    peer = follow(drive, "a")
    drive.snapshot()
    drive.broker.followers.unfollow(peer, drive.topic("a"))
    drive.commit()
    drive.restart()

    assert (1, 0) == (len(drive.log.snapshots), drive.broker.subscription_count())


def test_a_snapshot_from_before_there_were_followers_is_read() -> None:
    """It contains none."""
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


def test_a_snapshot_leaves_out_followers_without_a_record() -> None:
    """They end with their connection."""
    drive = Drive()
    follow(drive, "a")
    _, data = state.snapshot(drive.broker, drive.now_us)

    assert [] == msgspec.msgpack.decode(data)["followers"]


def test_recovery_takes_the_time_of_a_follow_record_into_account() -> None:
    """The clock does not go back before it."""
    drive = offline_drive()
    follow(drive, "a")
    drive.restart()

    assert START_US == drive.broker.times.newest_us
