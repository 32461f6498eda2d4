"""`braidmq bench`: how much a broker takes and gives, and how long a message is under way.

It measures broker and client library together, as a Python program meets them, from one
process. What the broker alone can do is measured by `make bench`, with frames made by hand.
"""

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.base.errors import ConfigError
from braidmq.base.limits import MESSAGE_BYTES_MAX
from braidmq.cli.bench.load import MESSAGES_MAX, SIZE_MIN
from braidmq.cli.bench.report import PERCENTILES
from braidmq.cli.broker.config import AsJson
from braidmq.cli.signals import run_until_ended
from braidmq.cli.strand_address import is_http, strand_address
from braidmq.cli.tables import print_json, print_rows, printable

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from braidmq.cli.bench.load import Load, Measured

MESSAGES_DEFAULT: Final = 100_000
PARTIES_MAX: Final = 1_000
SECONDS_MAX: Final = 86_400
_STEPS: Final = 1_000
"""Of the bar."""


class Strand(StrEnum):
    """Over which protocol it is measured."""

    BLIP = "blip"
    VIBE = "vibe"
    QUMBED = "qumbed"


Publishers = Annotated[
    int, typer.Option(min=1, max=PARTIES_MAX, help="Each with a connection of its own.")
]
Subscribers = Annotated[
    int, typer.Option(min=0, max=PARTIES_MAX, help="0: only publish. They share on Vibe.")
]
Size = Annotated[
    int, typer.Option(min=SIZE_MIN, max=MESSAGE_BYTES_MAX, help="Bytes of a message.")
]
Messages = Annotated[
    int | None,
    typer.Option(min=1, max=MESSAGES_MAX, help=f"In all; default: {MESSAGES_DEFAULT}."),
]
Duration = Annotated[
    float | None,
    typer.Option(min=0.1, max=SECONDS_MAX, metavar="SECONDS", help="Instead: so long."),
]
Rate = Annotated[
    float, typer.Option(min=0, help="Messages a second in all; 0: as many as it takes.")
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw it: a .svg or .html file.")
]
Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="blip://, vibe:// or qumbed://KEY@HOST:PORT, or http://, which tells where the "
        "strand is, or BRAIDMQ_URL; default: a broker of its own, which goes away again.",
    ),
]


def bench(
    *,
    strand: Annotated[Strand | None, typer.Option(help="Default: of --url, or blip.")] = None,
    publishers: Publishers = 1,
    subscribers: Subscribers = 1,
    size: Size = 128,
    messages: Messages = None,
    duration: Duration = None,
    qos: Annotated[int, typer.Option(min=0, max=1, help="1: durable; 0: memory only.")] = 1,
    rate: Rate = 0.0,
    percentiles: Annotated[
        str, typer.Option(metavar="LIST", help="Of the latencies.")
    ] = PERCENTILES,
    topic: Annotated[str | None, typer.Option(help="Default: one of its own.")] = None,
    plot: Plot = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Publish and receive as fast as it goes, or at a rate; print rates and latencies."""
    from braidmq.cli.bench.load import Load
    from braidmq.cli.bench.plot import kind_of
    from braidmq.cli.bench.report import parse_percentiles

    wanted = parse_percentiles(percentiles)
    if plot is not None:
        kind_of(plot)
    if messages is not None and duration is not None:
        raise ConfigError("--messages", "give it or --duration, and not both")
    address = url or os.environ.get("BRAIDMQ_URL")
    if address is not None and is_http(address):
        address = strand_address(address, (strand or Strand.BLIP).value)
    load = Load(
        strand=_strand(strand, address),
        topic=topic or f"bench.{secrets.token_hex(4)}",
        publishers=publishers,
        subscribers=subscribers,
        size=size,
        qos=qos,
        messages=None if duration is not None else messages or MESSAGES_DEFAULT,
        seconds=duration,
        rate=rate,
    )
    measured = _run(load, address)
    _tell(load, measured, wanted, plot=plot, as_json=as_json, is_ours=address is None)


def _strand(chosen: Strand | None, url: str | None) -> str:
    if url is None:
        return (chosen or Strand.BLIP).value
    scheme = url.partition("://")[0].removesuffix("s")
    if scheme not in set(Strand):
        raise ConfigError("--url", "must be blip://, vibe:// or qumbed://KEY@HOST:PORT")
    if chosen is not None and chosen != scheme:
        raise ConfigError("--strand", f"is {chosen.value}, but the address is of {scheme}")
    return scheme


def _run(load: "Load", url: str | None) -> "Measured":
    import uvloop

    from braidmq.cli.bench.load import Run
    from braidmq.cli.progress import progress

    async def go(tell: Callable[[float], None]) -> "Measured":
        async with _broker(load.strand, url) as address:
            return await Run(load, tell).go(address)

    # A signal must not leave behind our broker's process, nor subscriptions and a queue at
    # another's.
    with progress(f"{load.strand}, {load.size} bytes") as advance:
        work = go(lambda done: advance(int(done * _STEPS), _STEPS))
        return run_until_ended(work, uvloop.new_event_loop)


@asynccontextmanager
async def _broker(strand: str, url: str | None) -> AsyncIterator[str]:
    """Give the address of the broker that is measured."""
    if url is not None:
        yield url
        return
    from braidmq.cli.own_broker import BrokerProcess

    directory = Path(tempfile.mkdtemp(prefix="braidmq-bench-"))
    broker = BrokerProcess(directory, listeners=(strand,), settings={})
    try:
        await broker.start()
        yield broker.url(strand)
    finally:
        await broker.kill()
        shutil.rmtree(directory, ignore_errors=True)


def _tell(
    load: "Load",
    measured: "Measured",
    wanted: tuple[float, ...],
    *,
    plot: Path | None,
    as_json: bool,
    is_ours: bool,
) -> None:
    from braidmq.cli.bench import report as bench_report
    from braidmq.cli.bench.plot import write

    found = bench_report.figures(load, measured, wanted)
    if plot is not None:
        write(plot, found, measured)
    if as_json:
        print_json(bench_report.as_json(found))
        return
    print_rows(bench_report.rows(found), bench_report.columns(found), as_json=False)
    told = bench_report.troubles(found)
    if not is_ours and sys.stderr.isatty() and (left := bench_report.remains(found)):
        told.append(left)
    if sys.stdout.isatty():  # a script has read the documentation
        told += bench_report.notes(found)
        if plot is not None:
            told.append(f"drawn in {printable(str(plot))}")
    for line in told:
        print(line, file=sys.stderr)
