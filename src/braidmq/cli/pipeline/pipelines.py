"""`braidmq pipeline`: turn the log into tables with Apache Spark.

Progress goes to stderr, one line per micro-batch. SIGTERM and Ctrl-C end a pipeline after the
batch that it is writing; the next run continues from there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from braidmq.base.errors import ConfigError
from braidmq.cli.option_groups import grouped
from braidmq.cli.pipeline.options import (
    FromLog,
    Running,
    Streaming,
    Tables,
    Times,
    Unsealing,
    plan_of,
)
from braidmq.cli.progress import telling
from braidmq.cli.signals import stoppable

app = typer.Typer(help="Turn the log into tables with Apache Spark.", no_args_is_help=True)


TypedPairs = Annotated[
    list[str] | None,
    Option("--typed", metavar="TOPIC=SCHEMA", help="Topic and its schema; may be repeated."),
]


Group = Annotated[
    str | None,
    Option(metavar="NAME", help="Consumer group that retention waits for; needs an API key."),
]


def _pipeline(command: Callable[..., None]) -> Callable[..., None]:
    app.command()(grouped(stoppable(command)))
    return command


@_pipeline
def archive(
    *,
    tables: Tables,
    log: FromLog,
    group: Group = None,
    streaming: Streaming,
    running: Running,
) -> None:
    """Write all messages to files, partitioned by day and topic."""
    plan = plan_of(log.source(group), tables, running, streaming)
    from braidmq.spark.pipelines.archive import archive as run

    with telling(tables.out) as tell:
        run(plan, tell)


@_pipeline
def typed(
    *,
    tables: Tables,
    pairs: TypedPairs = None,
    schema_id: Annotated[
        str | None,
        Option(
            metavar="SCHEMA",
            help="Schema of all topics in --subscribe: built-in, or a .json file.",
        ),
    ] = None,
    unsealing: Unsealing,
    log: FromLog,
    group: Group = None,
    streaming: Streaming,
    running: Running,
) -> None:
    """Write messages to tables with the columns of their schema.

    Messages that do not match their schema go to a table of their own.
    """
    chosen = log.subscribe or log.subscribe_pattern
    if bool(pairs) == bool(schema_id) or bool(pairs) == bool(chosen):
        problem = "give either --typed, or --schema-id with --subscribe"
        raise ConfigError("--typed", problem)
    source = log.source(group) | unsealing.source()
    plan = plan_of(source, tables, running, streaming)
    from braidmq.spark.pipelines.typed import TypedTopics, parse_typed
    from braidmq.spark.pipelines.typed import typed as run

    with telling(tables.out) as tell:
        run(plan, parse_typed(pairs) if pairs else [TypedTopics(str(schema_id))], tell)


@_pipeline
def rollup(
    *,
    tables: Tables,
    schema_id: Annotated[
        str,
        Option(metavar="SCHEMA", help="Schema of the readings: built-in, or a .json file."),
    ],
    value: Annotated[
        str | None,
        Option(metavar="FIELD", help="Field to aggregate, if the schema has several numbers."),
    ] = None,
    watermark: Annotated[
        str, Option(metavar="TIME", help="Allowed lateness of event times.")
    ] = "10m",
    ahead: Annotated[
        str,
        Option(metavar="TIME", help="How far event times may be ahead of the broker's clock."),
    ] = "1d",
    close: Annotated[
        bool, Option("--close", help="Close all open minutes at the end.")
    ] = False,
    topic: Annotated[
        bool, Option("--topic/--no-topic", help="Also publish closed minutes to a topic.")
    ] = True,
    unsealing: Unsealing,
    log: FromLog,
    group: Group = None,
    streaming: Streaming,
    running: Running,
) -> None:
    """Sum up readings by sensor and minute.

    The minutes go to a table, and back to the broker on the topic rollup.SCHEMA.
    """
    source = log.source(group, beside_sink=True) | unsealing.source()
    plan = plan_of(source, tables, running, streaming)
    from braidmq.spark.pipelines.rollup.rollup import RollupOptions
    from braidmq.spark.pipelines.rollup.rollup import rollup as run
    from braidmq.spark.pipelines.rollup.windows import Rules
    from braidmq.spark.pipelines.times import length_ms

    rules = Rules(length_ms("--watermark", watermark), length_ms("--ahead", ahead))
    sink = log.sink() if topic else None
    with telling(tables.out) as tell:
        run(plan, RollupOptions(schema_id, value, rules, close=close, sink=sink), tell)


@_pipeline
def replay(
    *,
    name: Annotated[
        str,
        Option(
            metavar="NAME",
            help="Name of the replay; running it again under this name resumes it.",
        ),
    ],
    out: Annotated[
        Path | None,
        Option(
            metavar="DIR", help="Directory for checkpoint and log files; default: --checkpoint."
        ),
    ] = None,
    table: Annotated[
        Path | None,
        Option(metavar="DIR", help="Parquet or Delta table to replay; default: the log."),
    ] = None,
    format_: Annotated[
        str | None,
        Option(
            "--format",
            metavar="FORMAT",
            help="Format of --table, parquet or delta; default: detected.",
        ),
    ] = None,
    to_topic: Annotated[
        str | None,
        Option(metavar="TOPIC", help="Topic to publish to; default: that of each row."),
    ] = None,
    rate: Annotated[
        float | None, Option(metavar="COUNT", help="Maximum messages per second.")
    ] = None,
    times: Times,
    log: FromLog,
    running: Running,
) -> None:
    """Publish rows of a table, or a part of the log, again.

    Dead letters go back to where they came from.
    """
    source = log.source(beside_sink=True)
    choices = (times.since, times.until, log.subscribe, log.subscribe_pattern)
    chosen = [option for option in choices if option]
    if table is not None and chosen:
        raise ConfigError(
            "--table", f"{chosen[0]!r} selects from the log and cannot be combined with it"
        )
    own = out or running.checkpoint
    if own is None:
        raise ConfigError("--out", "is required, or --checkpoint")
    source |= times.source()
    plan = plan_of(source, Tables(out=own), running)
    from braidmq.spark.pipelines.replay.replay import ReplayOptions
    from braidmq.spark.pipelines.replay.replay import replay as run

    rows = None if table is None else table.absolute()
    with telling() as tell:
        run(plan, ReplayOptions(name, log.sink(), rows, to_topic, rate, format_), tell)


@_pipeline
def report(
    *,
    tables: Tables,
    pairs: TypedPairs = None,
    times: Times,
    log: FromLog,
    running: Running,
) -> None:
    """Report volume, sizes and dead letters, as an HTML page.

    The numbers are written as tables, too.
    """
    source = log.source() | times.source()
    plan = plan_of(source, tables, running)
    from braidmq.spark.pipelines.report.report import PAGE
    from braidmq.spark.pipelines.report.report import report as run
    from braidmq.spark.pipelines.typed import parse_typed

    with telling(tables.out / PAGE) as tell:
        run(plan, parse_typed(pairs or ()), tell)
