"""The streaming reader, called as Spark calls it."""

import json
import pickle
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from braidmq.columnar import Part
from braidmq.columnar.flight.failures import UnavailableError
from braidmq.spark.reading import readers, scans
from braidmq.spark.reading.offsets import Limits, LostOffsetsError, Offset
from braidmq.spark.reading.readers import (
    QUIET_IDS_MAX,
    LogPartition,
    StreamReader,
    as_partitions,
)
from braidmq.testing import FakeClock
from tests.unit.columnar.logs import (
    NOTE,
    Row,
    log_of,
    message,
    plain_rows,
    retain_from,
    write_log,
)
from tests.unit.spark.running import PATIENCE_S, Running, Waiting, running
from tests.unit.spark.sources import logged_losses, read_parts, stream_reader, varied

ALL = ReadAllAvailable()


def run(reader: StreamReader, limit: ReadLimit) -> list[list[Row]]:
    """Run micro-batches until nothing is left, as Trigger.AvailableNow does."""
    reader.prepareForTriggerAvailableNow()
    at, found = reader.initialOffset(), []
    while (end := reader.latestOffset(at, limit)) != at:
        found.append(read_parts(reader, reader.partitions(at, end)))
        at = end
    return found


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"maxOffsetsPerTrigger": 30}, ReadMaxRows(30)),
        ({"maxBytesPerTrigger": 100}, ReadMaxBytes(100)),
        ({}, ReadAllAvailable()),
    ],
)
def test_micro_batches_have_every_message_once(
    tmp_path: Path, options: dict[str, int], limit: ReadLimit
) -> None:
    """In order, and none has more than its limit."""
    path = write_log(tmp_path, varied(200))
    reader = stream_reader(path, startingOffsets="earliest", includeHeaders=True, **options)
    batches = run(reader, reader.getDefaultReadLimit())

    assert limit == reader.getDefaultReadLimit()
    assert plain_rows(path) == [row for batch in batches for row in batch]
    if isinstance(limit, ReadMaxRows):
        assert all(len(batch) == 30 for batch in batches[:-1])
    if isinstance(limit, ReadMaxBytes):
        assert all(sum(len(row["value"]) for row in batch) <= 100 for batch in batches)


def test_the_limit_of_the_engine_wins(tmp_path: Path) -> None:
    """Trigger.Once asks for everything, whatever the options say."""
    path = write_log(tmp_path, varied(200))
    reader = stream_reader(path, startingOffsets="earliest", maxOffsetsPerTrigger=3)

    assert 201 == reader.latestOffset(reader.initialOffset(), ALL)["offset"]


def test_available_now_ends_where_the_log_ended_at_its_start(tmp_path: Path) -> None:
    """Messages that arrive later are for the next query; a plain query reads them too."""
    with log_of(tmp_path, varied(50)) as log:
        now = stream_reader(tmp_path, startingOffsets="earliest")
        plain = stream_reader(tmp_path, startingOffsets="earliest")
        now.prepareForTriggerAvailableNow()
        first = [r.latestOffset({"offset": 1}, ALL) for r in (now, plain)]
        log.append(varied(10, 50))
        log.commit(1)
        second = [r.latestOffset({"offset": 51}, ALL) for r in (now, plain)]

        assert [{"offset": 51}] * 2 == first
        assert [{"offset": 51}, {"offset": 61}] == second
        assert {"offset": 61} == now.reportLatestOffset()


def test_a_query_that_is_past_the_target_stays_where_it_is(tmp_path: Path) -> None:
    """It can be past it: batches that were planned before a restart run first."""
    with log_of(tmp_path, varied(50)) as log:
        reader = stream_reader(tmp_path, startingOffsets="earliest")
        reader.prepareForTriggerAvailableNow()
        reader.latestOffset({"offset": 1}, ALL)
        log.append(varied(10, 50))
        log.commit(1)

        assert {"offset": 58} == reader.latestOffset({"offset": 58}, ALL)


def test_the_brokers_own_records_make_no_micro_batch(tmp_path: Path) -> None:
    """Reporting a cursor writes one, so batches would follow each other without end."""
    with log_of(tmp_path, varied(50)) as log:
        reader = stream_reader(tmp_path, startingOffsets="earliest", subscribe="nowhere")
        log.append([NOTE] * 20)
        log.commit(1)
        quiet = reader.latestOffset({"offset": 51}, ALL)
        log.append([message("t", b"x", 60_000)])
        log.commit(1)

        assert {"offset": 51} == quiet
        assert {"offset": 72} == reader.latestOffset(quiet, ALL)


def test_many_records_are_passed_even_without_a_message(tmp_path: Path) -> None:
    """A query that stood still for long would hold up retention."""
    path = write_log(tmp_path, [NOTE] * (QUIET_IDS_MAX + 1))
    reader = stream_reader(path, startingOffsets="earliest")

    assert {"offset": 2 + QUIET_IDS_MAX} == reader.latestOffset({"offset": 1}, ALL)


def test_messages_that_are_not_durable_are_not_read(tmp_path: Path) -> None:
    """Spark gets only what a power cut cannot take back."""
    with log_of(tmp_path, varied(50)) as log:
        log.append(varied(10, 50))  # and no commit
        reader = stream_reader(tmp_path, startingOffsets="earliest")

        assert {"offset": 51} == reader.latestOffset({"offset": 1}, ALL)


def test_the_start_is_looked_up_once(tmp_path: Path) -> None:
    """Spark asks for it twice, and retention may run in between."""
    with log_of(tmp_path, [message("t", b"x" * 200, i) for i in range(100)]) as log:
        reader = stream_reader(tmp_path, startingOffsets="earliest")
        before = reader.initialOffset()
        retain_from(log, 60)

        assert {"offset": 1, "begin": 1} == before == reader.initialOffset()


@pytest.mark.parametrize("fail", [True, False])
def test_a_log_that_ends_before_the_checkpoint_is_a_loss(tmp_path: Path, fail: bool) -> None:
    """The log was replaced or truncated; to wait silently would look healthy."""
    path, problem = write_log(tmp_path, varied(50)), "the log ends at 51, before the offset 99"
    reader = stream_reader(path, startingOffsets="earliest", failOnDataLoss=fail)
    if fail:
        with pytest.raises(LostOffsetsError, match=problem):
            reader.latestOffset({"offset": 99}, ALL)
    else:
        with logged_losses() as problems:
            assert {"offset": 99} == reader.latestOffset({"offset": 99}, ALL)
        assert [f"{problem}; it may be another log"] == problems


@pytest.mark.parametrize("fail", [True, False])
def test_a_first_batch_whose_end_retention_has_passed_is_a_loss(
    tmp_path: Path, fail: bool
) -> None:
    """An older version's batch is planned again after a restart, and the start has moved."""
    path = write_log(tmp_path, varied(50))
    reader = stream_reader(path, startingOffsets="earliest", failOnDataLoss=fail)
    if fail:
        with pytest.raises(LostOffsetsError, match="before 20 are lost: the log begins at 30"):
            reader.partitions({"offset": 30}, {"offset": 20})
    else:
        with logged_losses() as problems:
            assert [] == reader.partitions({"offset": 30}, {"offset": 20})
        assert ["the offsets before 20 are lost: the log begins at 30"] == problems


def test_topics_of_a_stream_have_their_own_starts(tmp_path: Path) -> None:
    """Given as Kafka's JSON, with a number for each topic."""
    path = write_log(tmp_path, varied(100))
    own = '{"a":{"0":50},"b":{"0":-2}}'
    reader = stream_reader(path, subscribe="a,b", startingOffsets=own, includeHeaders=True)
    (rows,) = run(reader, ALL)

    assert rows == [
        row
        for row in plain_rows(path)
        if row["topic"] == "b" or (row["topic"] == "a" and row["offset"] >= 50)
    ]


OWN = '{"a":{"0":50},"b":{"0":-2}}'
FIRST = ["earliest", "30", '{"a":{"0":20},"b":{"0":70}}', OWN]


@pytest.mark.parametrize("then", FIRST)
@pytest.mark.parametrize("first", FIRST)
def test_the_start_applies_to_the_first_run_only(tmp_path: Path, first: str, then: str) -> None:
    """A query that is restarted with another start reads the rows that it would have read."""
    path = write_log(tmp_path, varied(100))
    readers = [stream_reader(path, subscribe="a,b", startingOffsets=s) for s in (first, then)]
    expected = [row for batch in run(readers[0], ReadMaxRows(5)) for row in batch]
    at, rows = kept(readers[0].initialOffset()), []
    while (end := kept(readers[0].latestOffset(at, ReadMaxRows(5)))) != at:
        # Every batch is planned by the first run, which is killed, and run by another.
        begin = at if at["offset"] != at.get("begin") else kept(readers[1].initialOffset())
        rows += read_parts(readers[1], readers[1].partitions(begin, end))
        at = end

    assert expected == rows


def kept(offset: Offset) -> Offset:
    """An offset as it comes back from a checkpoint."""
    found: Offset = json.loads(json.dumps(offset))
    return found


def test_a_resumed_query_with_new_starts_for_topics_drops_nothing(tmp_path: Path) -> None:
    """A checkpoint without such starts had none when it began, or is an old one."""
    path = write_log(tmp_path, varied(100))
    reader = stream_reader(path, subscribe="a", startingOffsets='{"a":{"0":80}}')
    end = reader.latestOffset({"offset": 50}, ALL)

    assert {"offset": 101} == end
    assert [
        row["offset"] for row in plain_rows(path) if row["topic"] == "a" and row["offset"] >= 50
    ] == [row["offset"] for row in read_parts(reader, reader.partitions({"offset": 50}, end))]


def test_the_first_batch_of_an_old_checkpoint_follows_the_options(tmp_path: Path) -> None:
    """It holds neither the start nor which topics start later."""
    path = write_log(tmp_path, varied(100))
    reader = stream_reader(path, subscribe="a,b", startingOffsets=OWN)
    start = reader.initialOffset()

    assert {"offset": 1, "begin": 1, "floors": {"a": 50}} == start
    assert run(reader, ALL)[0] == read_parts(reader, reader.partitions(start, {"offset": 101}))


def test_a_repeated_first_batch_whose_start_is_gone_is_a_loss(tmp_path: Path) -> None:
    """The checkpoint has its start, so the reader notices what retention has removed."""
    with log_of(tmp_path, [message("t", b"x" * 200, i) for i in range(100)]) as log:
        first = stream_reader(tmp_path, startingOffsets="earliest")
        end = first.latestOffset(first.initialOffset(), ALL)
        retain_from(log, 60)
        again = stream_reader(tmp_path, startingOffsets="earliest")

        with pytest.raises(LostOffsetsError, match=r"the offsets 1 to .* are lost"):
            again.partitions(again.initialOffset(), end)


def test_micro_batches_over_the_network_match_those_of_the_directory(
    full_broker: Running,
) -> None:
    """So a query can change from one to the other and keep its checkpoint."""
    more: dict[str, object] = {"startingOffsets": "earliest", "subscribePattern": "a|dlq.*"}
    limit = ReadMaxRows(7)
    remote = stream_reader(None, **full_broker.options(**more))
    local = stream_reader(full_broker.path, **more)
    batches = run(remote, limit)

    assert 7 == len(batches[0])
    assert run(local, limit) == batches
    assert local.reportLatestOffset() == remote.reportLatestOffset()


@pytest.mark.parametrize("by_path", [True, False])
def test_a_group_pins_latest(broker: Running, by_path: bool) -> None:
    """Spark asks more than once, in more than one process, while messages arrive."""
    given = broker.options(groupId=f"latest {by_path}")
    if by_path:
        given.pop("endpoint")
    path = broker.path if by_path else None
    end = broker.publish(["a"])
    readers = [stream_reader(path, **given)]
    first = readers[0].initialOffset()
    later_end = broker.publish(["b", "c"])
    readers.append(stream_reader(path, **given))

    assert end <= first["offset"] < later_end - 2
    assert [first] * 2 == [reader.initialOffset() for reader in readers]
    assert ["b", "c"] == [row["value"].decode() for row in run(readers[1], ALL)[0]]


def test_a_new_query_of_an_old_group_starts_where_the_group_did(broker: Running) -> None:
    """Whatever its options say; to start afresh, the user removes the cursor."""
    given = broker.options(groupId="old")
    first = stream_reader(None, **given).initialOffset()
    broker.publish(["a"])
    again = stream_reader(None, startingOffsets="earliest", **given).initialOffset()
    broker.endpoint().remove_cursor("old")

    assert first == again
    assert {"offset": 1, "begin": 1} == stream_reader(
        None, startingOffsets="earliest", **given
    ).initialOffset()


def test_finished_offsets_are_reported(broker: Running) -> None:
    """What precedes the next batch is finished, and so is what Spark commits."""
    end = broker.publish(["a", "b", "c"])
    reader = stream_reader(
        None, startingOffsets="earliest", **broker.options(groupId="finished")
    )
    reader.initialOffset()
    positions = [broker.cursor("finished")["position"]]
    reader.latestOffset({"offset": end - 1}, ALL)
    positions.append(broker.cursor("finished")["position"])
    reader.commit({"offset": end})

    assert [1, end - 1, end] == [*positions, broker.cursor("finished")["position"]]


def test_a_report_does_not_cause_another_batch(broker: Running) -> None:
    """It is a record in the log, and an idle stream would never rest."""
    end = broker.publish(["a"])
    reader = stream_reader(None, startingOffsets="earliest", **broker.options(groupId="rests"))
    reader.commit({"offset": end})
    at = reader.latestOffset({"offset": end}, ALL)

    assert broker.endpoint().offsets().latest > end
    assert {"offset": end} == at


def test_a_stream_continues_when_its_cursor_cannot_be_reported(tmp_path: Path) -> None:
    """The files can be read without the broker."""
    path = write_log(tmp_path, varied(20))
    reader = stream_reader(path, startingOffsets="earliest", groupId="g", apiKey="dev-key")
    end = reader.latestOffset({"offset": 1}, ALL)
    reader.commit(end)

    assert {"offset": 21} == end
    assert (
        plain_rows(path)[-1]["offset"]
        == read_parts(reader, reader.partitions({"offset": 1}, end))[-1]["offset"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("on_driver", [True, False])
def test_a_stream_waits_for_a_broker_that_is_being_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_driver: bool
) -> None:
    """The driver asks again; a task waits too, but then fails, and Spark runs it again."""
    clock = FakeClock()
    with running(tmp_path, clock=clock) as broker:
        end = broker.publish(["a", "b"])
        reader = stream_reader(None, startingOffsets="earliest", **broker.options())
        (part,) = reader.partitions({"offset": 1}, {"offset": end})
    found: list[object] = []

    def ask() -> None:
        if on_driver:
            found.append(reader.latestOffset({"offset": 1}, ReadMaxRows(1)))
        else:
            with pytest.raises(UnavailableError) as failure:
                list(reader.read(part))
            found.append(failure.type)

    waiting, asking = Waiting(), Thread(target=ask)
    monkeypatch.setattr(readers if on_driver else scans, "patiently", waiting)
    asking.start()
    began = waiting.begun.wait(PATIENCE_S)
    with running(tmp_path, broker.port, clock):
        asking.join(PATIENCE_S)
        values = [row["value"] for row in read_parts(reader, [part])]

    assert began
    assert [{"offset": end - 1} if on_driver else UnavailableError] == found
    assert [b"a", b"b"] == values


def test_a_partition_is_its_range() -> None:
    """It has only the limits that matter to it, and survives pickling."""
    limits = Limits({"a": 3, "b": 4}, {"a": 8, "b": 9})
    (found,) = as_partitions([Part(3, 9, messages=5, payload_bytes=77)], limits)

    assert isinstance(found, InputPartition)
    assert LogPartition(3, 9, Limits({"b": 4}, {"a": 8})) == found
    assert found == pickle.loads(pickle.dumps(found))  # noqa: S301 - our own, as Spark does it
