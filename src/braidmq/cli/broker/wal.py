"""`braidmq wal`: verify, dump and repair the log of a stopped broker.

`verify` and `dump` change nothing. `repair` changes files only with --accept-loss, and moves
what it replaces to quarantine/; it deletes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Option

from braidmq.base.counts import counted
from braidmq.base.errors import EXIT_DAMAGED_LOG, ConfigError
from braidmq.base.printable import printable
from braidmq.cli.broker.config import ConfigFile, effective_config
from braidmq.cli.exact_json import payload_as_json
from braidmq.cli.progress import progress
from braidmq.cli.terminal import AsJson, print_json

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from braidmq.wal.disk import Disk
    from braidmq.wal.maintenance.survey import DumpedRecord, Report

app = typer.Typer(help="The log of a stopped broker.", no_args_is_help=True)

LOCK: Final = "LOCK"
DUMP_COUNT_DEFAULT: Final = 100

_COLUMNS: Final = ("id", "kind", "topic", "timestamp", "qos", "priority", "bytes", "segment")

DataDir = Annotated[
    Path | None,
    Option(metavar="DIR", help="Directory of the log; default: data_dir of the configuration."),
]


@app.command("verify")
def verify(
    data_dir: DataDir = None, config_file: ConfigFile = None, *, as_json: AsJson = False
) -> None:
    """Read the whole log and report damage; exit 65 if a broker would not start."""
    from braidmq.broker.records import describe
    from braidmq.wal.maintenance.survey import verify as verify_log

    with _log(config_file, data_dir) as disk, progress("verify", in_bytes=True) as watch:
        report = verify_log(disk, describe, watch)
    _print_report(report, as_json=as_json)
    if not report.is_intact:
        raise typer.Exit(EXIT_DAMAGED_LOG)


@app.command("repair")
def repair(
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    *,
    accept_loss: Annotated[
        bool, Option("--accept-loss", help="Record unreadable messages as lost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a damaged log usable again; list what is lost, keep the original files."""
    from braidmq.broker.records import describe
    from braidmq.wal.maintenance.repair import repair as repair_log

    with _log(config_file, data_dir) as disk, progress("repair") as watch:
        report = repair_log(disk, describe, accept_loss=accept_loss, watch=watch)
    _print_report(report, as_json=as_json)
    if not report.is_intact and not accept_loss:
        if not as_json:
            print("nothing was changed; to give up the ids above, pass --accept-loss")
        raise typer.Exit(EXIT_DAMAGED_LOG)


@app.command("dump")
def dump(
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    *,
    from_id: Annotated[int, Option("--from", min=1, help="First id to print.")] = 1,
    limit: Annotated[
        int, Option(min=1, help="Maximum number of records.")
    ] = DUMP_COUNT_DEFAULT,
    payloads: Annotated[
        bool, Option("--payloads", help="With --json: print payloads too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the records of the log, one per line."""
    from braidmq.broker.records import describe
    from braidmq.wal.maintenance.survey import dump as dump_log

    with _log(config_file, data_dir) as disk, progress("dump", in_bytes=True) as watch:
        if not as_json:
            print("\t".join(_COLUMNS))
        for record in dump_log(disk, describe, from_id=from_id, limit=limit, watch=watch):
            row = _row(record)
            if not as_json:
                print("\t".join(printable(str(row.get(column, ""))) for column in _COLUMNS))
            elif payloads and record.what is not None and record.what.topic:
                print_json(row | payload_as_json(record.body[record.what.payload_at :]))
            else:
                print_json(row)


@contextmanager
def _log(config_file: Path | None, data_dir: Path | None) -> Iterator["Disk"]:
    """Yield the data directory, locked so that no broker can start meanwhile.

    Raises:
        ConfigError: It contains no log.
        DataDirInUseError: A broker is using it.
    """
    from braidmq.wal.disk import Disk

    place = effective_config(config_file, {"data_dir": data_dir}, keys_needed=False).data_dir
    # Before the lock, which would create its file in a directory that is not a broker's.
    if not any((place / name).is_dir() for name in ("wal", "snapshot")):
        raise ConfigError("data_dir", f"there is no log in {place}")
    disk = Disk(place)
    disk.lock(LOCK)
    try:
        yield disk
    finally:
        disk.unlock(LOCK)


def _print_report(report: "Report", *, as_json: bool) -> None:
    if as_json:
        print_json({"intact": report.is_intact, **asdict(report)})
        return
    print(
        f"{counted(report.segments, 'segment')}, {counted(report.records, 'record')}, "
        f"{counted(report.bytes, 'byte')}; "
        f"ids {report.first_id} to {report.last_id}, durable up to {report.durable_id}"
    )
    for first_id, last_id in report.gaps:
        print(f"gap: ids {first_id} to {last_id} were lost and are recorded as such")
    for note in report.notes:
        print(f"note: {printable(note)}")
    for damage in report.damages:
        where = f"{damage.segment} at offset {damage.offset}"
        ids = f"ids {damage.first_id} to {damage.last_id}"
        print(f"damage: {where}, {ids}: {printable(damage.reason)}")
    for change in report.changed:
        print(f"changed: {printable(change)}")
    if report.is_intact:
        print("intact")


def _row(record: "DumpedRecord") -> dict[str, object]:
    row: dict[str, object] = {
        "id": record.record_id,
        "kind": _kind_name(record.kind),
        "segment": record.segment,
        "offset": record.offset,
        "bytes": len(record.body),
    }
    what = record.what
    if what is not None and what.topic:
        row |= {
            "topic": what.topic.decode("utf-8", "backslashreplace"),
            "timestamp": _iso(what.timestamp_us),
            "qos": what.qos,
            "priority": what.priority,
            "origin": what.origin,
            "bytes": len(record.body) - what.payload_at,
        }
    return row


def _kind_name(kind: int) -> str:
    from braidmq.base.records import KIND_NAMES

    return KIND_NAMES.get(kind, f"unknown type {kind}")


def _iso(timestamp_us: int) -> str:
    try:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=timestamp_us)
    except OverflowError:
        return f"{timestamp_us} us"
    return moment.isoformat()
