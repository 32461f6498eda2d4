"""Scans: cut on the driver, read on executors."""

import base64
import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from braidmq.base.errors import ConfigError
from braidmq.client.qumbed.boxes import KeyPair
from braidmq.client.qumbed.envelope import Sealer
from braidmq.columnar import cuts
from braidmq.columnar.decoding.columns import TYPES
from braidmq.columnar.decoding.unsealing import NOT_SEALED
from braidmq.spark.options import ReadOptions
from braidmq.spark.reading import scans
from braidmq.spark.reading.offsets import Limits, LostOffsetsError
from braidmq.spark.reading.scans import Scan, full_schema, typed_schema
from braidmq.spark.values import OptionError
from tests.unit.columnar.logs import log_of, message, plain_rows, retain_from, write_log
from tests.unit.spark.sources import rows_of, varied

OWN = [name for name in TYPES if name != "headers"]


def scan(path: Path, names: list[str] | None = None, **options: object) -> Scan:
    given = ReadOptions(path=path, **options)  # type: ignore[arg-type] # fields by name
    return Scan(given, list(TYPES) if names is None else names)


@pytest.mark.parametrize("partition_bytes", [1, 500, 10**9])
def test_parts_have_every_message_once_and_in_order(
    tmp_path: Path, partition_bytes: int
) -> None:
    """However small they are; parts without any message are left out."""
    path = write_log(tmp_path, varied(200))
    found = scan(path, partition_bytes=partition_bytes)
    parts = found.cut(1, 201)

    assert plain_rows(path) == [
        row for part in parts for row in rows_of(found.read(part.start, part.end))
    ]
    assert all(part.messages for part in parts)


@pytest.mark.usefixtures("forked")
def test_an_unpickled_scan_uses_the_log_of_its_process(
    tmp_path: Path,
) -> None:
    """A Spark process keeps one log, with its open files, for the next query."""
    sent = scan(tmp_path)
    used = sent.log
    arrived = pickle.loads(pickle.dumps(sent))  # noqa: S301 - our own, and what Spark does

    assert "log" not in vars(arrived)
    assert used is arrived.log


def test_there_are_at_least_as_many_parts_as_requested(tmp_path: Path) -> None:
    """If there are enough messages; parts that are already smaller are not merged."""
    path = write_log(tmp_path, varied(100))

    assert 1 == len(scan(path).cut(1, 101))
    assert 6 == len(scan(path, partitions_min=6).cut(1, 101))
    fine = scan(path, partition_bytes=200)
    assert len(fine.cut(1, 101)) > 6
    assert len(fine.cut(1, 101)) == len(
        scan(path, partition_bytes=200, partitions_min=6).cut(1, 101)
    )


def test_a_range_without_a_wanted_message_has_no_part(tmp_path: Path) -> None:
    """So Spark starts no task for it."""
    found = scan(write_log(tmp_path, varied(50)), partitions_min=4)
    found.topics = frozenset({"nowhere"})

    assert [] == found.cut(1, 51)


def test_columns_are_those_requested_in_that_order(tmp_path: Path) -> None:
    """If none is requested, there are still as many rows."""
    path = write_log(tmp_path, varied(50))
    wanted = ["offset", "topic"]
    expected = [{name: row[name] for name in wanted} for row in plain_rows(path)]

    assert expected == rows_of(scan(path, wanted).read(1, 51))
    assert len(expected) == sum(len(batch) for batch in scan(path, []).read(1, 51))


@pytest.mark.parametrize("names", [["value"], [], ["offset", "topic"]])
def test_limits_of_topics_leave_rows_out(tmp_path: Path, names: list[str]) -> None:
    """Below a topic's start and from its end on; other topics are complete."""
    path = write_log(tmp_path, varied(200))
    found = scan(path, names)
    limits = Limits({"a": 60}, {"b": 90, "データ": 0})
    expected = [
        {name: row[name] for name in names}
        for row in plain_rows(path)
        if not (row["topic"] == "a" and row["offset"] < 60)
        and not (row["topic"] == "b" and row["offset"] >= 90)
        and row["topic"] != "データ"
    ]
    batches = list(found.read(1, 201, limits))

    assert len(expected) == sum(len(batch) for batch in batches)
    assert expected == [row for batch in batches for row in batch.to_pylist()] or not names


def test_typed_columns_follow_with_the_error(tmp_path: Path) -> None:
    """A field may be read alone; without any, nothing is decoded."""
    good = {"celsius": 1.5, "timestamp_ms": 7, "sensor_id": "s"}
    path = write_log(tmp_path, [message("t", json.dumps(good).encode()), message("t", b"?")])
    options = ReadOptions(path=path, schema_id="sensor.Temperature")
    names = full_schema(options).names
    rows = rows_of(Scan(options, names).read(1, 3))

    assert [*OWN, "celsius", "timestamp_ms", "sensor_id", "_error"] == names
    assert [1.5, None] == [row["celsius"] for row in rows]
    assert [None, True] == [row["_error"] and bool(row["_error"]) for row in rows]
    assert [{"sensor_id": "s"}, {"sensor_id": None}] == rows_of(
        Scan(options, ["sensor_id"]).read(1, 3)
    )
    assert [{"offset": 1}, {"offset": 2}] == rows_of(Scan(options, ["offset"]).read(1, 3))


def test_a_schema_is_built_in_or_in_a_file(tmp_path: Path) -> None:
    """Any other id is refused, and the error lists the known ones."""
    file = tmp_path / "mine.json"
    file.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    typed = typed_schema(ReadOptions(schema_id=str(file)))

    assert typed is not None
    assert ["n"] == [field.name for field in typed.fields]
    assert typed_schema(ReadOptions()) is None
    with pytest.raises(
        OptionError,
        match=r"option schemaId: 'x' .* is no built-in schema 'x'; there are: con.*; ",
    ):
        typed_schema(ReadOptions(schema_id="x"))
    file.write_text('{"type": "object", "properties": {"Offset": {"type": "integer"}}}')
    with pytest.raises(OptionError, match=r"option schemaId: .* the field 'Offset' has .*; "):
        full_schema(ReadOptions(schema_id=str(file)))


def test_a_schema_in_a_file_is_sent_to_the_tasks(tmp_path: Path) -> None:
    """The driver reads it once: a task may run elsewhere, or later."""
    file = tmp_path / "mine.json"
    file.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    path = write_log(tmp_path / "log", [message("t", b'{"n":1}'), message("t", b'{"n":"x"}')])
    found = scan(path, ["n", "_error"], schema_id=str(file))
    before = rows_of(found.read(1, 3))
    file.unlink()
    shipped = pickle.loads(pickle.dumps(found))  # noqa: S301 - our own, as Spark does it

    assert [1, None] == [row["n"] for row in before]
    assert before == rows_of(shipped.read(1, 3))


def test_a_key_adds_only_the_error_column() -> None:
    """It says why a message cannot be unsealed; the key itself is not needed to plan."""
    schema = full_schema(ReadOptions(key_file=Path("/no/such/key"), headers=True))

    assert [*TYPES, "_error"] == schema.names
    assert pa.string() == schema.field("_error").type


def test_payloads_are_unsealed_before_they_are_decoded(tmp_path: Path) -> None:
    """With the key file, if the sender is trusted; others stay sealed, with the reason."""
    sender, reader = KeyPair.generate(), KeyPair.generate()
    good = b'{"celsius":21.5,"timestamp_ms":17,"sensor_id":"a"}'
    box = Sealer(sender, now_ms=1).seal(
        good, reader.public_key, topic="t", schema_id="sensor.Temperature", now_ms=1
    )
    kept = {
        "senderPublicKey": base64.b64encode(sender.public_key).decode(),
        "schemaId": "sensor.Temperature",
    }
    path = write_log(tmp_path / "log", [message("t", box, origin=3, kept=kept)])
    key = tmp_path / "key"
    key.write_text(reader.reveal_private_key().hex())
    key.chmod(0o600)
    wanted: dict[str, object] = {"key_file": key, "schema_id": "sensor.Temperature"}
    names = ["value", "celsius", "_error"]
    trusting = scan(path, names, trusted=(sender.public_key,), **wanted)
    wary = scan(path, names, trusted=(reader.public_key,), **wanted)

    assert [{"value": good, "celsius": 21.5, "_error": None}] == rows_of(trusting.read(1, 2))
    assert [good] == [
        row["value"]
        for row in rows_of(scan(path, ["value", "_error"], key_file=key).read(1, 2))
    ]
    (refused,) = rows_of(wary.read(1, 2))
    assert (box, None, "the sender is not trusted") == tuple(refused.values())


def test_a_payload_that_is_not_sealed_is_not_a_trusted_row(tmp_path: Path) -> None:
    """Whether its message names the trusted key or none."""
    sender, reader = KeyPair.generate(), KeyPair.generate()
    good = b'{"celsius":21.5,"timestamp_ms":17,"sensor_id":"a"}'
    claimed = {"senderPublicKey": base64.b64encode(sender.public_key).decode()}
    path = write_log(
        tmp_path / "log", [message("t", good), message("t", good, origin=3, kept=claimed)]
    )
    key = tmp_path / "key"
    key.write_text(reader.reveal_private_key().hex())
    key.chmod(0o600)
    given: dict[str, object] = {"key_file": key, "trusted": (sender.public_key,)}
    typed = scan(path, ["value", "celsius", "_error"], schema_id="sensor.Temperature", **given)

    assert [(good, None, NOT_SEALED)] * 2 == [
        tuple(row.values()) for row in rows_of(typed.read(1, 3))
    ]
    assert [NOT_SEALED] * 2 == [
        row["_error"] for row in rows_of(scan(path, ["_error"], **given).read(1, 3))
    ]


def test_a_key_that_cannot_be_read_fails_the_read(tmp_path: Path) -> None:
    """On the driver, before any row; a read without payloads does not need it."""
    path = write_log(tmp_path, varied(5))
    key = tmp_path / "none"

    with pytest.raises(OptionError, match=r"option privateKeyFile: '.*cannot be read.*; name"):
        scan(path, ["value"], key_file=key)
    assert 2 == len(rows_of(scan(path, ["offset"], key_file=key).read(1, 3)))


def test_a_key_that_only_executors_have_is_checked_by_them(tmp_path: Path) -> None:
    """With an endpoint they may run elsewhere; the driver checks a key that it can read."""
    key = tmp_path / "key"
    options = ReadOptions(endpoint="grpc://127.0.0.1:1", api_key="k", key_file=key)
    found = Scan(options, ["value"])

    with pytest.raises(OptionError, match="option privateKeyFile: "):
        next(found.read(1, 3))
    key.write_text("no key")
    key.chmod(0o600)
    with pytest.raises(OptionError, match=r"option privateKeyFile: '.* does not hold a"):
        Scan(options, ["value"])


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"partition_bytes": 1}, "option targetPartitionBytes: '1' would be more than 9 parts"),
        ({"partitions_min": 77}, "option minPartitions: '77' would be more than 9 parts; give"),
    ],
)
def test_too_many_parts_are_refused_with_their_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, object], refused: str
) -> None:
    """The error has its value and what to give instead."""
    for module in (cuts, scans):
        monkeypatch.setattr(module, "PARTS_MAX", 9)
    path = write_log(tmp_path, varied(100))

    with pytest.raises(OptionError, match=refused):
        scan(path, None, **given).cut(1, 101)


def test_a_directory_without_a_log_is_refused_with_the_fix(tmp_path: Path) -> None:
    """The error begins with the name of the option."""
    with pytest.raises(ConfigError, match=f"^path: {tmp_path} is not a data .*; name the one"):
        scan(tmp_path).cut(1, 2)


@pytest.mark.parametrize("fail", [True, False])
def test_what_retention_deleted_is_an_error_or_skipped(tmp_path: Path, *, fail: bool) -> None:
    """When a range is cut, limited or read."""
    with log_of(tmp_path, [message("t", b"x" * 200, i) for i in range(100)]) as log:
        retain_from(log, 60)
        found = scan(tmp_path, ["offset"], fail_on_data_loss=fail)
        if not fail:
            offsets = [row["offset"] for row in rows_of(found.read(1, 101))]
            assert offsets == list(range(offsets[0], 101))
            assert 1 < offsets[0] <= 60
            assert 1 == len(found.cut(1, 101))
            assert offsets[0] + 5 == found.advance(1, messages=5)
            return
        for read in (
            lambda: list(found.read(1, 101)),
            lambda: found.cut(1, 101),
            lambda: found.advance(1, messages=5),
        ):
            with pytest.raises(LostOffsetsError, match=r"the offsets 1 to .* failOnDataLoss"):
                read()


def test_messages_and_bytes_of_the_wanted_topics_are_counted(tmp_path: Path) -> None:
    """As a rate limit requires."""
    path = write_log(tmp_path, [message("ab"[i % 2], b"x" * 10, i) for i in range(20)])
    found = scan(path)
    found.topics = frozenset({"b"})

    assert 8 == found.advance(1, messages=3)
    assert 8 == found.advance(1, size=39)
    assert 21 == found.advance(1)
