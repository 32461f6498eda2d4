"""Endings: how a topic is deleted. Those that are merely idle are forgotten in `topics`."""

from braidmq.broker import records
from braidmq.broker.broker import Broker
from braidmq.broker.outgoing import Declared, Followed, Started, TopicEnded, topic_of
from braidmq.broker.topics import Topic


def is_awaited(broker: Broker, topic: Topic) -> bool:
    """Say whether the record of a queue or subscription of it is on its way to the log."""
    return any(
        isinstance(item, Started | Followed | Declared) and topic_of(item) is topic
        for item in broker.outgoing.pending()
    )


def end_topic(broker: Broker, topic: Topic) -> int:
    """Delete a topic that has no queue, with its subscriptions; return the id to commit.

    Its messages stay in the log until retention takes them, and reach no consumer.
    """
    assert topic.queue is None
    for subscription in list(topic.subscriptions):
        broker.subscriptions.end(subscription, records.ENDED_BY_REQUEST)
    for follower in list(topic.followers):
        if follower.peer is None:
            broker.followers.end(follower, records.ENDED_BY_REQUEST)
        else:
            broker.followers.unfollow(follower.peer, topic)
    drop_topic(broker, topic.name)
    record = records.encode_end_topic(topic.name)
    broker.topics.ended_id = broker.outgoing.add(TopicEnded(topic.name), record)
    return broker.topics.ended_id


def drop_topic(broker: Broker, name: str) -> None:
    """Drop a topic, as its record says."""
    topic = broker.topics.find(name)
    if topic is not None:
        broker.topics.remove(topic)
        broker.dedup.forget_topic(name)
