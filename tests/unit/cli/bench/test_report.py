"""The figures of a run: percentiles, rates, and the notes about them."""

from array import array

import pytest

from braidmq.base.errors import ConfigError
from braidmq.cli.bench.load import Load, Measured
from braidmq.cli.bench.report import (
    columns,
    figures,
    notes,
    parse_percentiles,
    percentile,
    remains,
    rows,
    troubles,
)


def load(*, subscribers: int = 1, rate: float = 0.0, qos: int = 1) -> Load:
    return Load(
        strand="blip",
        topic="t",
        publishers=2,
        subscribers=subscribers,
        size=100,
        qos=qos,
        messages=10,
        seconds=None,
        rate=rate,
    )


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(50, 500.0), (90, 900.0), (99, 990.0), (99.9, 999.0), (99.99, 1000.0), (100, 1000.0)],
)
def test_a_percentile_is_a_value_that_was_measured(wanted: float, expected: float) -> None:
    """The smallest that so many per cent do not exceed: of 1,000, p99.9 is the 999th."""
    assert expected == percentile([float(n) for n in range(1, 1001)], wanted)


def test_of_one_value_every_percentile_is_that_value() -> None:
    """No rank is below the first."""
    assert [7.0, 7.0] == [percentile([7.0], 0.1), percentile([7.0], 100)]


@pytest.mark.parametrize(
    "text", ["", "x", "0", "101", "-1", "50,,90", "nan", ",".join(["5"] * 21)]
)
def test_invalid_percentiles_are_refused(text: str) -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match=r"--percentiles"):
        parse_percentiles(text)


def test_publishing_and_delivery_have_their_own_rates() -> None:
    """They end at different times."""
    measured = Measured(published=1000, delivered=2000, publish_s=2.0, deliver_s=4.0)
    measured.latencies = array("d", [0.001, 0.002])
    measured.confirmations = array("d", [0.5])
    found = figures(load(), measured, (50, 100))

    assert (500.0, 0.05) == (found.publish_rate, found.publish_mb_per_s)
    assert (500.0, 0.05) == (found.deliver_rate, found.deliver_mb_per_s)
    assert {"p50": 1.0, "p100": 2.0} == found.latency_ms
    assert {"p50": 500.0, "p100": 500.0} == found.confirmation_ms


def test_the_table_has_a_row_for_each_direction() -> None:
    """Without subscribers there is none for deliveries."""
    measured = Measured(published=10, publish_s=1.0)
    measured.confirmations = array("d", [0.5])
    alone = figures(load(subscribers=0), measured, (99.9,))

    assert ["published"] == [row["what"] for row in rows(alone)]
    assert ["published", "delivered"] == [
        row["what"] for row in rows(figures(load(), measured, (99.9,)))
    ]
    assert ("what", "messages", "messages/s", "MB/s", "p99.9 ms") == columns(alone)


def test_refused_and_lost_messages_are_reported() -> None:
    """If there are any."""
    measured = Measured(refused=3, lost=1_000)
    found = figures(load(), measured, (50,))

    assert ["refused: 3", "lost: 1,000"] == troubles(found)
    assert [] == troubles(figures(load(), Measured(), (50,)))


def test_figures_of_a_run_that_was_interrupted_say_so() -> None:
    """With the time that they are of."""
    measured = Measured(published=5, publish_s=1.25, interrupted=True)

    assert ["interrupted: these are the figures of 1.25 s"] == troubles(
        figures(load(), measured, (50,))
    )


@pytest.mark.parametrize(
    ("measured", "qos", "expected"),
    [
        (Measured(published=1, topic_stays=True), 1, "topic t stays, with 1 message: "),
        (Measured(published=2_000, topic_stays=True), 1, "t stays, with 2,000 messages: "),
        (Measured(published=2_000), 1, ""),
        (Measured(), 1, ""),
        (
            Measured(published=1, topic_stays=True, queue_stays=True),
            1,
            "`braidmq topic delete` removes it; queue t stays: ",
        ),
        (Measured(queue_stays=True), 1, "queue t stays: `braidmq queue delete` removes it"),
    ],
)
def test_what_stays_in_the_broker_is_reported(
    measured: Measured, qos: int, expected: str
) -> None:
    """What could not be removed, or was not ours to remove."""
    found = remains(figures(load(qos=qos), measured, (50,)))

    assert expected in found
    assert bool(expected) == bool(found)


def test_notes_say_how_to_read_the_figures() -> None:
    """Without a rate, a latency is mostly time in the queue."""
    at_rate = notes(figures(load(rate=5.0), Measured(), (50,)))
    full = notes(figures(load(), Measured(), (50,)))

    assert at_rate == full[:1]
    assert "mostly queueing" in full[1]
