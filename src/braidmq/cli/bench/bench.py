"""`braidmq bench`: measure the throughput and latency of a broker.

It measures broker and client library together, as a Python program would see them, from one
process. `make bench` measures the broker alone, with frames made by hand.
"""

import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from braidmq.base.errors import BraidError, ConfigError
from braidmq.base.limits import MESSAGE_BYTES_MAX
from braidmq.base.printable import printable
from braidmq.cli.api import api_of, checked_url, path_of, strand_address
from braidmq.cli.bench.load import MESSAGES_MAX, SIZE_MIN
from braidmq.cli.bench.report import PERCENTILES
from braidmq.cli.contexts import Place, named_place
from braidmq.cli.signals import run_until_ended
from braidmq.cli.terminal import AsJson, print_json, print_rows

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from braidmq.cli.bench.load import Load, Measured

MESSAGES_DEFAULT: Final = 100_000
PARTIES_MAX: Final = 1_000
SECONDS_MAX: Final = 86_400
REMOVE_S_MAX: Final = 5.0
"""HTTP may be out of reach where the strand is not."""

_STEPS: Final = 1_000
"""Resolution of the progress bar."""


class Strand(StrEnum):
    """Protocol to measure."""

    BLIP = "blip"
    VIBE = "vibe"
    QUMBED = "qumbed"


Publishers = Annotated[
    int,
    Option(
        min=1,
        max=PARTIES_MAX,
        metavar="N",
        help="Publishers, each with its own connection.",
    ),
]
Subscribers = Annotated[
    int,
    Option(
        min=0,
        max=PARTIES_MAX,
        metavar="N",
        help="Subscribers; 0: only publish. On Vibe they share the messages.",
    ),
]
Size = Annotated[
    int,
    Option(min=SIZE_MIN, max=MESSAGE_BYTES_MAX, metavar="BYTES", help="Size of a message."),
]
Messages = Annotated[
    int | None,
    Option(
        min=1,
        max=MESSAGES_MAX,
        metavar="N",
        help=f"Total number of messages. Default: {MESSAGES_DEFAULT}.",
    ),
]
Duration = Annotated[
    float | None,
    Option(
        min=0.1, max=SECONDS_MAX, metavar="SECONDS", help="Run for this many seconds instead."
    ),
]
Rate = Annotated[
    float,
    Option(min=0, metavar="N", help="Messages per second in total; 0: as fast as possible."),
]
Plot = Annotated[
    Path | None, Option(metavar="FILE", help="Write charts to this .svg or .html file.")
]
Url = Annotated[
    str | None,
    Option(
        metavar="URL",
        help="Address of the broker, of any scheme. Default: BRAIDMQ_URL, else "
        "BRAIDMQ_CONTEXT, else a temporary broker is started.",
    ),
]


def bench(
    *,
    strand: Annotated[
        Strand | None, Option(help="Protocol to measure. Default: that of --url, or blip.")
    ] = None,
    publishers: Publishers = 1,
    subscribers: Subscribers = 1,
    size: Size = 128,
    messages: Messages = None,
    duration: Duration = None,
    qos: Annotated[
        int, Option(min=0, max=1, metavar="0|1", help="1: on disk; 0: in memory only.")
    ] = 1,
    rate: Rate = 0.0,
    percentiles: Annotated[
        str, Option(metavar="LIST", help="Percentiles of the latencies.")
    ] = PERCENTILES,
    topic: Annotated[
        str | None, Option(metavar="TOPIC", help="Topic to use. Default: a new one.")
    ] = None,
    plot: Plot = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Measure how fast a broker takes and delivers messages.

    Publishes and receives as fast as possible, or at --rate, and prints rates and latencies. By
    default it measures a broker of its own, which it starts and removes again. Ctrl-C ends it,
    and prints the figures so far; a topic of its own is deleted.
    """
    from braidmq.cli.bench.load import Load
    from braidmq.cli.bench.plot import kind_of
    from braidmq.cli.bench.report import parse_percentiles

    wanted = parse_percentiles(percentiles)
    if plot is not None:
        kind_of(plot)
    if messages is not None and duration is not None:
        raise ConfigError("--messages", "give either --messages or --duration")
    address = _address(url, strand)
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
    place = named_place(url)
    if place is not None and measured.published and load.qos:
        # A topic that was named may hold messages of others, and is left alone.
        measured.topic_stays = topic is not None or not _removed(place, load.topic)
    _tell(load, measured, wanted, plot=plot, as_json=as_json)
    if measured.interrupted:
        raise KeyboardInterrupt


def _address(url: str | None, strand: Strand | None) -> str | None:
    """Return the strand's address at the broker that was named; None if none was.

    A context that is merely in use does not count: a benchmark floods a broker, so it has to be
    asked for.
    """
    place = named_place(url)
    if place is None:
        return None
    checked_url(place.url, place.said_by)
    return strand_address(place.url, None if strand is None else strand.value, place.http)


def _strand(chosen: Strand | None, url: str | None) -> str:
    if url is None:
        return (chosen or Strand.BLIP).value
    return url.partition("://")[0].lower().removesuffix("s")


def _run(load: "Load", url: str | None) -> "Measured":
    import uvloop

    from braidmq.cli.bench.load import Run
    from braidmq.cli.progress import progress

    async def go() -> "Measured":
        async with _broker(load.strand, url) as address:
            return await run.go(address)

    # A signal must not leave behind our broker's process, nor subscriptions and a queue at
    # another's.
    with progress(f"{load.strand}, {load.size} bytes") as advance:
        run = Run(load, lambda done: advance(int(done * _STEPS), _STEPS))
        try:
            return run_until_ended(go(), uvloop.new_event_loop)
        except KeyboardInterrupt:
            if (measured := run.interrupted()) is None:
                raise
            return measured


def _removed(place: Place, topic: str) -> bool:
    """Delete a topic over HTTP; return whether it is gone."""
    try:
        path = path_of("api", "topics", topic)
        api_of(place).ask("DELETE", path, timeout_s=REMOVE_S_MAX)
    except BraidError:  # the figures are still valid
        return False
    return True


@asynccontextmanager
async def _broker(strand: str, url: str | None) -> AsyncIterator[str]:
    """Yield the address of the broker to measure."""
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
) -> None:
    from braidmq.cli.bench import report as bench_report
    from braidmq.cli.bench.plot import write

    found = bench_report.figures(load, measured, wanted)
    if plot is not None:
        write(plot, found, measured)
    if as_json:
        print_json(asdict(found))
        return
    print_rows(bench_report.rows(found), bench_report.columns(found), as_json=False)
    told = bench_report.troubles(found)
    if sys.stderr.isatty() and (left := bench_report.remains(found)):
        told.append(left)
    if sys.stdout.isatty():  # a script needs no explanation
        told += bench_report.notes(found)
        if plot is not None:
            told.append(f"charts written to {printable(str(plot))}")
    for line in told:
        print(line, file=sys.stderr)
