"""Maintenance of a broker with very many subscriptions and queues."""

from braidmq.broker.broker import MAINTENANCE_PAUSE_US, MAINTENANCE_ROWS_MAX
from braidmq.broker.policy import PRIORITY_BASED
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import Drive, S, peer_of, policy_of


def test_maintenance_of_very_many_takes_several_turns() -> None:
    """Each looks at a bounded number, and all have had their turn before the next round."""
    drive = Drive(Settings(lease_us=60 * S))
    for _ in range(2 * MAINTENANCE_ROWS_MAX // 5):
        drive.broker.queues.declare(
            drive.topic(f"q{drive.broker.outgoing.next_id}"),
            policy_of(mode=PRIORITY_BASED),
            drive.now_us,
        )
    peer, topic = peer_of("ada"), drive.topic("a")
    for _ in range(MAINTENANCE_ROWS_MAX + 1):
        drive.broker.subscribe(peer, topic, 1, drive.now_us)
    drive.commit()
    drive.now_us += 61 * S
    left: list[int] = []
    turns = 0
    while drive.broker.maintenance_us <= drive.now_us + MAINTENANCE_PAUSE_US:
        drive.now_us = max(drive.now_us, drive.broker.maintenance_us)
        drive.tick()
        turns += 1
        left.append(len(drive.broker.subscriptions.by_id))

    assert 4 == turns
    assert [MAINTENANCE_ROWS_MAX + 1] * 2 + [1, 0] == left
