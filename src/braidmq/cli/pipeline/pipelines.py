"""`braidmq pipeline`: the log as tables, through Apache Spark.

Progress goes to stderr, a line for each micro-batch; SIGTERM and Ctrl-C end a pipeline behind
the batch that it is writing, and the next run goes on from there.
"""

from pathlib import Path
from typing import Annotated

import typer

from braidmq.base.errors import ConfigError
from braidmq.cli.option_groups import grouped
from braidmq.cli.pipeline.ends import stoppable
from braidmq.cli.pipeline.options import (
    Course,
    FromLog,
    OnSpark,
    Streaming,
    Tables,
    Times,
    Unsealing,
    plan_of,
)
from braidmq.cli.progress import telling

app = typer.Typer(help="The log as tables, through Apache Spark.", no_args_is_help=True)

TypedPairs = Annotated[
    list[str] | None,
    typer.Option(
        "--typed", metavar="TOPIC=SCHEMA", help="A topic with a schema; may be repeated."
    ),
]


Group = Annotated[
    str | None, typer.Option(metavar="NAME", help="Retention waits for it; with --api-key.")
]


@app.command("archive")
@grouped
@stoppable
def archive(
    *,
    tables: Tables,
    log: FromLog,
    group: Group = None,
    streaming: Streaming,
    course: Course,
    spark: OnSpark,
) -> None:
    """Write every message into files by day and topic."""
    plan = plan_of(
        log.source(group), tables=tables, course=course, spark=spark, streaming=streaming
    )
    from braidmq.spark.pipelines.archive import archive as run

    with telling(tables.out) as tell:
        run(plan, tell)


@app.command("typed")
@grouped
@stoppable
def typed(
    *,
    tables: Tables,
    pairs: TypedPairs = None,
    schema_id: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEMA", help="Instead, of --subscribe: a built-in one, or a .json file."
        ),
    ] = None,
    unsealing: Unsealing,
    log: FromLog,
    group: Group = None,
    streaming: Streaming,
    course: Course,
    spark: OnSpark,
) -> None:
    """Write messages of a schema as tables of its fields, and misfits into quarantine."""
    chosen = log.subscribe or log.subscribe_pattern
    if bool(pairs) == bool(schema_id) or bool(pairs) == bool(chosen):
        problem = "give topics by it, or --schema-id with --subscribe, and not both"
        raise ConfigError("--typed", problem)
    source = log.source(group) | unsealing.source()
    plan = plan_of(source, tables=tables, course=course, spark=spark, streaming=streaming)
    from braidmq.spark.pipelines.typed import Wish, wishes
    from braidmq.spark.pipelines.typed import typed as run

    with telling(tables.out) as tell:
        run(plan, wishes(pairs) if pairs else [Wish(str(schema_id))], tell)


@app.command("rollup")
@grouped
@stoppable
def rollup(
    *,
    tables: Tables,
    schema_id: Annotated[
        str, typer.Option(metavar="SCHEMA", help="Of readings: built-in, or a .json file.")
    ],
    value: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The number, if there are several.")
    ] = None,
    watermark: Annotated[
        str, typer.Option(metavar="TIME", help="How much later a reading may come than others.")
    ] = "10m",
    ahead: Annotated[
        str, typer.Option(metavar="TIME", help="How far a clock may be ahead of the broker's.")
    ] = "1d",
    close: Annotated[
        bool, typer.Option("--close", help="Close the minutes that are open at the end.")
    ] = False,
    topic: Annotated[
        bool, typer.Option("--topic/--no-topic", help="Publish closed minutes, too.")
    ] = True,
    unsealing: Unsealing,
    log: FromLog,
    group: Group = None,
    streaming: Streaming,
    course: Course,
    spark: OnSpark,
) -> None:
    """Sum readings up by sensor and minute: in a table, and on the topic rollup.SCHEMA."""
    source = log.source_beside_sink(group) | unsealing.source()
    plan = plan_of(source, tables=tables, course=course, spark=spark, streaming=streaming)
    from braidmq.spark.pipelines.moments import length_ms
    from braidmq.spark.pipelines.rollup.rollup import Wish
    from braidmq.spark.pipelines.rollup.rollup import rollup as run
    from braidmq.spark.pipelines.rollup.windows import Rules

    rules = Rules(length_ms("--watermark", watermark), length_ms("--ahead", ahead))
    sink = log.sink() if topic else None
    with telling(tables.out) as tell:
        run(plan, Wish(schema_id, value, rules, close=close, sink=sink), tell)


@app.command("replay")
@grouped
@stoppable
def replay(
    *,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Run again under the same name, it goes on.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where its own files are; default: --checkpoint."),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Rows of Parquet files or Delta; default: the log."),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help="Of --table, parquet or delta; default: seen."
        ),
    ] = None,
    to_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Default: each row's own.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="COUNT", help="Messages a second, at most.")
    ] = None,
    times: Times,
    log: FromLog,
    course: Course,
    spark: OnSpark,
) -> None:
    """Publish rows of a table, or of a time in the log, again; dead letters where they died."""
    source = log.source_beside_sink()
    choices = (times.since, times.until, log.subscribe, log.subscribe_pattern)
    chosen = [option for option in choices if option]
    if table is not None and chosen:
        raise ConfigError("--table", f"{chosen[0]!r} chooses in the log, not in a table")
    own = out or course.checkpoint
    if own is None:
        raise ConfigError("--out", "is missing; give it, or --checkpoint")
    source |= times.source()
    plan = plan_of(source, tables=Tables(out=own), course=course, spark=spark)
    from braidmq.spark.pipelines.replay.replay import Wish
    from braidmq.spark.pipelines.replay.replay import replay as run

    place = None if table is None else table.absolute()
    with telling() as tell:
        run(plan, Wish(name, log.sink(), place, to_topic, rate, format_), tell)


@app.command("report")
@grouped
@stoppable
def report(
    *,
    tables: Tables,
    pairs: TypedPairs = None,
    times: Times,
    log: FromLog,
    course: Course,
    spark: OnSpark,
) -> None:
    """Say what is in the log: volume, sizes, dead letters, misfits, as tables and a page."""
    source = log.source() | times.source()
    plan = plan_of(source, tables=tables, course=course, spark=spark)
    from braidmq.spark.pipelines.report.report import PAGE
    from braidmq.spark.pipelines.report.report import report as run
    from braidmq.spark.pipelines.typed import wishes

    with telling(tables.out / PAGE) as tell:
        run(plan, wishes(pairs or ()), tell)
