"""Unfinished input: what is counted, and when a peer is refused; see also test_quotas."""

from braidmq.broker.authorize import Principal
from braidmq.broker.broker import Broker
from braidmq.broker.policy import BLOCK_PUBLISHER
from braidmq.broker.quotas import Quotas, refusal
from braidmq.broker.settings import Settings
from braidmq.server.engine.connection import Connection
from braidmq.server.engine.unfinished import (
    PROGRESS_BYTES,
    PROGRESS_US,
    SLACK_BYTES,
    UnfinishedInput,
)
from tests.integration.blip.peer import publish
from tests.unit.broker.drive import policy_of
from tests.unit.server.by_hand import Hand, HandWire

LIMIT = 300_000
NONE = {"unfinished_bytes": 0}
ADA = Principal("ada", publish=["*"], subscribe=[], quotas=Quotas({"unfinished_bytes": LIMIT}))
BOB = Principal("bob", publish=["*"], subscribe=[])


def test_bytes_are_counted_by_principal_and_in_all() -> None:
    """What shrinks or ends is given back; only what grows is refused."""
    hand = Hand()
    broker = Broker(Settings())
    unfinished = UnfinishedInput(broker)
    (one, _), (two, _) = hand.connect(), hand.connect()
    one.principal = two.principal = ADA
    account = broker.topics.accounts.of("ada")

    assert "" == unfinished.note(one, LIMIT - 1, 0)
    assert refusal("unfinished_bytes", LIMIT, "ada") == unfinished.note(two, 2, 0)
    assert "" == unfinished.note(two, 1, 0)
    assert (LIMIT, LIMIT) == (account.used("unfinished_bytes"), unfinished.bytes)
    unfinished.note(one, 0, 0)
    unfinished.note(two, 0, 0)
    assert (0, 0, 0) == (account.used("unfinished_bytes"), unfinished.bytes, len(unfinished))


def test_all_together_may_take_half_of_the_memory() -> None:
    """However many principals there are; strangers have none."""
    settings = Settings()
    settings.memory_bytes = 1_000
    unfinished = UnfinishedInput(Broker(settings))
    connection, _ = Hand().connect()
    connection.principal = None
    text = (
        "the unfinished frames of all peers have more than 500 bytes: "
        "limits.max_memory_bytes is 1000; whoever runs the broker may raise it"
    )

    assert "" == unfinished.note(connection, 500, 0)
    assert text == unfinished.note(connection, 501, 0)


def test_the_greediest_is_refused_for_all() -> None:
    """Not the one whose few bytes happen to be the last: ten greedy keys stop no eleventh."""
    settings = Settings()
    settings.memory_bytes = 1_000
    hand = Hand(settings)
    unfinished = hand.engine.unfinished
    (greedy, wire), (other, _), (modest, _) = hand.connect(), hand.connect(), hand.connect()
    greedy.principal = other.principal = ADA
    modest.principal = BOB
    unfinished.note(greedy, 250, 0)
    unfinished.note(other, 200, 0)

    assert "" == unfinished.note(modest, 100, 0)
    assert (True, 300) == (wire.is_closed, unfinished.bytes)


# Held up by the broker.


def full_queue(hand: Hand) -> None:
    """Declare the queue `full`, which has no room and lets publishers wait."""
    broker = hand.engine.broker
    policy = policy_of(overflow=BLOCK_PUBLISHER, max_size=1)
    topic = broker.topics.get("full")
    assert topic is not None
    broker.queues.declare(topic, policy, hand.now_us)
    hand.engine.end_turn()
    hand.commit()
    connection, _ = hand.connect()
    connection.receive(publish(1, "full", b"x"))
    hand.commit()


def waiting(hand: Hand, principal: Principal, *more: bytes) -> tuple[Connection, HandWire]:
    """Return a connection whose publish waits for room in `full`, and what it sent then."""
    connection, wire = hand.connect()
    connection.principal = principal
    connection.receive(publish(1, "full", b"x"))
    for data in more:
        connection.receive(data)
    return connection, wire


def test_over_its_quota_a_connection_that_is_held_up_is_read_from_no_more() -> None:
    """Nor are the principal's others; none is closed, and what they have sent is kept."""
    hand = Hand()
    full_queue(hand)
    idle, idle_wire = waiting(hand, ADA)
    other, other_wire = waiting(hand, BOB)
    sent = publish(2, "t", bytes(LIMIT // 2))
    wires = [waiting(hand, ADA, sent)[1] for _ in range(3)]
    late, late_wire = waiting(hand, ADA)

    assert [False, False, False] == [wire.is_reading() for wire in wires]
    assert (False, False) == (idle_wire.is_reading(), late_wire.is_reading())
    assert True is other_wire.is_reading()
    assert [] == [wire for wire in (*wires, idle_wire, late_wire) if wire.is_closed]
    assert 2 * (LIMIT // 2) < hand.engine.unfinished.bytes
    assert hand.engine.unfinished.bytes == hand.engine.unfinished.held_up_bytes
    for connection in (idle, other, late):
        connection.lost()
    hand.engine.tick()


def test_what_is_held_up_keeps_no_other_from_sending() -> None:
    """It is not compared with the half that unfinished frames may have of the memory."""
    settings = Settings()
    settings.memory_bytes = 1_000_000
    hand = Hand(settings)
    full_queue(hand)
    wires = [waiting(hand, BOB, publish(2, "t", bytes(200_000)))[1] for _ in range(3)]
    last, last_wire = waiting(hand, BOB)
    honest, honest_wire = hand.connect()
    honest.receive(publish(3, "t", bytes(100_000))[:50_000])

    assert [] == [one for one in (*wires, last_wire, honest_wire) if one.is_closed]
    assert (False, True) == (last_wire.is_reading(), honest_wire.is_reading())
    assert 50_000 == hand.engine.unfinished.bytes - hand.engine.unfinished.held_up_bytes
    last.lost()


def test_far_above_its_quota_a_connection_that_is_held_up_is_refused() -> None:
    """One read of each of very many would be too much; those before it are kept."""
    hand = Hand()
    full_queue(hand)
    room = 2 * LIMIT + SLACK_BYTES
    sent = publish(2, "t", bytes(250_000))
    wires = [waiting(hand, ADA, sent)[1] for _ in range(20)]
    closed = [wire.is_closed for wire in wires]

    assert sorted(closed) == closed
    assert room // len(sent) == closed.count(False)
    assert room - len(sent) < hand.engine.unfinished.bytes <= room
    assert refusal("unfinished_bytes", LIMIT, "ada").encode() in wires[-1].written


def test_all_that_is_held_stays_within_the_budget() -> None:
    """Whoever holds the most is refused then, held up or not; the others go on."""
    settings = Settings()
    settings.memory_bytes = 1_000_000
    hand = Hand(settings)
    full_queue(hand)
    few = waiting(hand, ADA, publish(2, "t", bytes(100_000)))[1]
    wires = [waiting(hand, BOB, publish(2, "t", bytes(200_000)))[1] for _ in range(9)]

    assert (5, False) == ([wire.is_closed for wire in wires].count(True), few.is_closed)
    assert 800_000 < hand.engine.unfinished.bytes <= 1_000_000


def test_a_connection_that_goes_on_is_read_from_again() -> None:
    """Once its queue has room: what was held up is handled, and counted no more."""
    hand = Hand()
    full_queue(hand)
    small = Principal("bob", publish=["*"], subscribe=["*"], quotas=Quotas(NONE))
    connection, wire = waiting(hand, small, publish(2, "t", bytes(9_000)))
    stopped = wire.is_reading()
    broker = hand.engine.broker
    broker.queues.end(broker.queues.by_name["full"])
    hand.engine.end_turn()
    hand.commit()
    connection.wake()

    assert (False, True) == (stopped, wire.is_reading())
    assert (0, 0) == (hand.engine.unfinished.bytes, hand.engine.unfinished.held_up_bytes)


def test_a_command_that_waits_counts_with_its_payload() -> None:
    """Its bytes are no longer input, and still memory."""
    hand = Hand()
    full_queue(hand)
    connection, _ = hand.connect()
    connection.receive(publish(1, "full", bytes(100_000)))

    assert 100_000 <= hand.engine.unfinished.held_up_bytes < 100_100
    connection.lost()
    assert 0 == hand.engine.unfinished.bytes


def test_a_peer_that_has_finished_sending_is_counted_while_it_waits() -> None:
    """Half-closed connections hold as much as others."""
    hand = Hand()
    full_queue(hand)
    connection, _ = waiting(hand, BOB, publish(2, "t", bytes(100_000)))
    connection.finish_input()

    assert 100_000 < hand.engine.unfinished.bytes


def test_time_in_which_a_peer_is_held_up_is_not_counted() -> None:
    """Its frame has the whole time for progress once the broker goes on."""
    hand = Hand()
    unfinished = hand.engine.unfinished
    connection, _ = hand.connect()
    unfinished.note(connection, 10_000, 0, held_up=True)
    unfinished.note(connection, 10_000, PROGRESS_US)
    unfinished.refuse_overdue(2 * PROGRESS_US - 1)
    in_time = connection.closed
    unfinished.refuse_overdue(2 * PROGRESS_US)

    assert (False, True) == (in_time, connection.closed)


def test_input_is_charged_once_the_principal_is_known() -> None:
    """All of it, that from before included; and again to another one if it changes."""
    broker = Broker(Settings())
    unfinished = UnfinishedInput(broker)
    connection, _ = Hand().connect()
    connection.principal = None
    accounts = broker.topics.accounts
    unfinished.note(connection, 10_000, 0)
    connection.principal = BOB
    unfinished.note(connection, 10_000, 0)
    charged = accounts.of("bob").used("unfinished_bytes")
    connection.principal = ADA
    unfinished.note(connection, 10_000, 0)

    assert 10_000 == charged
    assert (0, 10_000) == (
        accounts.of("bob").used("unfinished_bytes"),
        accounts.of("ada").used("unfinished_bytes"),
    )


def test_what_came_before_the_principal_was_known_is_refused_then() -> None:
    """Even if no byte more has come."""
    unfinished = UnfinishedInput(Broker(Settings()))
    connection, _ = Hand().connect()
    connection.principal = None
    unfinished.note(connection, LIMIT + 1, 0)
    connection.principal = ADA

    assert refusal("unfinished_bytes", LIMIT, "ada") == unfinished.note(
        connection, LIMIT + 1, 0
    )


def test_progress_moves_the_deadline() -> None:
    """Enough bytes, or the end of a frame; a trickle does not."""
    hand = Hand()
    unfinished = hand.engine.unfinished
    connection, _ = hand.connect()
    for now_us, size in ((0, 10_000), (1, 10_001), (2, 10_000 + PROGRESS_BYTES), (3, 90_000)):
        unfinished.note(connection, size, now_us)
    unfinished.refuse_overdue(PROGRESS_US + 1)
    in_time = connection.closed
    unfinished.refuse_overdue(PROGRESS_US + 2)

    assert (False, True, 0) == (in_time, connection.closed, unfinished.bytes)
