"""Records waiting to be committed."""

from braidmq.broker import records
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.delivery.channels import Entry
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.broker.outgoing import Advanced, Buried, Ended, Outgoing, Started
from braidmq.broker.policy import Rules
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message, Topic
from tests.unit.broker.drive import Drive

TOPIC = Topic("a")
SUBSCRIPTION = Subscription(TOPIC, 1, "ada", Rules(Settings()))


def test_ids_are_assigned_in_order() -> None:
    """The first is 1, and each item holds its own."""
    outgoing = Outgoing()
    first, second = Started(SUBSCRIPTION), Message(TOPIC, 1, b"")

    assert 0 == outgoing.last_id
    assert [1, 2] == [outgoing.add(first, b"x"), outgoing.add(second, b"y")]
    assert (1, 2) == (first.id, second.id)
    assert (2, 3) == (outgoing.last_id, outgoing.next_id)
    assert [first, second] == outgoing.pending()


def test_records_are_taken_once() -> None:
    """The log has them then; they stay pending until they are committed."""
    outgoing = Outgoing()
    outgoing.add(Started(SUBSCRIPTION), b"x")

    assert 1 == len(outgoing)
    assert [b"x"] == outgoing.take_records()
    assert [] == outgoing.take_records()
    assert 1 == len(outgoing.pending())


def test_items_are_committed_in_order_and_no_further() -> None:
    """Only up to the id that the log has reported."""
    outgoing = Outgoing()
    items = [Ended(9, 1), Advanced({9: Progress()}), Started(SUBSCRIPTION)]
    for item in items:
        outgoing.add(item, b"")

    assert items[:2] == outgoing.take_committed(2)
    assert [] == outgoing.take_committed(2)
    assert items[2:] == outgoing.take_committed(3)
    assert [] == outgoing.take_committed(3)


def test_refused_items_are_returned_and_their_ids_reused() -> None:
    """No client has seen those ids; items queued after the batch are returned too."""
    outgoing = Outgoing()
    message = Message(TOPIC, 1, b"")
    letter = Message(TOPIC, 1, b"")
    kept = Ended(1, 2)
    taken = [
        Started(SUBSCRIPTION),
        Buried(letter, Entry(SUBSCRIPTION, message, 0), message, is_letter=True),
    ]
    outgoing.add(kept, b"1")
    outgoing.add(taken[0], b"2")
    outgoing.take_records()
    outgoing.add(taken[1], b"3")

    assert taken == outgoing.take_back(2)
    assert [kept] == outgoing.pending()
    assert [] == outgoing.take_records()
    assert 2 == outgoing.add(Started(SUBSCRIPTION), b"again")


def test_items_hold_what_a_commit_or_refusal_needs() -> None:
    """A dead letter holds its message and entry; an end, its subscription and reason."""
    message = Message(TOPIC, 1, b"")
    entry = Entry(SUBSCRIPTION, message, 0)
    item = Buried(message, entry, message, is_letter=True)
    ended = Ended(7, 2)

    assert (message, entry, message) == (item.letter, item.entry, item.message)
    assert (7, 2) == (ended.subscription_id, ended.reason)


def test_much_progress_becomes_several_records() -> None:
    """Records have a size limit; a barrier waits for the last of them."""
    drive = Drive(Settings(window=200_000, window_bytes=10**9))
    much, little = [drive.subscribe("a") for _ in range(2)]
    ids = drive.publish_many("a", 140_000)
    for consumer, acknowledged in ((much, ids[::2]), (little, ids[:1])):
        drive.poll_ids(consumer, len(acknowledged) * 2)
        for message_id in acknowledged:
            drive.ack(consumer, message_id)
    before = drive.broker.outgoing.last_id
    barrier_id = drive.broker.barrier()
    drive.commit()

    assert before + 2 == barrier_id == drive.broker.committed_id
    made = [records.read_progress(record) for record in drive.log.records[-2:]]
    assert [{1}, {2}] == [set(progress) for progress in made]
