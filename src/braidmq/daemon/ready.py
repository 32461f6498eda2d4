"""What a start says when it is done: a log line about recovery, and files with the facts.

The ready file and `run.json` say where the broker listens; `daemon` decides what is in them.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import structlog

from braidmq.server.engine.recovery import Recovered

_log = structlog.get_logger(__name__)


def log_recovery(found: Recovered, seconds: float) -> None:
    """Log what recovery has found, and what it had to set aside."""
    recovered = found.wal.recovered
    _log.info(
        "recovered",
        seconds=round(seconds, 3),
        replayed_records=recovered.replayed_records,
        next_id=found.wal.next_id,
        subscriptions=found.broker.subscription_count(),
        topics=len(found.broker.topics),
    )
    if recovered.torn_bytes or recovered.zero_bytes:
        _log.warning(
            "torn tail healed: an unfinished write was moved to quarantine",
            torn_bytes=recovered.torn_bytes,
            zero_bytes=recovered.zero_bytes,
            files=recovered.quarantined,
        )
    for path in found.snapshots_rejected:
        _log.warning("bad snapshot set aside", file=path)


def write_facts(path: Path, facts: Mapping[str, object]) -> None:
    """Write *facts* to *path*, or log why that was not possible.

    It is no reason to stop: consumers must be able to drain a full disk, and what was reloaded
    holds whether a file says so or not.
    """
    try:
        write_atomically(path, json.dumps(facts))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        _log.warning(f"cannot write {path.name}", reason=reason)


def write_atomically(path: Path, text: str) -> None:
    """Write *text* to *path*, for its owner only; readers see all of it or the file before.

    It is not synced: the file says what runs now, and is stale after a power cut anyway.
    """
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # a killed broker may have left one, with any mode
    temporary.touch(mode=0o600, exist_ok=False)
    temporary.write_text(text)
    temporary.replace(path)
