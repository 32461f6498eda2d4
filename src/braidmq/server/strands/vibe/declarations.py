"""What a Vibe peer says about queues, as the broker means it, and the reverse."""

import msgspec

from braidmq.broker import dead_letters
from braidmq.broker.authorize import LIST_QUEUES, Principal, authorize
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.policy import Policy
from braidmq.broker.settings import US_PER_MS
from braidmq.wire.vibe.queue_options import OptionError, QueueFacts, QueueOptions


def declared_policy(name: str, options: QueueOptions, policy: Policy) -> Policy:
    """Return the policy that a declaration asks for; *policy* is what holds without one.

    Raises:
        OptionError: The queue would be its own dead letter queue.
    """
    if dead_letters.is_dead_letter_topic(name):
        return policy  # dead letters wait without bounds, whatever is said
    if options.mode is not None:
        policy.mode = options.mode
    if options.max_size is not None:
        policy.max_size = options.max_size
    if options.overflow is not None:
        policy.overflow = options.overflow
    if options.ttl_ms is not None:
        policy.ttl_us = options.ttl_ms * US_PER_MS
    if options.dead_letters is not None:
        policy.dead_letters = options.dead_letters
    if options.dead_letter_name:
        if options.dead_letter_name == name:
            raise OptionError("deadLetterQueueName", "is the queue itself")
        if options.dead_letter_name != dead_letters.queue_for(name):  # what it is anyway
            policy.dead_letter_name = options.dead_letter_name
    if options.max_attempts is not None:
        policy.max_attempts = options.max_attempts
    if options.durable is not None:
        policy.durable = options.durable
    return policy


def facts_of(queue: Queue) -> QueueFacts:
    """Return what a QueueInfo says about a queue."""
    policy = queue.policy
    return QueueFacts(
        name=queue.topic.name,
        waiting=queue.waiting(),
        in_flight=queue.in_flight_count(),
        subscribers=len(queue.consumers),
        mode=policy.mode,
        max_size=policy.max_size,
        created_us=queue.created_us,
        ttl_ms=policy.ttl_us // US_PER_MS,
        dead_letters=policy.dead_letters,
        dead_letter_name=policy.dead_letter_name or dead_letters.queue_for(queue.topic.name),
        overflow=policy.overflow,
        max_attempts=policy.max_attempts,
        durable=policy.durable,
    )


def names_payload(queues: dict[str, Queue], principal: Principal) -> bytes:
    """Return the names that *principal* may see as a JSON array, by code point."""
    names = [name for name in queues if authorize(principal, LIST_QUEUES, name)]
    return msgspec.json.encode(sorted(names))
