"""The report: rows of figures, as a table and as JSON.

A bar is a goal of the design. Missing it fails nothing, because one noisy run proves nothing.
"""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.streams import Sample

FSYNCS_TRIED: Final = 50
FSYNC_BYTES: Final = 4096
US_PER_S: Final = 1_000_000


@dataclass(frozen=True)
class Row:
    """One line of the table; None if not measured."""

    name: str
    value: str
    peer: str = ""
    ratio: float | None = None
    bar: float | None = None
    bar_text: str = ""
    met: bool | None = None  # without a bar, or a peer
    rate: float | None = None
    peer_rate: float | None = None
    server_cpu_us: float | None = None
    client_busy: float | None = None
    amount: float | None = None  # of a row that is not a rate: MiB or seconds


def rate_row(
    name: str,
    samples: Sequence[Sample],
    *,
    peer_name: str,
    peer_samples: Sequence[Sample],
    bar: float | None,
) -> Row:
    """Return a row of medians; the ratio is the median of the ratios of the rounds."""
    rate = statistics.median(sample.rate for sample in samples)
    ratio = peer_rate = None
    peer = peer_name
    if peer_samples:
        peer_rate = statistics.median(sample.rate for sample in peer_samples)
        pairs = zip(samples, peer_samples, strict=True)
        ratio = statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)
        peer = f"{peer_name} {peer_rate:,.0f}/s"
    return Row(
        name=name,
        value=f"{rate:,.0f}/s",
        peer=peer,
        ratio=ratio,
        bar=bar,
        bar_text="" if bar is None else f">= {bar:.2f}",
        met=None if bar is None or ratio is None else ratio >= bar,
        rate=rate,
        peer_rate=peer_rate,
        server_cpu_us=statistics.median(
            sample.server_cpu_s / sample.messages * US_PER_S for sample in samples
        ),
        client_busy=statistics.median(
            sample.client_cpu_s / sample.seconds for sample in samples
        ),
    )


def time_row(
    name: str,
    samples: Sequence[float],
    *,
    peer_name: str,
    peer_samples: Sequence[float],
    bar: float | None,
) -> Row:
    """Return a row of median seconds; the ratio is the peer's time over ours."""
    pairs = zip(samples, peer_samples, strict=True)
    ratio = statistics.median(theirs / ours for ours, theirs in pairs)
    return Row(
        name=name,
        value=f"{statistics.median(samples):,.3f} s",
        peer=f"{peer_name} {statistics.median(peer_samples):,.2f} s",
        ratio=ratio,
        bar=bar,
        bar_text="" if bar is None else f">= {bar:.2f}",
        met=None if bar is None else ratio >= bar,
        amount=statistics.median(samples),
    )


def amount_row(
    name: str, amount: float, unit: str, *, bar: float | None, note: str = ""
) -> Row:
    """Return a row for an amount that should stay below its bar, if there is one."""
    return Row(
        name=name,
        value=f"{amount:,.2f} {unit}",
        peer=note,
        bar=bar,
        bar_text="" if bar is None else f"< {bar:g} {unit}",
        met=None if bar is None else amount < bar,
        amount=amount,
    )


def absent_row(name: str, why: str) -> Row:
    """Return a row that could not be measured, with the reason."""
    return Row(name=name, value="", peer=why)


def table(rows: Sequence[Row]) -> str:
    """Return the rows with their columns aligned."""
    lines = [("", "BraidMQ", "peer", "ratio", "bar", "", "CPU us/msg")]
    lines += [_cells(row) for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    right = {1, 3, 4, 6}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def write_json(path: Path, facts: dict[str, str], rows: Sequence[Row]) -> None:
    """Write all figures as JSON."""
    content = {"machine": facts, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=2) + "\n")


def machine(directory: Path, peers: Mapping[str, str]) -> dict[str, str]:
    """Return the facts needed to read the figures; *peers* are programs' versions."""
    facts = {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "fdatasync of 4 KiB": f"{_fsync_s(directory) * 1000:.2f} ms (median)",
        "load before": f"{os.getloadavg()[0]:.2f}",
    }
    return {**facts, **peers}


def version_of(program: str) -> str:
    """Return the version that a program prints."""
    found = subprocess.run([program, "--version"], capture_output=True, check=True)
    return found.stdout.decode().strip()


def _cells(row: Row) -> tuple[str, str, str, str, str, str, str]:
    met = "" if row.met is None else "met" if row.met else "not met"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    cpu = "" if row.server_cpu_us is None else f"{row.server_cpu_us:.2f}"
    return row.name, row.value, row.peer, ratio, row.bar_text, met, cpu


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _fsync_s(directory: Path) -> float:
    taken = []
    with (directory / "fsync").open("wb", buffering=0) as file:
        for _ in range(FSYNCS_TRIED):
            file.write(bytes(FSYNC_BYTES))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - started)
    return statistics.median(taken)
