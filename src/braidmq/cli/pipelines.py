"""`braidmq pipeline`: the log as tables, through Apache Spark.

Progress goes to stderr, a line for each micro-batch; SIGTERM and Ctrl-C end a pipeline behind
the batch that it is writing, and the next run goes on from there.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.base.errors import ConfigError
from braidmq.cli.progress import telling

if TYPE_CHECKING:  # pyspark takes a second, and --help does not need it
    from braidmq.spark.pipelines.runs import Plan

app = typer.Typer(help="The log as tables, through Apache Spark.", no_args_is_help=True)

DataPath = Annotated[
    Path | None, typer.Option("--path", metavar="DIR", help="The broker's data directory.")
]
Endpoint = Annotated[
    str | None, typer.Option(metavar="URL", help="Instead: grpc://HOST:8815 of the broker.")
]
ApiKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="For --endpoint; also BRAIDMQ_API_KEY, out of sight."),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where the tables are.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where the query's place is; default: in --out."),
]
TriggerText = Annotated[
    str,
    typer.Option("--trigger", metavar="WHEN", help="available-now, or every so often: 10s."),
]
Format = Annotated[str, typer.Option("--format", metavar="FORMAT", help="parquet or delta.")]
Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark's master; default: this machine.")
]
Conf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Configuration of Spark; may be repeated."),
]
Subscribe = Annotated[
    str | None, typer.Option(metavar="TOPICS", help="With commas between; default: all.")
]
SubscribePattern = Annotated[
    str | None, typer.Option(metavar="REGEX", help="Instead: of whole names of topics.")
]
StartingOffsets = Annotated[
    str | None,
    typer.Option(metavar="WHERE", help='earliest, a number, or {"topic": {"0": number}}.'),
]
MaxOffsets = Annotated[
    int | None,
    typer.Option(
        "--max-offsets-per-trigger", min=1, metavar="COUNT", help="Messages of a micro-batch."
    ),
]
TypedPairs = Annotated[
    list[str] | None,
    typer.Option(
        "--typed", metavar="TOPIC=SCHEMA", help="A topic with a schema; may be repeated."
    ),
]
PrivateKey = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Unseal payloads first (Qumbed).")
]
Trust = Annotated[
    list[str] | None,
    typer.Option(metavar="HEX", help="Of this public key only; may be repeated (Qumbed)."),
]


def source_options(
    *,
    path: Path | None,
    endpoint: str | None,
    api_key: str | None,
    subscribe: str | None,
    subscribe_pattern: str | None,
    starting_offsets: str | None = None,
    max_offsets: int | None = None,
) -> dict[str, str]:
    """Return what the source is told.

    Raises:
        ConfigError: Neither or both of --path and --endpoint.
    """
    if (path is None) == (endpoint is None):
        raise ConfigError("--path", "give it or --endpoint, and not both")
    if endpoint is not None and api_key is None:
        api_key = os.environ.get("BRAIDMQ_API_KEY")
    said = {
        "path": path,
        "endpoint": endpoint,
        "apiKey": api_key,
        "subscribe": subscribe,
        "subscribePattern": subscribe_pattern,
        "startingOffsets": starting_offsets,
        "maxOffsetsPerTrigger": max_offsets,
    }
    return {name: str(value) for name, value in said.items() if value is not None}


def unsealing_options(private_key: Path | None, trust: list[str] | None) -> dict[str, str]:
    """Return what the source is told about sealed payloads."""
    told = {} if private_key is None else {"privateKeyFile": str(private_key.absolute())}
    return told | ({"trustedKeys": ",".join(trust)} if trust else {})


def plan_of(
    source: dict[str, str],
    *,
    out: Path,
    checkpoint: Path | None,
    trigger: str,
    format_: str,
    master: str | None,
    conf: list[str] | None,
    compact: bool = False,
) -> "Plan":
    """Return what a pipeline is told.

    Raises:
        ConfigError: A value cannot be used, or Spark is not installed.
    """
    need_spark()
    from braidmq.spark.pipelines.runs import Plan
    from braidmq.spark.pipelines.triggers import parse_trigger
    from braidmq.spark.sessions import MASTER

    return Plan(
        source=source,
        out=out.absolute(),
        checkpoint=None if checkpoint is None else checkpoint.absolute(),
        trigger=parse_trigger(trigger),
        format=format_,
        master=master or MASTER,
        config=dict(map(_setting, conf or ())),
        compact=compact,
    )


def need_spark() -> None:
    """Say how to get Spark when it is not there.

    Raises:
        ConfigError: It is not.
    """
    from importlib.util import find_spec

    for name in ("pyspark", "pyarrow"):
        if find_spec(name) is None:
            raise ConfigError(name, "is not installed: pip install braidmq[spark]")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError("--conf", f"{text!r} must be KEY=VALUE")
    return name, value


Compact = Annotated[
    bool, typer.Option("--compact", help="Merge the small files of each directory.")
]


@app.command("archive")
def archive(
    *,
    out: Out,
    path: DataPath = None,
    endpoint: Endpoint = None,
    api_key: ApiKey = None,
    subscribe: Subscribe = None,
    subscribe_pattern: SubscribePattern = None,
    starting_offsets: StartingOffsets = None,
    max_offsets: MaxOffsets = None,
    checkpoint: Checkpoint = None,
    trigger: TriggerText = "available-now",
    format_: Format = "parquet",
    compact: Compact = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write every message into files by day and topic."""
    source = source_options(
        path=path,
        endpoint=endpoint,
        api_key=api_key,
        subscribe=subscribe,
        subscribe_pattern=subscribe_pattern,
        starting_offsets=starting_offsets,
        max_offsets=max_offsets,
    )
    plan = plan_of(
        source,
        out=out,
        checkpoint=checkpoint,
        trigger=trigger,
        format_=format_,
        master=master,
        conf=conf,
        compact=compact,
    )
    from braidmq.spark.pipelines.archive import archive as run

    with telling() as tell:
        run(plan, tell)


@app.command("typed")
def typed(
    *,
    out: Out,
    pairs: TypedPairs = None,
    schema_id: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEMA", help="Instead, of --subscribe: a built-in one, or a .json file."
        ),
    ] = None,
    private_key: PrivateKey = None,
    trust: Trust = None,
    path: DataPath = None,
    endpoint: Endpoint = None,
    api_key: ApiKey = None,
    subscribe: Subscribe = None,
    subscribe_pattern: SubscribePattern = None,
    starting_offsets: StartingOffsets = None,
    max_offsets: MaxOffsets = None,
    checkpoint: Checkpoint = None,
    trigger: TriggerText = "available-now",
    format_: Format = "parquet",
    compact: Compact = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write messages of a schema as tables of its fields, and misfits into quarantine."""
    chosen = subscribe or subscribe_pattern
    if bool(pairs) == bool(schema_id) or bool(pairs) == bool(chosen):
        problem = "give topics by it, or --schema-id with --subscribe, and not both"
        raise ConfigError("--typed", problem)
    source = source_options(
        path=path,
        endpoint=endpoint,
        api_key=api_key,
        subscribe=subscribe,
        subscribe_pattern=subscribe_pattern,
        starting_offsets=starting_offsets,
        max_offsets=max_offsets,
    )
    plan = plan_of(
        source | unsealing_options(private_key, trust),
        out=out,
        checkpoint=checkpoint,
        trigger=trigger,
        format_=format_,
        master=master,
        conf=conf,
        compact=compact,
    )
    from braidmq.spark.pipelines.typed import Wish, wishes
    from braidmq.spark.pipelines.typed import typed as run

    with telling() as tell:
        run(plan, wishes(pairs) if pairs else [Wish(str(schema_id))], tell)


Since = Annotated[
    str | None, typer.Option("--from", metavar="WHEN", help="2026-11-16T12:00:00Z, or ms.")
]
Until = Annotated[
    str | None, typer.Option("--to", metavar="WHEN", help="As --from; not included.")
]


def place_of(path: Path | None, endpoint: str | None, api_key: str | None) -> dict[str, str]:
    """Return where the broker is, as the sink is told it."""
    key = api_key or os.environ.get("BRAIDMQ_API_KEY")
    said = {"path": path, "endpoint": endpoint, "apiKey": key}
    return {name: str(value) for name, value in said.items() if value is not None}


def range_of(since: str | None, until: str | None) -> dict[str, str]:
    """Return a range of time, as the source is told it.

    Raises:
        ConfigError: One of them is not a moment.
    """
    from braidmq.spark.pipelines.moments import moment_ms

    said = {"startingTimestamp": ("--from", since), "endingTimestamp": ("--to", until)}
    return {
        name: str(moment_ms(option, text))
        for name, (option, text) in said.items()
        if text is not None
    }


ValueField = Annotated[
    str | None, typer.Option(metavar="FIELD", help="The number, if there are several.")
]
Watermark = Annotated[
    str, typer.Option(metavar="TIME", help="How much later a reading may come than others.")
]
Ahead = Annotated[
    str, typer.Option(metavar="TIME", help="How far a clock may be ahead of the broker's.")
]
Close = Annotated[
    bool, typer.Option("--close", help="Close the minutes that are open at the end.")
]
ToTopic = Annotated[
    bool, typer.Option("--topic/--no-topic", help="Publish closed minutes, too.")
]


@app.command("rollup")
def rollup(
    *,
    out: Out,
    schema_id: Annotated[
        str, typer.Option(metavar="SCHEMA", help="Of readings: built-in, or a .json file.")
    ],
    value: ValueField = None,
    watermark: Watermark = "10m",
    ahead: Ahead = "1d",
    close: Close = False,
    topic: ToTopic = True,
    private_key: PrivateKey = None,
    trust: Trust = None,
    path: DataPath = None,
    endpoint: Endpoint = None,
    api_key: ApiKey = None,
    subscribe: Subscribe = None,
    subscribe_pattern: SubscribePattern = None,
    starting_offsets: StartingOffsets = None,
    max_offsets: MaxOffsets = None,
    checkpoint: Checkpoint = None,
    trigger: TriggerText = "available-now",
    format_: Format = "parquet",
    compact: Compact = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Sum readings up by sensor and minute: in a table, and on the topic rollup.SCHEMA."""
    # With a path the key is the sink's alone: who has the files reads them without the broker.
    key = api_key if endpoint is not None else None
    source = source_options(
        path=path,
        endpoint=endpoint,
        api_key=key,
        subscribe=subscribe,
        subscribe_pattern=subscribe_pattern,
        starting_offsets=starting_offsets,
        max_offsets=max_offsets,
    )
    plan = plan_of(
        source | unsealing_options(private_key, trust),
        out=out,
        checkpoint=checkpoint,
        trigger=trigger,
        format_=format_,
        master=master,
        conf=conf,
        compact=compact,
    )
    from braidmq.spark.pipelines.moments import length_ms
    from braidmq.spark.pipelines.rollup import Wish
    from braidmq.spark.pipelines.rollup import rollup as run
    from braidmq.spark.pipelines.rollup_windows import Rules

    rules = Rules(length_ms("--watermark", watermark), length_ms("--ahead", ahead))
    sink = place_of(path, endpoint, api_key) if topic else None
    with telling() as tell:
        run(plan, Wish(schema_id, value, rules, close=close, sink=sink), tell)


@app.command("replay")
def replay(
    *,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Run again under the same name, it goes on.")
    ],
    checkpoint: Annotated[
        Path, typer.Option(metavar="DIR", help="Where it is written how far the replay is.")
    ],
    table: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Rows of Parquet files or Delta; default: the log."),
    ] = None,
    to_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Default: each row's own.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="COUNT", help="Messages a second, at most.")
    ] = None,
    since: Since = None,
    until: Until = None,
    path: DataPath = None,
    endpoint: Endpoint = None,
    api_key: ApiKey = None,
    subscribe: Subscribe = None,
    subscribe_pattern: SubscribePattern = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Publish rows of a table, or of a time in the log, again; dead letters where they died."""
    key = api_key if endpoint is not None else None
    source = source_options(
        path=path,
        endpoint=endpoint,
        api_key=key,
        subscribe=subscribe,
        subscribe_pattern=subscribe_pattern,
    )
    chosen = [option for option in (since, until, subscribe, subscribe_pattern) if option]
    if table is not None and chosen:
        raise ConfigError("--table", f"{chosen[0]!r} chooses in the log, not in a table")
    plan = plan_of(
        source | range_of(since, until),
        out=checkpoint,
        checkpoint=None,
        trigger="available-now",
        format_="parquet",
        master=master,
        conf=conf,
    )
    from braidmq.spark.pipelines.replay import Wish
    from braidmq.spark.pipelines.replay import replay as run

    sink = place_of(path, endpoint, api_key)
    place = None if table is None else table.absolute()
    with telling() as tell:
        run(plan, Wish(name, sink, place, to_topic, rate), tell)


@app.command("report")
def report(
    *,
    out: Out,
    pairs: TypedPairs = None,
    since: Since = None,
    until: Until = None,
    path: DataPath = None,
    endpoint: Endpoint = None,
    api_key: ApiKey = None,
    subscribe: Subscribe = None,
    subscribe_pattern: SubscribePattern = None,
    format_: Format = "parquet",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Say what is in the log: volume, sizes, dead letters, misfits, as tables and a page."""
    source = source_options(
        path=path,
        endpoint=endpoint,
        api_key=api_key,
        subscribe=subscribe,
        subscribe_pattern=subscribe_pattern,
    )
    plan = plan_of(
        source | range_of(since, until),
        out=out,
        checkpoint=None,
        trigger="available-now",
        format_=format_,
        master=master,
        conf=conf,
    )
    from braidmq.spark.pipelines.report import report as run
    from braidmq.spark.pipelines.typed import wishes

    with telling() as tell:
        run(plan, wishes(pairs or ()), tell)
