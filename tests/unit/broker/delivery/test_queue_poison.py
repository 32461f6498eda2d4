"""A poison message, which crashes every consumer that takes it, among many harmless ones."""

import pytest

from braidmq.broker.delivery.queue import QueueConsumer
from braidmq.broker.policy import FAN_OUT_WITH_ACK, PRIORITY_BASED, ROUND_ROBIN, Policy
from braidmq.broker.settings import Settings
from braidmq.broker.topics import decode_headers
from tests.unit.broker.drive import Drive

HARMLESS = 99
POISON = b"poison"


class Crowd:
    """Consumers that acknowledge every message but the poison, which disconnects them."""

    def __init__(self, mode: int, window: int) -> None:
        self.drive = Drive(Settings(window=window))
        policy = Policy()
        policy.mode = mode
        self.drive.declare("q", policy)
        self.delivered: list[bytes] = []

    def publish(self, at: int) -> None:
        for number in range(HARMLESS + 1):
            self.drive.publish("q", POISON if number == at else b"%d" % number)
        self.drive.commit()

    def consume(self, consumer: QueueConsumer) -> bool:
        """Take every message; say whether the consumer survived."""
        while entries := self.drive.taken(consumer):
            for entry in entries:  # a crash loses every message that the consumer held
                if entry.message.payload == POISON:
                    self.drive.disconnect(consumer)
                    return False
            for entry in entries:
                self.delivered.append(entry.message.payload)
                self.drive.broker.queues.acknowledge(entry, self.drive.now_us)
            self.drive.commit()
        return True


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("window", [8, 1024])
@pytest.mark.parametrize("mode", [ROUND_ROBIN, PRIORITY_BASED, FAN_OUT_WITH_ACK])
def test_only_the_poison_becomes_a_dead_letter(
    mode: int, window: int, *, restarts: bool
) -> None:
    """After three deliveries; every harmless message is delivered once."""
    crowd = Crowd(mode, window)
    crowd.publish(at=50)
    deaths = 0
    drive = crowd.drive
    while not crowd.consume(drive.join(drive.queue("q"), 100)):
        deaths += 1
        drive.broker.full_barrier()
        drive.commit()
        if restarts:
            drive.restart()
    drive.commit()
    letters = drive.dead_letters("dlq.q")

    assert 3 == deaths
    assert [POISON] == [letter.body.removeprefix(b"\0\5dlq.q") for letter in letters]
    assert "3" == decode_headers(letters[0].headers)["deathAttempts"]
    assert {b"%d" % number for number in range(HARMLESS + 1) if number != 50} == set(
        crowd.delivered
    )
    assert HARMLESS == len(crowd.delivered)


def test_the_last_allowed_delivery_goes_alone() -> None:
    """Its consumer holds nothing else, and gets nothing else until it settles it."""
    drive = Drive()
    queue = drive.declare("q")
    consumer = drive.join(queue)
    drive.publish_many("q", 1)
    (entry,) = drive.taken(consumer)
    for _ in range(2):
        drive.broker.queues.requeue(entry, 0, drive.now_us)
    drive.publish_many("q", 3)
    alone = [(e.id, e.attempts) for e in drive.taken(consumer)[1:]]
    drive.broker.queues.acknowledge(entry, drive.now_us)

    assert [(2, 3)] == alone
    assert 3 == len(drive.pushed(consumer))


def test_with_one_attempt_every_delivery_goes_alone() -> None:
    """However large the prefetch is."""
    drive = Drive()
    policy = Policy()
    policy.max_attempts = 1
    queue = drive.declare("q", policy)
    drive.publish_many("q", 3)
    ada, bob = drive.join(queue), drive.join(queue)

    assert [[2], [3]] == [drive.pushed_ids(ada), drive.pushed_ids(bob)]
    assert 1 == queue.waiting()


def test_a_last_chance_waits_for_an_idle_consumer_and_holds_back_new_messages() -> None:
    """Otherwise it could wait for ever while all consumers are busy."""
    drive = Drive()
    policy = Policy()
    policy.max_attempts = 2
    queue = drive.declare("q", policy)
    ada = drive.join(queue, 2)
    drive.publish_many("q", 2)
    first, second = drive.taken(ada)
    drive.broker.queues.requeue(first, 0, drive.now_us)
    drive.publish_many("q", 1)
    busy = drive.pushed_ids(ada)
    bob = drive.join(queue)
    alone = drive.pushed_ids(bob)
    drive.broker.queues.acknowledge(second, drive.now_us)

    assert ([], [first.id]) == (busy, alone)
    assert [4] == drive.pushed_ids(ada)
