"""Replay of a single dead letter, whether it is in memory or only in the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker import dead_letters, records
from braidmq.broker.delivery.acknowledgements import Settled
from braidmq.broker.delivery.dispatch import stored
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.delivery.replays import (
    AHEAD_RANGES_MAX,
    CROWDED,
    FAR,
    GONE,
    HELD,
    READING,
    SENT,
    UNSENDABLE,
)
from braidmq.broker.policy import PRIORITY_BASED, Policy
from braidmq.broker.settings import Settings
from braidmq.broker.topics import encode_headers
from tests.unit.broker.buried import make_dead_letters, replay
from tests.unit.broker.drive import Drive, policy_of


def letter_ids(drive: Drive, letters: Queue) -> list[int]:
    """Fill the window from the log; return the ids of its letters, oldest first."""
    for lane in letters.lanes:
        drive.broker.dispatch.effects.read_ahead(lane)
    drive.serve_reads()
    return [entry.id for lane in letters.lanes for entry in lane.ready]


def logged(drive: Drive, letters: Queue) -> list[int]:
    """Return the ids of all letters that the queue ever got."""
    return [
        record_id
        for record_id, record in enumerate(drive.log.records, 1)
        if records.describe(record).topic == letters.topic.raw
    ]


def replay_letter(drive: Drive, letters: Queue, letter_id: int) -> int:
    """Replay one letter as the server does, once the log's reader is idle."""
    queues = drive.broker.queues
    outcome = queues.replays.replay_one(letters, letter_id, drive.now_us)
    if outcome != FAR:
        return outcome
    letter = stored(letters.topic, letter_id, drive.log.records[letter_id - 1])
    previous = max([one for one in logged(drive, letters) if one < letter_id], default=0)
    return queues.replays.replay_ahead(letters, letter, previous, drive.now_us)


def payloads(drive: Drive, name: str) -> list[bytes]:
    """Consume every waiting message of a queue; return the payloads."""
    consumer = drive.join(drive.queue(name))
    found: list[bytes] = []
    while entries := drive.taken(consumer):
        for entry in entries:
            found.append(entry.message.payload)
            drive.broker.queues.acknowledge(entry, drive.now_us)
        drive.serve_reads()
    drive.leave(consumer)
    drive.commit()
    return found


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_one_letter_is_replayed_from_the_middle() -> None:
    """Of the window, or of the log; the others keep their order."""
    drive = Drive()
    letters = make_dead_letters(drive, 4)
    second, third = logged(drive, letters)[1:3]
    outcomes = [replay_letter(drive, letters, second)]
    letter_ids(drive, letters)
    outcomes.append(replay_letter(drive, letters, third))
    drive.commit()
    drive.restart()

    assert [SENT, SENT] == outcomes
    assert (2, 2) == (drive.queue("dlq.q").waiting(), drive.queue("q").waiting())
    assert numbered(0, 3) == payloads(drive, "dlq.q")
    assert numbered(1, 2) == payloads(drive, "q")


def test_a_letter_that_is_held_or_gone_is_not_replayed() -> None:
    """A consumer may hold it, or it was replayed already; once returned, it can be."""
    drive = Drive()
    letters = make_dead_letters(drive, 2)
    first, second = letter_ids(drive, letters)
    queues = drive.broker.queues
    sent = queues.replays.replay_one(letters, first, drive.now_us)
    drive.commit()
    again = queues.replays.replay_one(letters, first, drive.now_us)
    consumer = drive.join(letters)
    (entry,) = drive.taken(consumer)
    held = queues.replays.replay_one(letters, second, drive.now_us)
    drive.leave(consumer)
    returned = queues.replays.replay_one(letters, second, drive.now_us)

    assert (SENT, GONE, HELD, SENT) == (sent, again, held, returned)
    assert second == entry.id


def test_a_single_letter_of_unknown_origin_is_not_replayed() -> None:
    """Whether it is ready or was returned by a consumer."""
    drive = Drive()
    letters = make_dead_letters(drive, 1)
    drive.publish_many("dlq.q", 1)
    queues = drive.broker.queues
    _, strange = letter_ids(drive, letters)
    ready = queues.replays.replay_one(letters, strange, drive.now_us)
    consumer = drive.join(letters)
    drive.taken(consumer)
    drive.leave(consumer)
    returned = queues.replays.replay_one(letters, strange, drive.now_us)

    assert (UNSENDABLE, UNSENDABLE) == (ready, returned)


# Ahead of older letters.


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_letter_beyond_a_full_window_can_be_replayed(is_saved: bool) -> None:
    """It does not come again, neither to a consumer of the others nor after a restart."""
    drive = Drive(Settings(window=2))
    letters = make_dead_letters(drive, 8)
    letter_ids(drive, letters)
    late = logged(drive, letters)[6]

    assert SENT == replay_letter(drive, letters, late)
    assert (2, 7) == (len(letters.lanes[0].ready), letters.waiting())
    assert GONE == replay_letter(drive, letters, late)
    drive.commit()
    if is_saved:
        drive.snapshot()
        drive.commit()
    drive.restart()
    assert GONE == replay_letter(drive, drive.queue("dlq.q"), late)
    assert numbered(0, 1, 2, 3, 4, 5, 7) == payloads(drive, "dlq.q")
    assert numbered(6) == payloads(drive, "q")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_letter_whose_replay_is_refused_stays_in_place(is_restarted: bool) -> None:
    """So do the letters before it, which a snapshot must not record as settled."""
    drive = Drive(Settings(window=2))
    letters = make_dead_letters(drive, 8)
    letter_ids(drive, letters)
    late = logged(drive, letters)[6]
    replay_letter(drive, letters, late)
    drive.refuse()
    drive.broker.accept_again()

    assert (8, 0) == (letters.waiting(), drive.queue("q").waiting())
    drive.snapshot()
    drive.commit()
    if is_restarted:
        drive.restart()
    assert numbered(*range(8)) == payloads(drive, "dlq.q")
    assert [] == payloads(drive, "q")


def test_a_refused_letter_that_the_reader_has_passed_is_in_memory() -> None:
    """The log is not read again before the reader's position."""
    drive = Drive(Settings(window=4))
    letters = make_dead_letters(drive, 3)
    ids = logged(drive, letters)
    for letter_id in (ids[1], ids[0], ids[2]):
        replay_letter(drive, letters, letter_id)
    drive.serve_reads()

    assert not letters.lanes[0].position.behind
    drive.refuse()
    drive.broker.accept_again()
    assert 3 == letters.waiting()
    assert numbered(0, 1, 2) == payloads(drive, "dlq.q")


def test_no_letter_is_replayed_ahead_while_the_log_is_read() -> None:
    """The read may include it, and it would be there twice."""
    drive = Drive(Settings(window=2))
    letters = make_dead_letters(drive, 8)
    late = logged(drive, letters)[6]
    drive.broker.dispatch.effects.read_ahead(letters.lanes[0])
    letter = stored(letters.topic, late, drive.log.records[late - 1])
    outcomes = {
        drive.broker.queues.replays.replay_one(letters, late, drive.now_us),
        drive.broker.queues.replays.replay_ahead(letters, letter, late - 1, drive.now_us),
    }
    drive.serve_reads()

    assert {READING} == outcomes
    assert SENT == replay_letter(drive, letters, late)


def test_a_letter_is_replayed_ahead_in_the_lane_of_its_priority() -> None:
    """Each lane has its own position in the log, and skips its own replayed letters."""
    drive = Drive(Settings(window=1))
    drive.declare("graves", policy_of(mode=PRIORITY_BASED))
    letters = make_dead_letters(drive, 8, priorities=2, dead_letter_name="graves")
    ids = {drive.log.records[one - 1][-1:]: one for one in logged(drive, letters)}
    outcomes = [replay_letter(drive, letters, ids[payload]) for payload in numbered(4, 5)]
    drive.commit()
    drive.restart()

    assert [SENT, SENT] == outcomes
    assert numbered(1, 3, 7, 0, 2, 6) == payloads(drive, "graves")
    assert numbered(4, 5) == payloads(drive, "q")


PLANTED = encode_headers({dead_letters.QUEUE_HEADER: "payroll"})


def planted(drive: Drive, letters: str) -> int:
    """Publish a message that claims to be a dead letter of `payroll`; return its id."""
    message = drive.message(letters, b"forged")
    message.headers = PLANTED
    planted_id = drive.broker.publish(message, drive.now_us)
    drive.commit()
    return planted_id


@pytest.mark.parametrize("window", [1, 100])
@pytest.mark.parametrize("is_declared", [False, True])
def test_a_letter_is_replayed_only_to_a_queue_that_uses_these_letters(
    window: int, is_declared: bool
) -> None:
    """A publisher to a dead-letter queue cannot reach other queues by forged headers."""
    drive = Drive(Settings(window=window))
    letters = make_dead_letters(drive, 3)
    if is_declared:
        drive.declare("payroll", Policy())
    forged = planted(drive, "dlq.q")

    assert UNSENDABLE == replay_letter(drive, letters, forged)
    replay(drive, letters, 100)
    assert numbered(0, 1, 2) == payloads(drive, "q")
    assert None is drive.broker.topics.find("payroll") or [] == payloads(drive, "payroll")


def test_a_letter_is_replayed_to_any_queue_that_declared_this_dead_letter_queue() -> None:
    """Its header names one of them."""
    drive = Drive()
    letters = make_dead_letters(drive, 1, dead_letter_name="graves")
    drive.declare("payroll", policy_of(dead_letter_name="graves"))
    planted(drive, "graves")
    replay(drive, letters, 100)

    assert numbered(0) == payloads(drive, "q")
    assert [b"forged"] == payloads(drive, "payroll")


def test_a_letter_of_unknown_origin_is_not_replayed_ahead() -> None:
    """The attempt does not settle it."""
    drive = Drive(Settings(window=1))
    letters = make_dead_letters(drive, 3)
    strange = drive.publish("dlq.q")
    drive.commit()

    assert UNSENDABLE == replay_letter(drive, letters, strange)
    assert 4 == letters.waiting()


def test_a_letter_of_a_deleted_queue_is_gone() -> None:
    """Although the log still holds it."""
    drive = Drive()
    letters = make_dead_letters(drive, 2)
    drive.broker.queues.delete(letters)

    assert GONE == replay_letter(drive, letters, logged(drive, letters)[1])


def test_a_queue_emptied_letter_by_letter_does_not_hold_the_log_back() -> None:
    """In any order; its lane then is at the end of the log."""
    drive = Drive(Settings(window=2))
    letters = make_dead_letters(drive, 6)
    ids = logged(drive, letters)
    for number in (5, 0, 3, 1, 4, 2):
        assert SENT == replay_letter(drive, letters, ids[number])
        drive.commit()

    lane = letters.lanes[0]
    assert (False, None, 0) == (lane.position.behind, lane.position.settled, lane.unsettled)
    assert numbered(5, 0, 3, 1, 4, 2) == payloads(drive, "q")
    assert len(drive.log.records) + 1 == drive.broker.needed_id()


def test_the_number_of_ranges_replayed_ahead_is_bounded() -> None:
    """Beyond it the outcome is CROWDED; letters at the front can still be replayed."""
    drive = Drive(Settings(window=1))
    letters = make_dead_letters(drive, 4)
    first, *_, last = logged(drive, letters)
    letter_ids(drive, letters)
    lane = letters.lanes[0]
    lane.position.settled = Settled(lane.position.cursor)
    for number in range(1, AHEAD_RANGES_MAX):
        lane.position.settled.add(last + 2 * number, last + 2 * number + 1)

    assert (AHEAD_RANGES_MAX, 4) == (lane.position.settled.range_count, letters.waiting())
    assert CROWDED == replay_letter(drive, letters, last)
    assert SENT == replay_letter(drive, letters, first)
    assert 3 == letters.waiting()


def finish(drive: Drive) -> None:
    """Commit until nothing is left to do: a read may continue a replay."""
    drive.commit()
    while drive.broker.wants_commit():
        drive.commit()


def steps_for_ten_letters() -> st.SearchStrategy[list[tuple[str, int]]]:
    """Return what may happen to ten letters and to the log."""
    kinds = st.sampled_from(
        ["one", "one", "one", "oldest", "read", "commit", "refuse", "save", "crash", "ack"]
    )
    return st.lists(st.tuples(kinds, st.integers(0, 9)), max_size=30)


@given(steps_for_ten_letters())
def test_every_letter_is_in_exactly_one_place(steps: list[tuple[str, int]]) -> None:
    """In the dead-letter queue, in its own queue, or acknowledged, whatever happens."""
    drive = Drive(Settings(window=2))
    ids = logged(drive, make_dead_letters(drive, 10))
    consumed: list[bytes] = []
    for kind, number in steps:
        letters = drive.queue("dlq.q")
        if kind == "one":
            replay_letter(drive, letters, ids[number])
        elif kind == "oldest":
            drive.broker.queues.replays.replay(letters, 1, drive.now_us)
        elif kind == "read":
            letter_ids(drive, letters)
        elif kind == "commit":
            drive.commit()
        elif kind == "refuse":
            drive.refuse()
            drive.broker.accept_again()
        elif kind == "save":
            drive.snapshot()
        elif kind == "crash":
            drive.restart()
        else:
            drive.commit()
            consumer = drive.join(letters, 1)
            for entry in drive.taken(consumer)[:1]:
                consumed.append(entry.message.payload)
                drive.broker.queues.acknowledge(entry, drive.now_us)
            drive.leave(consumer)
            drive.commit()
    finish(drive)
    waiting = drive.queue("dlq.q").waiting(), drive.queue("q").waiting()
    drive.snapshot()
    finish(drive)
    drive.restart()

    assert waiting == (drive.queue("dlq.q").waiting(), drive.queue("q").waiting())
    found = payloads(drive, "dlq.q"), payloads(drive, "q")
    assert waiting == (len(found[0]), len(found[1]))
    assert numbered(*range(10)) == sorted([*consumed, *found[0], *found[1]])
