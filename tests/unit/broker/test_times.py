"""What a start makes of the system's clock, and how deadlines move with it."""

import pytest

from braidmq.broker import records, state
from braidmq.broker.broker import Broker
from braidmq.broker.outgoing import Outgoing
from braidmq.broker.settings import Settings
from braidmq.broker.times import AHEAD, BEHIND, FINE, STEPS_MAX, Start, Stepped, Times

S = 1_000_000
DAY = 86_400 * S
YEAR = 365 * DAY
END = 40 * YEAR  # the newest time in the log


def judged(wall_us: int, *, wall_ahead_us: int = 0, downtime_max_us: int = DAY) -> Start:
    times = Times(Outgoing())
    times.saw(END)
    times.saw(1)
    times.wall_ahead_us = wall_ahead_us
    return times.judge(wall_us, downtime_max_us)


@pytest.mark.parametrize(
    ("wall_us", "now_us", "verdict", "step_us"),
    [
        (END, END, FINE, 0),
        (END + DAY, END + DAY, FINE, 0),
        (END - 60 * S, END, FINE, 0),
        (END - 61 * S, END - 61 * S, BEHIND, -61 * S),
        (S, S, BEHIND, S - END),
        (END + DAY + 1, END + DAY + 1, AHEAD, DAY + 1),
        (END + 10 * YEAR, END + 10 * YEAR, AHEAD, 10 * YEAR),
    ],
)
def test_a_start_compares_the_clock_with_the_log(
    wall_us: int, now_us: int, verdict: int, step_us: int
) -> None:
    """Within bounds downtime counts; beyond them no time has passed."""
    start = judged(wall_us)

    assert (now_us, verdict, step_us) == (start.now_us, start.verdict, start.step_us)


def test_an_empty_log_takes_any_time() -> None:
    """There is nothing to compare the clock with."""
    start = Times(Outgoing()).judge(5, DAY)

    assert (5, FINE, 0) == (start.now_us, start.verdict, start.step_us)


def test_any_downtime_is_believed_when_the_bound_is_off() -> None:
    """Then a jump counts, as the operator has asked for."""
    start = judged(END + 10 * YEAR, downtime_max_us=0)

    assert (END + 10 * YEAR, FINE, 0) == (start.now_us, start.verdict, start.step_us)


@pytest.mark.parametrize("ahead_us", [10 * YEAR, 14 * 3600 * S, -3600 * S])
def test_a_step_that_was_seen_before_does_not_count_at_the_next_start(ahead_us: int) -> None:
    """Of the difference only the downtime has passed, and that is no alarm again."""
    start = judged(END + ahead_us + 7 * S, wall_ahead_us=ahead_us)

    assert (END + ahead_us + 7 * S, FINE, ahead_us) == (
        start.now_us,
        start.verdict,
        start.step_us,
    )


def stepped(*steps: tuple[int, int]) -> Times:
    """Return times with a record of each step at its id."""
    times = Times(Outgoing())
    for record_id, by_us in steps:
        times.replay(record_id, records.encode_clock(by_us, END))
    return times


def test_deadlines_move_by_every_later_step() -> None:
    """A record's own step does not move it, and "never" stays so."""
    times = stepped((10, 100), (20, -30))

    assert [170, 70, 70, 100] == [times.deadline_us(at, 100) for at in (9, 10, 19, 20)]
    assert 0 == times.deadline_us(1, 0)
    assert 1 == stepped((10, -500)).deadline_us(1, 100)  # long ago, not "never"
    assert [10, 20] == times.step_ids()


def test_a_step_is_a_record_and_the_newest_time() -> None:
    """Its id is where it takes effect; the steps of a snapshot are the same."""
    outgoing = Outgoing()
    outgoing.next_id = 7
    times = Times(outgoing)
    times.saw(END)
    times.step(-5, END - 5)
    again = stepped()
    again.restore(times.rows())

    assert [records.encode_clock(-5, END - 5)] == outgoing.take_records()
    assert (END - 5, [(7, -5)], [7]) == (times.newest_us, times.rows(), again.step_ids())


def test_a_refused_step_is_queued_again() -> None:
    """A full disk must not make messages expire at the start after it."""
    outgoing = Outgoing()
    times = Times(outgoing)
    times.step(50, END)
    taken = outgoing.take_back(1)
    times.take_back(taken, END + 1)

    assert isinstance(taken[0], Stepped)
    assert [records.encode_clock(50, END + 1)] == outgoing.take_records()
    assert [(1, 50)] == times.rows()


def test_the_number_of_steps_is_bounded() -> None:
    """The oldest become one; what is younger stays exact."""
    times = stepped(*((i, 1) for i in range(1, STEPS_MAX + 11)))

    assert STEPS_MAX == len(times.rows())
    assert (STEPS_MAX + 10, 1) == (times.moved_us(0), times.moved_us(STEPS_MAX + 9))


def test_a_snapshot_and_a_replay_agree_about_steps() -> None:
    """Newest time, difference to the system's clock, steps and dedup ids."""
    broker = Broker(Settings(dedup_window_us=1000))
    broker.dedup.remember("a", "x", 1, END)
    state.recovered(broker, 2, END)
    broker.times.wall_ahead_us = 9
    broker.times.step(DAY, END + DAY)
    broker.dedup.move(DAY)
    broker.times.wall_ahead_us = 11
    last_id, data = state.snapshot(broker, END + DAY + 1)
    again = Broker(Settings(dedup_window_us=1000))
    state.restore(again, data)

    assert 2 == last_id
    assert [(2, DAY)] == again.times.rows()
    assert (END + DAY + 1, 11) == (again.times.newest_us, again.times.wall_ahead_us)
    assert (1, -1) == (
        again.dedup.find("a", "x", END + DAY + 999),
        again.dedup.find("a", "x", END + DAY + 1000),
    )
    replayed = Broker(Settings(dedup_window_us=1000))
    replayed.dedup.remember("a", "x", 1, END)
    state.replay(replayed, 2, records.encode_clock(DAY, END + DAY))
    assert 1 == replayed.dedup.find("a", "x", END + DAY + 999)
