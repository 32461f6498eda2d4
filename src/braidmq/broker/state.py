"""State: the broker as a snapshot, and restored from a snapshot and the records after it.

A snapshot holds what all records up to an id amount to, those included that are still on their
way to the log. It is taken over many turns, so that none is long (`Snapshot`), and must not be
used before everything in it is committed: if the log refuses those records, their ids are
reused, and the snapshot is void.

    recovery = restore(newest snapshot), replay(each record after it), recovered(...)
"""

from itertools import islice
from typing import Any, Final

import msgspec

from braidmq.base.errors import UnknownRecordError
from braidmq.base.ids import NO_ID
from braidmq.broker import endings, records
from braidmq.broker.broker import MAINTENANCE_US, Broker
from braidmq.broker.dead_letters import QUEUE_HEADER
from braidmq.broker.dedup import HEADER as DEDUP_HEADER
from braidmq.broker.delivery.acknowledgements import Settled
from braidmq.broker.delivery.channels import Channel
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.delivery.queue import Queue, lane_id
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.broker.policy import Policy, of_values
from braidmq.broker.quotas import Account
from braidmq.broker.sinks import Intent
from braidmq.broker.snapshots import Snapshot, keeps
from braidmq.broker.topics import PRIORITY_LOW, Topic, decode_headers

_VERSIONS_READ: Final = (2, 3, 4, 5)
"""2 has no followers; 2 and 3 have no cursors and sinks; up to 4 nothing has an owner, and all
rows are of one moment."""


def snapshot(broker: Broker, now_us: int) -> tuple[int, bytes]:
    """Return a snapshot that is taken in one go, and the last id that it covers."""
    taken = Snapshot(broker, now_us)
    while not taken.go_on():
        pass
    return taken.last_id, b"".join(taken.parts())


def restore(broker: Broker, data: bytes) -> None:
    """Put the broker into the state of a snapshot."""
    state: dict[str, Any] = msgspec.msgpack.decode(data)
    assert state["version"] in _VERSIONS_READ
    broker.times.newest_us = state["now_us"]
    broker.times.wall_ahead_us = state.get("wall_ahead_us", 0)
    broker.times.kept_ahead_us = broker.times.wall_ahead_us
    broker.times.restore([(at, by_us) for at, by_us in state.get("steps", [])])
    broker.topics.ended_id = state.get("ended_id", 0)
    accounts = [_restore_account(broker, row) for row in state.get("accounts", [])]
    for row in state["topics"]:
        _restore_topic(broker, row, accounts)
    for row in state["subscriptions"]:
        _restore_subscription(broker, row)
    rows = iter(state["queues"])
    for count, covered_id in state.get("queues_at", [(len(state["queues"]), NO_ID)]):
        for row in islice(rows, count):
            _restore_queue(broker, row, accounts, covered_id)
    for follower_id, topic_name, principal, key, floor in state.get("followers", []):
        _add_follower(broker, follower_id, topic_name, principal, key, max(floor, follower_id))
    for at_us, topic_name, dedup_id, message_id in state["dedup"]:
        owner = _owner_id(broker, topic_name)
        broker.dedup.restore((at_us, topic_name, dedup_id, message_id), owner)
    broker.cursors.restore([tuple(row) for row in state.get("cursors", [])])
    done = [tuple(row) for row in state.get("done", [])]
    broker.sinks.restore(_intent_of(state.get("intent", [])), done)


def replay(broker: Broker, record_id: int, record: bytes) -> None:
    """Apply one record again, as recovery does.

    Raises:
        UnknownRecordError: The type is not known to this version.
    """
    kind = record[0]
    if kind == records.MESSAGE or kind in {records.DEAD_LETTER, records.FIRST_MESSAGE}:
        _replay_message(broker, record_id, record)
    elif kind == records.SINK_ROW:
        _replay_message(broker, record_id, record)
        broker.sinks.replay_row()
    elif kind == records.PROGRESS:
        _replay_progress(broker, record_id, record)
    elif kind == records.SUBSCRIBE:
        qos, timestamp_us, principal, topic_name = records.read_subscribe(record)
        broker.times.saw(timestamp_us)
        if qos == 1 and record_id not in broker.subscriptions.by_id:
            _add_subscription(broker, record_id, topic_name, principal)
    elif kind == records.UNSUBSCRIBE:
        subscription_id, _ = records.read_unsubscribe(record)
        subscription = broker.subscriptions.by_id.get(subscription_id)
        if subscription is not None:
            broker.subscriptions.drop(subscription)
        elif subscription_id in broker.followers.by_id:
            broker.followers.drop(broker.followers.by_id[subscription_id])
    elif kind == records.FOLLOW:
        timestamp_us, key, principal, topic_name = records.read_follow(record)
        broker.times.saw(timestamp_us)
        if record_id not in broker.followers.by_id:
            _add_follower(broker, record_id, topic_name, principal, key, record_id)
    elif kind == records.DECLARE:
        _replay_declare(broker, record_id, record, None)
    elif kind == records.DECLARE_BY:
        account_id, declare = records.read_declare_by(record)
        owner = broker.topics.accounts.by_id(account_id)
        _replay_declare(broker, record_id, declare, owner)
    elif kind == records.DELETE:
        queue = _queue_of(broker, records.read_delete(record))
        if queue is not None:
            broker.queues.end(queue)
    elif kind == records.INTENT:
        broker.sinks.replay_intent(record_id, record)
    elif kind == records.DONE:
        broker.sinks.replay_done(records.read_done(record))
    elif kind == records.CURSOR:
        broker.cursors.replay(record)
    elif kind == records.END_TOPIC:
        endings.drop_topic(broker, records.read_end_topic(record))
        broker.topics.ended_id = record_id
    elif kind == records.CLOCK:
        broker.dedup.move(broker.times.replay(record_id, record))
    elif kind != records.GAP:
        raise UnknownRecordError(kind)


def recovered(broker: Broker, next_id: int, now_us: int) -> None:
    """Make a broker that has been restored and replayed ready for work."""
    broker.outgoing.next_id = next_id
    broker.committed_id = next_id - 1
    # From here on each channel turns what it knows of settled messages into a position.
    broker.maintenance_us = now_us + MAINTENANCE_US
    for follower in broker.followers.by_id.values():
        follower.recover(now_us)
    for subscription in broker.subscriptions.by_id.values():
        subscription.recover(now_us)
    for channel in broker.queues.channels.values():
        channel.recover(now_us)


def _restore_account(broker: Broker, row: list[Any]) -> Account:
    account_id, name = row
    accounts = broker.topics.accounts
    return accounts.of(name) if name else accounts.by_id(account_id)


def _restore_topic(broker: Broker, row: list[Any], accounts: list[Account]) -> None:
    name, last_id, message_count, *since = row
    topic = broker.topics.get(name)
    assert topic is not None
    topic.last_id = last_id
    topic.message_count = message_count
    if since:  # from version 5 on
        number, topic.began_id = since
        if number >= 0:
            broker.topics.give(topic, accounts[number])


def _intent_of(row: list[Any]) -> Intent | None:
    if not row:
        return None
    intent_id, principal, query, sink, batch, stages, appended = row
    kept = [(stage_id, rows) for stage_id, rows in stages]
    intent = Intent(intent_id, principal, query, sink, batch, kept)
    intent.appended = appended
    return intent


def _restore_subscription(broker: Broker, row: list[Any]) -> None:
    subscription_id, topic_name, principal, ranges, handed_id, attempts, idle_us = row
    subscription = _add_subscription(broker, subscription_id, topic_name, principal)
    _restore_position(subscription, ranges, handed_id, attempts)
    subscription.last_used_us = -idle_us


def _restore_position(
    channel: Channel, ranges: list[Any], handed_id: int, attempts: list[Any]
) -> None:
    # MessagePack has no tuples: what was written as a pair is read as a list.
    position = channel.position
    assert position.settled is not None
    for after, last in ranges:
        position.settled.add(after, last)
    position.handed_id = handed_id
    position.know_attempts(dict(attempts))


def _add_subscription(
    broker: Broker, subscription_id: int, topic_name: str, principal: str
) -> Subscription:
    topic = _topic_of(broker, topic_name, broker.topics.accounts.of(principal))
    subscription = broker.subscriptions.new(topic, 1, principal)
    subscription.begin(subscription_id)
    subscription.position.settled = Settled(subscription_id)
    broker.subscriptions.start(subscription)
    return subscription


def _add_follower(  # noqa: PLR0917 - the parts of a record
    broker: Broker, follower_id: int, topic_name: str, principal: str, key: bytes, floor: int
) -> None:
    topic = _topic_of(broker, topic_name, broker.topics.accounts.of(principal))
    follower = Follower(topic, principal, key)
    broker.followers.add(follower, follower_id)
    follower.started = True  # its record was read from the log, so it is committed
    follower.noted_id = floor


def _restore_queue(
    broker: Broker, row: list[Any], accounts: list[Account], covered_id: int
) -> None:
    queue_id, name, created_us, values, rows, *number = row
    queue = _add_queue(broker, queue_id, name, of_values(values), created_us)
    lanes = queue.durable_channels()
    # Strict: the policy, which was restored with the queue, decides how many there are.
    for lane, (ranges, handed_id, attempts, unsettled) in zip(lanes, rows, strict=True):
        _restore_position(lane, ranges, handed_id, attempts)
        lane.unsettled = unsettled
        # Until `recover`, which sets the cursor: what the counts contain already.
        lane.position.cursor = max(lane.position.cursor, covered_id)
    if number and number[0] >= 0:  # from version 5 on
        broker.queues.give(queue, accounts[number[0]])


def _replay_declare(
    broker: Broker, record_id: int, record: bytes, owner: Account | None
) -> None:
    name, policy, created_us = records.read_declare(record)
    broker.times.saw(created_us)
    topic = _topic_of(broker, name, owner)
    if topic.queue is None:  # else the snapshot has it, or one after it
        broker.queues.give(_add_queue(broker, record_id, name, policy, created_us), owner)


def _add_queue(
    broker: Broker, queue_id: int, name: str, policy: Policy, created_us: int
) -> Queue:
    topic = broker.topics.get(name)
    assert topic is not None
    queue = broker.queues.new(topic, policy, created_us)
    broker.queues.begin(queue, queue_id)
    for channel in queue.durable_channels():
        channel.position.settled = Settled(queue_id)
    return queue


def _queue_of(broker: Broker, queue_id: int) -> Queue | None:
    """Return the queue of that id, found by its ledger, its only lane, or its lowest one."""
    for channel_id in (queue_id, lane_id(queue_id, PRIORITY_LOW)):
        channel = broker.queues.channels.get(channel_id)
        if channel is not None:
            return channel.queue_of()
    return None


def _owner_id(broker: Broker, topic_name: str) -> bytes:
    topic = broker.topics.find(topic_name)
    return b"" if topic is None else topic.owner_id()


def _topic_of(broker: Broker, name: str, maker: Account | None) -> Topic:
    """Return the topic of a record that is replayed; if it is new, *maker* has made it."""
    topic = broker.topics.find(name)
    if topic is None:
        topic = broker.topics.get(name)
        assert topic is not None
        broker.topics.give(topic, maker)
    return topic


def _maker(broker: Broker, kind: int, stored: records.StoredMessage) -> Account | None:
    """Return who has made the topic of a message if it is new, as far as its record says.

    A row of a sink is its writer's, and a letter that was sent back its queue's owner's. Others
    say so themselves, or were written by an earlier version.
    """
    accounts = broker.topics.accounts
    if kind == records.SINK_ROW and broker.sinks.open is not None:
        return accounts.of(broker.sinks.open.principal)
    if stored.settles_subscription:
        channel = broker.find(stored.settles_subscription)
        return None if channel is None else channel.topic.owner
    return None


def _replay_message(broker: Broker, record_id: int, record: bytes) -> None:
    stored = records.StoredMessage(record)
    topic = _topic_of(broker, stored.topic, _maker(broker, record[0], stored))
    if stored.account_id:
        broker.topics.give(topic, broker.topics.accounts.by_id(stored.account_id))
    if record_id > topic.last_id:
        topic.last_id = record_id
        topic.message_count += 1
    if topic.queue is not None and keeps(topic.queue):
        lane = topic.queue.channel_of(stored.priority)
        if record_id > lane.position.cursor:
            lane.unsettled += 1
    broker.times.saw(stored.timestamp_us)
    is_row = record[0] == records.SINK_ROW  # its headers are data, and hold no dedup id
    # A dead letter that settles a message has its headers, and the message's own record has
    # brought the dedup id already. The letter of a redirect settles nothing: it is the only
    # record with that id.
    if stored.headers and not stored.settles_subscription and not is_row:
        kept = decode_headers(stored.headers)
        dedup_id = kept.get(DEDUP_HEADER)
        if dedup_id is not None:
            meant_for = kept.get(QUEUE_HEADER, stored.topic)
            owner = _owner_id(broker, meant_for)
            at_us = stored.timestamp_us
            if broker.dedup.find(meant_for, dedup_id, at_us) != record_id:
                broker.dedup.remember(meant_for, dedup_id, record_id, at_us, owner)
    if stored.settles_subscription:
        channel = broker.find(stored.settles_subscription)
        # If there is none, the subscription or the queue has ended since.
        if channel is not None and record_id > channel.position.cursor:
            channel.replay_letter(stored.settles_after, stored.settles_id)


def _replay_progress(broker: Broker, record_id: int, record: bytes) -> None:
    for channel_id, made in records.read_progress(record).items():
        channel = broker.find(channel_id)
        if channel is not None:
            if record_id > channel.position.cursor:
                channel.replay_progress(made)
        elif channel_id in broker.followers.by_id:
            broker.followers.by_id[channel_id].replay_progress(made)
