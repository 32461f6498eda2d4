"""Shared by the replay tests: fill a dead-letter queue, and replay letters from it."""

from braidmq.broker import dead_letters
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.topics import encode_headers
from tests.unit.broker.drive import Drive, policy_of


def make_dead_letters(
    drive: Drive, count: int, *, size: int = 1, priorities: int = 0, **given: int | str
) -> Queue:
    """Dead-letter *count* messages of queue `q`, and return its dead-letter queue."""
    policy = policy_of(**given)
    queue = drive.declare("q", policy)
    for number in range(count):
        message = drive.message("q", b"%d" % number + bytes(size - 1))
        message.headers = encode_headers({"": f"m{number}", "k": "v"})
        if priorities:
            message.priority = number % priorities
        drive.broker.publish(message, drive.now_us)
    drive.commit()
    consumer = drive.join(queue)
    while entries := drive.taken(consumer):
        for entry in entries:
            drive.broker.queues.reject(entry, dead_letters.REJECTED, drive.now_us)
    drive.leave(consumer)
    drive.commit()
    return drive.queue(policy.dead_letter_name or "dlq.q")


def replay(drive: Drive, letters: Queue, count: int) -> None:
    drive.broker.queues.replays.replay(letters, count, drive.now_us)
    drive.serve_reads()
    drive.commit()
