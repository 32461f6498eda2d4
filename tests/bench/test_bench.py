"""The benchmarks run and print plausible figures. Speed itself is not tested."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from bench import first_page
from bench.__main__ import NATS, RABBITMQ, REDIS, Product
from braidmq.base.build import is_compiled

ROOT: Final = Path(__file__).resolve().parents[2]
RUN_S_MAX: Final = 300.0

TITLES: Final = (
    "publish, QoS 1, fsynced",
    "POLL, QoS 1",
    "POLL and ACK, QoS 1",
    "CREDIT and ACK, QoS 1",
    "publish to deliver, QoS 0",
    "Vibe publish, pipelined, fsynced",
    "Vibe load test, each reply awaited",
    "Qumbed publish, pipelined, fsynced",
    "Qumbed publish, on one connection",
    "Qumbed fan-out to 10, sealed for each",
)
PROGRAM: Final = "" if is_compiled() else ", interpreted"
PEERS: Final[dict[str, Product | None]] = {
    "publish": NATS,
    "POLL, ": REDIS,
    "POLL and": REDIS,
    "CREDIT": REDIS,
    "Vibe publish": RABBITMQ,
    "Vibe load": None,  # compared with what its documentation claims
    "Qumbed": None,  # compared with a goal, or with our own broker
    "Dashboard": None,  # compared with our own broker without one
}
RATES: Final = {title + PROGRAM for title in TITLES} | {"Dashboard open, publish, fsynced"}
AMOUNTS: Final = {
    "import braidmq, processor time",
    "braidmq --help, processor time",
    "braidmq serve, ready",
    "memory, 100,000 behind",
    "ready again after a stop, 100,000 behind",
    "ready again after a kill, 100,000 behind",
    "memory, 500 queues with a message each",
    "memory, an idle Qumbed subscriber",
    "one topic of 100 of an open log",
    "one topic of 100 at the first read",
    "one topic of 100 only a byte of each payload",
    "a page of /api/topics, of 10,000",
}
FIRST_PAGE: Final = {first_page.PAINTED, first_page.LIVE}
SPARK_ROWS: Final = {
    "one topic of 100 of an open log",
    "one topic of 100 at the first read",
    "one topic of 100 only a byte of each payload",
    "one topic of 100 through Spark",
    "nothing through Spark",
    "Spark source",
    "Spark typed readings",
    "Spark typed readings, Parquet",
    "Spark archive",
    "memory, a Spark worker that reads 100,000",
}


@pytest.mark.slow
@pytest.mark.timeout(RUN_S_MAX)
def test_the_quick_run_measures_every_row(tmp_path: Path) -> None:
    """Every row is printed, with figures that a real machine could have."""
    figures = tmp_path / "figures.json"
    run = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--json", str(figures)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )

    assert (0, "") == (run.returncode, run.stderr)
    rows = {row["name"]: row for row in json.loads(figures.read_text())["rows"]}
    assert RATES | AMOUNTS | FIRST_PAGE == set(rows)
    assert [] == [name for name in rows if not re.search(f"^{name} ", run.stdout, re.MULTILINE)]
    assert [] == [name for name in RATES if not 10 < rows[name]["rate"] < 100_000_000]
    assert [] == [name for name in RATES if not _ratio_is_plausible(rows[name])]
    assert [] == [name for name in AMOUNTS if not 0 < rows[name]["amount"] < 10_000]
    assert [] == [name for name in FIRST_PAGE if not _is_measured_or_explained(rows[name])]


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(RUN_S_MAX)
def test_the_spark_rows_are_measured(tmp_path: Path) -> None:
    """A quick run measures them, all of them, only if they are selected."""
    figures = tmp_path / "figures.json"
    run = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--only", "spark", "--json", str(figures)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )

    assert (0, "") == (run.returncode, run.stderr)
    rows = {row["name"]: row for row in json.loads(figures.read_text())["rows"]}
    assert SPARK_ROWS == set(rows)
    assert [] == [name for name, row in rows.items() if not (row["rate"] or row["amount"])]


def test_an_unknown_row_is_refused() -> None:
    """The error lists the rows that exist."""
    run = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "everything"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )

    assert 2 == run.returncode
    assert "publish" in run.stderr


@pytest.mark.slow
@pytest.mark.timeout(RUN_S_MAX)
def test_without_a_browser_the_first_page_rows_say_so(tmp_path: Path) -> None:
    """They are printed without a figure or a verdict."""
    figures = tmp_path / "figures.json"
    run = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--only", "dashboard", "--json", figures],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )

    assert (0, "") == (run.returncode, run.stderr)
    rows = {row["name"]: row for row in json.loads(figures.read_text())["rows"]}
    assert 2 * [("chromium is not installed", None, None)] == [
        (rows[name]["peer"], rows[name]["amount"], rows[name]["met"]) for name in FIRST_PAGE
    ]


def _is_measured_or_explained(row: dict[str, Any]) -> bool:
    if missing := first_page.missing():
        return row["amount"] is None and f"{missing} is not installed" == row["peer"]
    return bool(0 < row["amount"] < 60)


def _ratio_is_plausible(row: dict[str, Any]) -> bool:
    peer = next(peer for start, peer in PEERS.items() if row["name"].startswith(start))
    if peer is not None and not peer.is_installed:
        return row["ratio"] is None and f"{peer.program} is not installed" == row["peer"]
    return bool(0.001 < row["ratio"] < 1_000)
