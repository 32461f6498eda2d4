"""Subscription leases: what renews one, and how it ends. For restarts see test_state.py."""

from braidmq.broker import records
from braidmq.broker.broker import MAINTENANCE_US
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import Drive, S


def test_an_unused_lease_ends() -> None:
    """The end is recorded and counted; the lease of a QoS 0 subscription is shorter."""
    drive = Drive(Settings(lease_us=60 * S, lease_qos0_us=20 * S))
    drive.subscribe("a")
    drive.subscribe("a", qos=0)
    drive.advance(20 * S + MAINTENANCE_US)

    assert [1] == list(drive.broker.subscriptions.by_id)
    assert [2] == [lease.subscription_id for lease in drive.broker.take_leases_over()]
    drive.advance(40 * S)
    assert {} == drive.broker.subscriptions.by_id
    assert [1] == [lease.subscription_id for lease in drive.broker.take_leases_over()]
    assert [] == drive.broker.take_leases_over()
    drive.commit()
    ends = [records.read_unsubscribe(r) for r in drive.log.records if r[0] == 4]
    assert [(2, records.ENDED_BY_LEASE), (1, records.ENDED_BY_LEASE)] == ends
    assert 2 == drive.broker.stats.leases_ended


def test_use_renews_the_lease() -> None:
    """POLL, ACK and CREDIT count as use, even a CREDIT of 0."""
    drive = Drive(Settings(lease_us=10 * S))
    consumer = drive.subscribe("a")
    for use in (
        lambda: drive.poll(consumer),
        lambda: drive.ack(consumer, 99),
        lambda: drive.credit(consumer, 0),
    ):
        drive.advance(9 * S)
        use()
    drive.advance(9 * S)

    assert [1] == list(drive.broker.subscriptions.by_id)


def test_outstanding_credit_renews_the_lease() -> None:
    """Until it is used up or voided."""
    drive = Drive(Settings(lease_us=10 * S))
    consumer = drive.subscribe("a")
    drive.credit(consumer, 1)
    drive.advance(100 * S)

    assert [1] == list(drive.broker.subscriptions.by_id)
    drive.broker.stop_pushing(consumer.peer)
    drive.advance(10 * S + MAINTENANCE_US)
    assert {} == drive.broker.subscriptions.by_id


def test_no_lease_ends_while_the_log_is_full() -> None:
    """The log would refuse its record; it ends once there is room."""
    drive = Drive(Settings(lease_us=10 * S))
    drive.subscribe("a")
    drive.refuse()
    drive.advance(20 * S)

    assert [1] == list(drive.broker.subscriptions.by_id)
    drive.broker.accept_again()
    drive.advance(MAINTENANCE_US)
    assert {} == drive.broker.subscriptions.by_id
