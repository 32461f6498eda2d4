"""Cursors of groups, in a real broker."""

import pickle
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from braidmq.base.errors import BraidError
from braidmq.columnar.flight.failures import UnavailableError
from braidmq.spark.options import for_stream
from braidmq.spark.reading.cursors import Cursor
from braidmq.testing import FakeClock
from tests.unit.spark.running import KEY, NOBODY, Running, running


def cursor(broker: Running, name: str, **more: object) -> Cursor:
    return Cursor(for_stream(broker.options(groupId=name, **more)))


def test_a_group_begins_where_it_began(broker: Running) -> None:
    """However often it is asked, by whom, and whatever came and was done since."""
    broker.publish(["a"])
    first = cursor(broker, "pinned").open(None)
    broker.publish(["b", "c"])
    cursor(broker, "pinned").report(first + 1)

    assert [first] * 3 == [cursor(broker, "pinned").open(at) for at in (None, 1, first + 1)]


def test_a_group_may_begin_elsewhere(broker: Running) -> None:
    """At a number, such as the earliest."""
    assert 1 == cursor(broker, "early").open(1)


def test_a_report_moves_the_cursor_and_never_back(broker: Running) -> None:
    """A batch that is done again was done."""
    end = broker.publish(["a", "b", "c"])
    moved = cursor(broker, "moved")
    moved.open(1)
    for offset in (end - 1, end, end - 2):
        moved.report(offset)
    cursor(broker, "moved").report(end - 2)

    assert (1, end) == tuple(broker.cursor("moved")[name] for name in ("initial", "position"))


def test_a_query_that_is_older_than_its_group_makes_the_cursor(broker: Running) -> None:
    """Its checkpoint says where it is, so that Spark does not ask where to begin."""
    end = broker.publish(["a", "b", "c"])
    cursor(broker, "late").report(end - 1)

    assert (end - 1, end - 1) == tuple(
        broker.cursor("late")[name] for name in ("initial", "position")
    )


def test_the_broker_is_found_by_its_directory(broker: Running) -> None:
    """As with an endpoint."""
    end = broker.publish(["a"])
    options = for_stream({"path": str(broker.path), "groupId": "local", "apiKey": KEY})

    assert 1 == Cursor(options).open(1)
    Cursor(options).report(end)
    assert end == broker.cursor("local")["position"]


def test_a_report_that_fails_is_told_once_and_made_up_for(tmp_path: Path) -> None:
    """A broker that is away fails no query; it has come back when the next batch is done."""
    clock = FakeClock()
    with running(tmp_path, clock=clock) as broker:
        end = broker.publish(["a", "b"])
        away = cursor(broker, "away")
        away.report(end - 1)
    with capture_logs() as told:
        away.report(end)
        away.report(end)
    with running(tmp_path, broker.port, clock) as broker, capture_logs() as later:
        away.report(end)

        assert end == broker.cursor("away")["position"]
    assert [("cursor_not_reported", "away", end)] == [
        (line["event"], line["group"], line["offset"])
        for line in told
        if line["log_level"] == "warning"
    ]
    assert [] == [line for line in later if line["event"] == "cursor_not_reported"]


def test_a_beginning_that_cannot_be_pinned_is_an_error() -> None:
    """It would be another one the next time."""
    given = {"endpoint": NOBODY, "apiKey": KEY, "groupId": "g"}
    with pytest.raises(UnavailableError):
        Cursor(for_stream(given)).open(None)


def test_a_cursor_is_not_for_everybody(broker: Running) -> None:
    """A key that the broker does not know opens none, and is not repeated."""
    given = broker.options(groupId="g") | {"apikey": "s3cret"}
    with pytest.raises(BraidError) as refused:
        Cursor(for_stream(given)).open(None)

    assert "s3cret" not in str(refused.value)


def test_a_cursor_travels_with_its_reader(broker: Running) -> None:
    """A connection does not; another is made where it arrives."""
    sent = cursor(broker, "travelled")
    sent.open(1)
    end = broker.publish(["a"])
    arrived = pickle.loads(pickle.dumps(sent))  # noqa: S301 - our own, and what Spark does
    arrived.report(end)

    assert end == broker.cursor("travelled")["position"]
