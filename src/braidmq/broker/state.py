"""State: the broker as a snapshot, and restored from a snapshot and the records after it.

A snapshot holds what all records up to its id amount to, those included that are still on their
way to the log. It is taken between two turns, and must not be used before that id is committed:
if the log refuses those records, their ids are reused, and the snapshot is void.

    recovery = restore(newest snapshot), replay(each record after it), recovered(...)
"""

from typing import Any, Final

import msgspec

from braidmq.base.errors import UnknownRecordError
from braidmq.broker import records
from braidmq.broker.broker import MAINTENANCE_US, Broker
from braidmq.broker.dead_letters import QUEUE_HEADER
from braidmq.broker.dedup import HEADER as DEDUP_HEADER
from braidmq.broker.delivery.acknowledgements import Settled
from braidmq.broker.delivery.channels import Channel
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.broker.outgoing import Buried, Started
from braidmq.broker.policy import FAN_OUT_WITHOUT_ACK, Policy, of_values
from braidmq.broker.sinks import Intent
from braidmq.broker.topics import Message, decode_headers

_VERSION: Final = 4
_VERSIONS_READ: Final = (2, 3, 4)  # 2 has no followers; 2 and 3 have no cursors and sinks


def snapshot(broker: Broker, now_us: int) -> tuple[int, bytes]:
    """Return the last id that the snapshot covers, and the snapshot."""
    # Record all progress first. What the snapshot contains must not be in a record after it as
    # well: a replay would subtract the same settled messages twice.
    last_id = broker.full_barrier()
    topics = {topic.name: [topic.last_id, topic.message_count] for topic in broker.topics.all()}
    # A QoS 0 subscription ends with the process.
    subscriptions = [s for s in broker.subscriptions.by_id.values() if s.qos == 1]
    pending: dict[int, int] = {}  # messages that are not committed, by lane or ledger
    # Include what is on its way to the log: a replay starts after those records.
    for item in broker.outgoing.pending():
        letter = item.letter if isinstance(item, Buried) else item
        if isinstance(letter, Message):
            row = topics[letter.topic.name]
            row[0] = letter.id
            row[1] += 1
            queue = letter.topic.queue
            if queue is not None and letter.id > queue.id and _keeps(queue):
                channel_id = queue.channel_of(letter.priority).id
                pending[channel_id] = pending.get(channel_id, 0) + 1
        elif isinstance(item, Started) and item.subscription.qos == 1:
            subscriptions.append(item.subscription)
    state: dict[str, Any] = {
        "version": _VERSION,
        "now_us": now_us,
        "topics": [[name, *row] for name, row in topics.items()],
        "subscriptions": [
            _subscription_row(s, broker.committed_id, now_us) for s in subscriptions
        ],
        "queues": [
            _queue_row(queue, pending, broker.committed_id)
            for queue in broker.queues.by_name.values()
        ],
        "followers": [
            _follower_row(follower, broker.committed_id)
            for follower in broker.followers.by_id.values()
            if follower.id > 0
        ],
        "dedup": broker.dedup.rows(),
        "cursors": broker.cursors.rows(),
        "intent": broker.sinks.open_row(),
        "done": broker.sinks.done_rows(),
    }
    return last_id, msgspec.msgpack.encode(state)


def restore(broker: Broker, data: bytes) -> None:
    """Put the broker into the state of a snapshot."""
    state: dict[str, Any] = msgspec.msgpack.decode(data)
    assert state["version"] in _VERSIONS_READ
    broker.latest_us = state["now_us"]
    for name, last_id, message_count in state["topics"]:
        topic = broker.topics.get(name)
        assert topic is not None
        topic.last_id = last_id
        topic.message_count = message_count
    for row in state["subscriptions"]:
        _restore_subscription(broker, row)
    for row in state["queues"]:
        _restore_queue(broker, row)
    for follower_id, topic_name, principal, key, floor in state.get("followers", []):
        _add_follower(broker, follower_id, topic_name, principal, key, max(floor, follower_id))
    for at_us, topic_name, dedup_id, message_id in state["dedup"]:
        broker.dedup.restore((at_us, topic_name, dedup_id, message_id))
    broker.cursors.restore([tuple(row) for row in state.get("cursors", [])])
    done = [tuple(row) for row in state.get("done", [])]
    broker.sinks.restore(_intent_of(state.get("intent", [])), done)


def replay(broker: Broker, record_id: int, record: bytes) -> None:
    """Apply one record again, as recovery does.

    Raises:
        UnknownRecordError: The type is not known to this version.
    """
    kind = record[0]
    if kind == records.MESSAGE or kind == records.DEAD_LETTER:  # noqa: PLR1714 - a set is slower compiled
        _replay_message(broker, record_id, record)
    elif kind == records.SINK_ROW:
        _replay_message(broker, record_id, record)
        broker.sinks.replay_row()
    elif kind == records.PROGRESS:
        _replay_progress(broker, record)
    elif kind == records.SUBSCRIBE:
        qos, timestamp_us, principal, topic_name = records.read_subscribe(record)
        broker.latest_us = max(broker.latest_us, timestamp_us)
        if qos == 1:
            _add_subscription(broker, record_id, topic_name, principal)
    elif kind == records.UNSUBSCRIBE:
        subscription_id, _ = records.read_unsubscribe(record)
        subscription = broker.subscriptions.by_id.pop(subscription_id, None)
        if subscription is not None:
            subscription.topic.subscriptions.remove(subscription)
        elif subscription_id in broker.followers.by_id:
            broker.followers.drop(broker.followers.by_id[subscription_id])
    elif kind == records.FOLLOW:
        timestamp_us, key, principal, topic_name = records.read_follow(record)
        broker.latest_us = max(broker.latest_us, timestamp_us)
        _add_follower(broker, record_id, topic_name, principal, key, record_id)
    elif kind == records.DECLARE:
        name, policy, created_us = records.read_declare(record)
        broker.latest_us = max(broker.latest_us, created_us)
        _add_queue(broker, record_id, name, policy, created_us)
    elif kind == records.DELETE:
        # By id, over all queues: deletions are too rare to keep an index for them.
        queue_id = records.read_delete(record)
        for queue in list(broker.queues.by_name.values()):
            if queue.id == queue_id:
                broker.queues.end(queue)
    elif kind == records.INTENT:
        broker.sinks.replay_intent(record_id, record)
    elif kind == records.DONE:
        broker.sinks.replay_done(records.read_done(record))
    elif kind == records.CURSOR:
        broker.cursors.replay(record)
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


def _subscription_row(subscription: Subscription, committed_id: int, now_us: int) -> list[Any]:
    return [
        subscription.id,
        subscription.topic.name,
        subscription.principal,
        subscription.settled_ranges(committed_id),
        subscription.position.handed_id,
        list(_attempts_of(subscription).items()),
        now_us - subscription.last_used_us,
    ]


def _attempts_of(channel: Channel) -> dict[int, int]:
    # Up to `handed_id`, a message that is not listed here has had one attempt.
    attempts = dict(channel.position.known_attempts)
    for entry in channel.in_flight.all():
        if entry.attempts != 1:
            attempts[entry.id] = entry.attempts
    return attempts


def _keeps(queue: Queue) -> bool:
    return queue.policy.mode != FAN_OUT_WITHOUT_ACK


def _queue_row(queue: Queue, pending: dict[int, int], committed_id: int) -> list[Any]:
    rows = [
        _lane_row(lane, lane.unsettled, _attempts_of(lane), pending, committed_id)
        for lane in queue.lanes
    ]
    ledger = queue.ledger
    if ledger is not None:
        attempts = _attempts_of(ledger)
        for view in queue.views():
            attempts.update(view.position.known_attempts)
            for entry in view.in_flight.all():
                if not ledger.settled().contains(entry.id):
                    attempts[entry.id] = entry.attempts
        rows.append(_lane_row(ledger, ledger.unsettled, attempts, pending, committed_id))
    return [queue.id, queue.topic.name, queue.created_us, queue.policy.values(), rows]


def _lane_row(
    channel: Channel,
    unsettled: int,
    attempts: dict[int, int],
    pending: dict[int, int],
    committed_id: int,
) -> list[Any]:
    return [
        channel.settled_ranges(committed_id),
        channel.position.handed_id,
        list(attempts.items()),
        unsettled + pending.get(channel.id, 0),
    ]


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
    position.known_attempts = dict(attempts)


def _add_subscription(
    broker: Broker, subscription_id: int, topic_name: str, principal: str
) -> Subscription:
    topic = broker.topics.get(topic_name)
    assert topic is not None
    subscription = broker.subscriptions.new(topic, 1, principal)
    subscription.begin(subscription_id)
    subscription.position.settled = Settled(subscription_id)
    broker.subscriptions.start(subscription)
    return subscription


def _follower_row(follower: Follower, committed_id: int) -> list[Any]:
    return [
        follower.id,
        follower.topic.name,
        follower.principal,
        follower.key,
        follower.floor_id(committed_id),
    ]


def _add_follower(  # noqa: PLR0917 - the parts of a record
    broker: Broker, follower_id: int, topic_name: str, principal: str, key: bytes, floor: int
) -> None:
    topic = broker.topics.get(topic_name)
    assert topic is not None
    follower = Follower(topic, principal, key)
    broker.followers.add(follower, follower_id)
    follower.started = True  # its record was read from the log, so it is committed
    follower.noted_id = floor


def _restore_queue(broker: Broker, row: list[Any]) -> None:
    queue_id, name, created_us, values, rows = row
    queue = _add_queue(broker, queue_id, name, of_values(values), created_us)
    lanes = queue.durable_channels()
    # Strict: the policy, which was restored with the queue, decides how many there are.
    for lane, (ranges, handed_id, attempts, unsettled) in zip(lanes, rows, strict=True):
        _restore_position(lane, ranges, handed_id, attempts)
        lane.unsettled = unsettled


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


def _replay_message(broker: Broker, record_id: int, record: bytes) -> None:
    stored = records.StoredMessage(record)
    topic = broker.topics.get(stored.topic)
    assert topic is not None
    topic.last_id = record_id
    topic.message_count += 1
    if topic.queue is not None and _keeps(topic.queue):
        topic.queue.channel_of(stored.priority).unsettled += 1
    broker.latest_us = max(broker.latest_us, stored.timestamp_us)
    is_row = record[0] == records.SINK_ROW  # its headers are data, and hold no dedup id
    # A dead letter that settles a message has its headers, and the message's own record has
    # brought the dedup id already. The letter of a redirect settles nothing: it is the only
    # record with that id.
    if stored.headers and not stored.settles_subscription and not is_row:
        kept = decode_headers(stored.headers)
        dedup_id = kept.get(DEDUP_HEADER)
        if dedup_id is not None:
            meant_for = kept.get(QUEUE_HEADER, stored.topic)
            broker.dedup.remember(meant_for, dedup_id, record_id, stored.timestamp_us)
    if stored.settles_subscription:
        channel = broker.find(stored.settles_subscription)
        if channel is not None:  # else the subscription or the queue has ended since
            channel.replay_letter(stored.settles_after, stored.settles_id)


def _replay_progress(broker: Broker, record: bytes) -> None:
    for channel_id, made in records.read_progress(record).items():
        channel = broker.find(channel_id)
        if channel is not None:
            channel.replay_progress(made)
        elif channel_id in broker.followers.by_id:
            broker.followers.by_id[channel_id].replay_progress(made)
