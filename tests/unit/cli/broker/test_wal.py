"""`braidmq wal`, on real logs in real directories."""

import json
from pathlib import Path

import pytest

from braidmq.base.records import KIND_NAMES
from braidmq.broker import records
from braidmq.broker.records import describe, encode_message, encode_subscribe
from braidmq.cli.main import main
from braidmq.wal.disk import Disk
from braidmq.wal.options import WalOptions
from braidmq.wal.wal import Wal
from tests.unit.broker.drive import message_of

TIMESTAMP_US = 1_700_000_000_000_000
SEGMENT = "00000000000000000001.wal"


def message(topic: str, payload: bytes) -> bytes:
    name = topic.encode()
    body = len(name).to_bytes(2, "big") + name + payload
    return encode_message(message_of(body, priority=4, timestamp_us=TIMESTAMP_US))


def write(root: Path, bodies: list[bytes]) -> None:
    """Write a log of one batch, and close it."""
    disk = Disk(root)
    wal = Wal.open(
        disk, WalOptions(), describe, now_us=TIMESTAMP_US, after_id=0, visit=lambda *_: None
    )
    wal.append(bodies)
    wal.commit(TIMESTAMP_US)
    wal.close()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A log of four records: three messages and a subscription."""
    root = tmp_path / "data"
    root.mkdir()
    disk = Disk(root)
    disk.lock("LOCK")
    write(
        root,
        [
            message("a\n", b'{"n": 1}'),
            encode_subscribe(1, TIMESTAMP_US, "dev", "a"),
            message("b", b"\xff"),
            message("b", b"text"),
        ],
    )
    disk.unlock("LOCK")
    return root


@pytest.fixture
def damaged(data_dir: Path) -> Path:
    """The same with one bit of the first record flipped."""
    path = data_dir / "wal" / SEGMENT
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)
    return data_dir


def run_wal(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["wal", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_an_intact_log_is_reported_as_intact(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a summary of its content; exit 0."""
    code, text = run_wal(capsys, "verify", "--data-dir", data_dir)

    assert 0 == code
    assert text.startswith("1 segment, 4 records, ")
    assert "; ids 1 to 4, durable up to 4\n" in text
    assert text.endswith("\nintact\n")


def test_damage_is_found_and_named(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By segment, offset and ids; exit 65, and nothing is changed."""
    before = (damaged / "wal" / SEGMENT).read_bytes()
    code, text = run_wal(capsys, "verify", "--data-dir", damaged)

    assert 65 == code
    assert f"damage: wal/{SEGMENT} at offset 32, ids 1 to 1: " in text
    assert "intact" not in text
    assert before == (damaged / "wal" / SEGMENT).read_bytes()


def test_a_report_can_be_json(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same facts for a program."""
    code, text = run_wal(capsys, "verify", "--data-dir", damaged, "--json")
    report = json.loads(text)

    assert (65, False, 1) == (code, report["intact"], len(report["damages"]))
    assert (1, 1) == (report["damages"][0]["first_id"], report["damages"][0]["last_id"])


def test_repair_does_nothing_without_consent(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what it would give up, and how to consent."""
    before = (damaged / "wal" / SEGMENT).read_bytes()
    code, text = run_wal(capsys, "repair", "--data-dir", damaged)

    assert 65 == code
    assert "nothing was changed; to give up the ids above, pass --accept-loss\n" in text
    assert before == (damaged / "wal" / SEGMENT).read_bytes()


def test_repair_with_consent_makes_the_log_readable(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss is a gap record, the original is in quarantine, and verify passes."""
    code, text = run_wal(capsys, "repair", "--data-dir", damaged, "--accept-loss")
    assert 0 == code
    assert "changed: " in text
    assert list((damaged / "quarantine").iterdir())
    code, text = run_wal(capsys, "verify", "--data-dir", damaged)
    assert 0 == code
    assert "gap: ids 1 to 1 were lost and are recorded as such\n" in text


def test_repair_of_an_intact_log_changes_nothing(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even with consent."""
    code, text = run_wal(capsys, "repair", "--data-dir", data_dir, "--accept-loss")

    assert 0 == code
    assert "changed" not in text


def test_dump_shows_records_without_payloads(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One per line, whatever the topics are called."""
    code, text = run_wal(capsys, "dump", "--data-dir", data_dir)
    header, *rows = [line.split("\t") for line in text.splitlines()]

    assert 0 == code
    assert ["id", "kind", "topic", "timestamp", "qos", "priority", "bytes", "segment"] == header
    moment = "2023-11-14T22:13:20+00:00"
    assert ["1", "message", "a\\n", moment, "1", "4", "8", f"wal/{SEGMENT}"] == rows[0]
    assert ["2", "subscribe", ""] == rows[1][:3]
    assert 4 == len(rows)
    assert "text" not in text


def test_dump_as_json_may_hold_payloads(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only on request, and only those of messages."""
    _, text = run_wal(capsys, "dump", "--data-dir", data_dir, "--json", "--payloads")
    rows = [json.loads(line) for line in text.splitlines()]

    assert [{"n": 1}, None, None, "text"] == [row.get("payload") for row in rows]
    assert ["/w==", "a\n"] == [rows[2]["payload_base64"], rows[0]["topic"]]
    _, text = run_wal(capsys, "dump", "--data-dir", data_dir, "--json")
    assert "payload" not in text


def test_dump_continues_after_an_odd_payload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON that Python cannot represent is still JSON, and is printed unchanged."""
    odd = ['"\\ud800"', '{"x": 1e999}', "[1]"]
    write(tmp_path, [message("b", payload.encode()) for payload in odd])
    code, text = run_wal(capsys, "dump", "--data-dir", tmp_path, "--json", "--payloads")

    assert (0, 3) == (code, len(text.splitlines()))
    for line, payload in zip(text.splitlines(), odd, strict=True):
        assert line.endswith(f'"payload": {payload}}}')


def test_dump_names_every_type_of_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A type without a name would be shown as unknown."""
    body = message("b", b"")[1:]
    kinds = [kind for kind in KIND_NAMES if kind != records.GAP]
    more = {records.DEAD_LETTER: bytes(24), records.FIRST_MESSAGE: bytes(16)}
    write(
        tmp_path,
        [bytes([kind]) + body[:23] + more.get(kind, b"") + body[23:] for kind in kinds],
    )
    _, text = run_wal(capsys, "dump", "--data-dir", tmp_path, "--json")

    assert records.CLOCK in kinds
    assert [KIND_NAMES[kind] for kind in kinds] == [
        json.loads(line)["kind"] for line in text.splitlines()
    ]


def test_dump_begins_and_ends_where_the_options_say(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --from and --limit."""
    _, text = run_wal(
        capsys, "dump", "--data-dir", data_dir, "--json", "--from", 2, "--limit", 2
    )

    assert [2, 3] == [json.loads(line)["id"] for line in text.splitlines()]


@pytest.mark.parametrize("command", ["verify", "dump", "repair"])
def test_a_log_in_use_is_left_alone(
    data_dir: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Exit 75: stop the broker first."""
    disk = Disk(data_dir)
    disk.lock("LOCK")
    code, text = run_wal(capsys, command, "--data-dir", data_dir)
    disk.unlock("LOCK")

    assert 75 == code
    hint = "stop that broker, or choose another directory with --data-dir"
    assert f"error: data directory {data_dir} is in use by another broker; {hint}\n" == text


@pytest.mark.parametrize("command", ["verify", "dump", "repair"])
def test_a_directory_without_a_log_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """It is not called intact, and nothing is created in it."""
    code, text = run_wal(capsys, command, "--data-dir", tmp_path)

    assert (2, f"error: data_dir: there is no log in {tmp_path}\n") == (code, text)
    assert [] == list(tmp_path.iterdir())
