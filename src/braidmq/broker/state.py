"""State: the broker as bytes, and the broker made again from them and the records behind them.

A snapshot says what all records up to its id amount to. It is taken between two turns and
counts only once that id is committed; the records that are still on their way then are part
of it.

    recovery = restore(newest snapshot), replay(each record after it), recovered(...)
"""

from typing import Any, Final

import msgspec

from braidmq.base.errors import UnknownRecordError
from braidmq.broker import headers, records
from braidmq.broker.acknowledgements import Settled
from braidmq.broker.broker import MAINTENANCE_US, Broker
from braidmq.broker.dedup import HEADER as DEDUP_HEADER
from braidmq.broker.outgoing import Buried, Started
from braidmq.broker.subscriptions import Subscription
from braidmq.broker.topics import Message

_VERSION: Final = 1


def snapshot(broker: Broker, now_us: int) -> tuple[int, bytes]:
    """Return the last id that the snapshot covers, and the snapshot."""
    last_id = broker.fence()
    topics = {topic.name: [topic.last_id, topic.message_count] for topic in broker.topics.all()}
    subscriptions = [s for s in broker.subscriptions.values() if s.qos == 1]
    for item in broker.outgoing.pending():
        letter = item.letter if isinstance(item, Buried) else item
        if isinstance(letter, Message):
            row = topics[letter.topic.name]
            row[0] = letter.id
            row[1] += 1
        elif isinstance(item, Started) and item.subscription.qos == 1:
            subscriptions.append(item.subscription)
    state: dict[str, Any] = {
        "version": _VERSION,
        "now_us": now_us,
        "topics": [[name, *row] for name, row in topics.items()],
        "subscriptions": [
            _subscription_row(s, broker.committed_id, now_us) for s in subscriptions
        ],
        "dedup": broker.dedup.rows(),
    }
    return last_id, msgspec.msgpack.encode(state)


def restore(broker: Broker, data: bytes) -> None:
    """Put the broker into the state of a snapshot."""
    state: dict[str, Any] = msgspec.msgpack.decode(data)
    assert state["version"] == _VERSION
    broker.latest_us = state["now_us"]
    for name, last_id, message_count in state["topics"]:
        topic = broker.topics.get(name)
        assert topic is not None
        topic.last_id = last_id
        topic.message_count = message_count
    for row in state["subscriptions"]:
        _restore_subscription(broker, row)
    for at_us, topic_name, dedup_id, message_id in state["dedup"]:
        broker.dedup.remember(topic_name, dedup_id, message_id, at_us)


def replay(broker: Broker, record_id: int, record: bytes) -> None:
    """Do again what one record says.

    Raises:
        UnknownRecordError: The type is not known to this version.
    """
    kind = record[0]
    if kind == records.MESSAGE or kind == records.DEAD_LETTER:  # noqa: PLR1714 - a set is slower compiled
        _replay_message(broker, record_id, record)
    elif kind == records.PROGRESS:
        _replay_progress(broker, record)
    elif kind == records.SUBSCRIBE:
        qos, timestamp_us, principal, topic_name = records.read_subscribe(record)
        broker.latest_us = max(broker.latest_us, timestamp_us)
        if qos == 1:
            _add_subscription(broker, record_id, topic_name, principal)
    elif kind == records.UNSUBSCRIBE:
        subscription_id, _ = records.read_unsubscribe(record)
        subscription = broker.subscriptions.pop(subscription_id, None)
        if subscription is not None:
            subscription.topic.subscriptions.remove(subscription)
    elif kind != records.GAP:
        raise UnknownRecordError(kind)


def recovered(broker: Broker, next_id: int, now_us: int) -> None:
    """Make a broker that has been restored and replayed ready for work."""
    broker.outgoing.next_id = next_id
    broker.committed_id = next_id - 1
    broker._maintenance_us = now_us + MAINTENANCE_US  # noqa: SLF001 - it begins to live here
    for subscription in broker.subscriptions.values():
        assert subscription.settled is not None
        subscription.last_used_us += now_us  # it was minus the time that it had lain unused
        subscription.cursor = subscription.settled.floor
        subscription.tail = subscription.cursor
        subscription.behind = subscription.cursor < subscription.topic.last_id
        if not subscription.behind:
            subscription.settled = None
            subscription.known_attempts = {}
        else:
            subscription.known_attempts = {
                message_id: attempts
                for message_id, attempts in subscription.known_attempts.items()
                if not subscription.settled.contains(message_id)
            }


def _subscription_row(subscription: Subscription, committed_id: int, now_us: int) -> list[Any]:
    attempts = dict(subscription.known_attempts)
    for entry in subscription.in_flight.all():
        if entry.attempts > 1:
            attempts[entry.id] = entry.attempts
    return [
        subscription.id,
        subscription.topic.name,
        subscription.principal,
        subscription.settled_ranges(committed_id),
        subscription.handed_id,
        list(attempts.items()),
        now_us - subscription.last_used_us,
    ]


def _restore_subscription(broker: Broker, row: list[Any]) -> None:
    subscription_id, topic_name, principal, ranges, handed_id, attempts, idle_us = row
    subscription = _add_subscription(broker, subscription_id, topic_name, principal)
    assert subscription.settled is not None
    for after, last in ranges:
        subscription.settled.add(after, last)
    subscription.handed_id = handed_id
    subscription.known_attempts = dict(attempts)
    subscription.last_used_us = -idle_us


def _add_subscription(
    broker: Broker, subscription_id: int, topic_name: str, principal: str
) -> Subscription:
    topic = broker.topics.get(topic_name)
    assert topic is not None
    subscription = Subscription(topic, 1, principal)
    subscription.begin(subscription_id)
    subscription.settled = Settled(subscription_id)
    broker.subscriptions[subscription_id] = subscription
    topic.subscriptions.append(subscription)
    return subscription


def _replay_message(broker: Broker, record_id: int, record: bytes) -> None:
    stored = records.read_message(record)
    topic = broker.topics.get(stored.topic)
    assert topic is not None
    topic.last_id = record_id
    topic.message_count += 1
    broker.latest_us = max(broker.latest_us, stored.timestamp_us)
    if stored.headers and not stored.settles_subscription:
        dedup_id = headers.decode(stored.headers).get(DEDUP_HEADER)
        if dedup_id is not None:
            broker.dedup.remember(stored.topic, dedup_id, record_id, stored.timestamp_us)
    if stored.settles_subscription:
        subscription = broker.subscriptions.get(stored.settles_subscription)
        if subscription is not None and subscription.settled is not None:
            subscription.settled.add(stored.settles_after, stored.settles_id)


def _replay_progress(broker: Broker, record: bytes) -> None:
    for subscription_id, made in records.read_progress(record).items():
        subscription = broker.subscriptions.get(subscription_id)
        if subscription is None:
            continue
        assert subscription.settled is not None
        for after, last in made.ranges:
            subscription.settled.add(after, last)
        subscription.handed_id = max(subscription.handed_id, made.handed_id)
        subscription.known_attempts.update(made.attempts)
        subscription.last_used_us = 0  # whatever a snapshot said: it was used after that
