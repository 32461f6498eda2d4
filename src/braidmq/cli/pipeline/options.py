"""The options of pipelines, in groups, and what each tells the source, the sink or Spark."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.base.errors import ConfigError

if TYPE_CHECKING:  # pyspark takes a second, and --help does not need it
    from braidmq.spark.pipelines.runs.runs import Plan


@dataclass(frozen=True, kw_only=True)
class FromLog:
    """Where the log is, and which topics of it are wanted."""

    path: Annotated[
        Path | None, typer.Option("--path", metavar="DIR", help="The broker's data directory.")
    ] = None
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Instead: grpc://HOST:8815 of the broker.")
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="For --endpoint; also BRAIDMQ_API_KEY, out of sight."),
    ] = None
    subscribe: Annotated[
        str | None, typer.Option(metavar="TOPICS", help="With commas between; default: all.")
    ] = None
    subscribe_pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Instead: of whole names of topics.")
    ] = None
    fail_on_data_loss: Annotated[
        bool,
        typer.Option(
            "--fail-on-data-loss/--no-fail-on-data-loss",
            help="Whether to end where retention took what is unread, or to read on behind it.",
        ),
    ] = True

    def source(self, group: str | None = None) -> dict[str, str]:
        """Return what the source is told; the cursor of a *group* takes a key, too.

        Raises:
            ConfigError: Neither or both of --path and --endpoint.
        """
        if (self.path is None) == (self.endpoint is None):
            raise ConfigError("--path", "give it or --endpoint, and not both")
        api_key = self.api_key
        if api_key is None and (self.endpoint is not None or group is not None):
            api_key = os.environ.get("BRAIDMQ_API_KEY")
        return _said(
            path=self.path,
            endpoint=self.endpoint,
            apiKey=api_key,
            subscribe=self.subscribe,
            subscribePattern=self.subscribe_pattern,
            groupId=group,
            failOnDataLoss=None if self.fail_on_data_loss else "false",
        )

    def source_beside_sink(self, group: str | None = None) -> dict[str, str]:
        """Return what the source is told when a sink is told the key.

        With a path the key is the sink's alone, unless for the cursor of a *group*: who has the
        files needs no broker to read them.

        Raises:
            ConfigError: Neither or both of --path and --endpoint.
        """
        needs_key = self.endpoint is not None or group is not None
        return (self if needs_key else replace(self, api_key=None)).source(group)

    def sink(self) -> dict[str, str]:
        """Return where the broker is, as the sink is told it."""
        key = self.api_key or os.environ.get("BRAIDMQ_API_KEY")
        return _said(path=self.path, endpoint=self.endpoint, apiKey=key)


@dataclass(frozen=True, kw_only=True)
class Times:
    """A range of time."""

    since: Annotated[
        str | None, typer.Option("--from", metavar="WHEN", help="2026-11-16T12:00:00Z, or ms.")
    ] = None
    until: Annotated[
        str | None, typer.Option("--to", metavar="WHEN", help="As --from; not included.")
    ] = None

    def source(self) -> dict[str, str]:
        """Return the range as the source is told it.

        Raises:
            ConfigError: One of them is not a moment.
        """
        from braidmq.spark.pipelines.moments import moment_ms

        said = {
            "startingTimestamp": ("--from", self.since),
            "endingTimestamp": ("--to", self.until),
        }
        return {
            name: str(moment_ms(option, text))
            for name, (option, text) in said.items()
            if text is not None
        }


@dataclass(frozen=True, kw_only=True)
class Unsealing:
    """How sealed payloads are opened."""

    private_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Unseal payloads first (Qumbed).")
    ] = None
    trust: Annotated[
        list[str] | None,
        typer.Option(metavar="HEX", help="Of this public key only; may be repeated (Qumbed)."),
    ] = None

    def source(self) -> dict[str, str]:
        """Return what the source is told about sealed payloads."""
        key = None if self.private_key is None else self.private_key.absolute()
        return _said(privateKeyFile=key, trustedKeys=",".join(self.trust or ()) or None)


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Where tables are written, and as what."""

    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the tables are.")]
    format_: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="parquet or delta.")
    ] = "parquet"


@dataclass(frozen=True, kw_only=True)
class Course:
    """When a pipeline reads, and where it notes how far it is."""

    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where its place is, if it keeps one; default: in --out."
        ),
    ] = None
    trigger: Annotated[
        str,
        typer.Option(
            metavar="WHEN", help="available-now, or, but for a replay, every so often: 10s."
        ),
    ] = "available-now"


@dataclass(frozen=True, kw_only=True)
class Streaming:
    """How a query goes through the log, batch by batch."""

    starting_offsets: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help='earliest, a number, or {"topic": {"0": number}}.'),
    ] = None
    max_offsets: Annotated[
        int | None,
        typer.Option(
            "--max-offsets-per-trigger",
            min=1,
            metavar="COUNT",
            help="Messages of a micro-batch.",
        ),
    ] = None
    compact: Annotated[
        bool, typer.Option("--compact", help="Merge the small files of each directory.")
    ] = False

    def source(self) -> dict[str, str]:
        """Return what the source is told about batches."""
        return _said(
            startingOffsets=self.starting_offsets, maxOffsetsPerTrigger=self.max_offsets
        )


@dataclass(frozen=True, kw_only=True)
class OnSpark:
    """Where Spark runs, and how."""

    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's master; default: this machine.")
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Configuration of Spark; may be repeated."),
    ] = None


ONCE = Streaming()
"""As a pipeline goes that reads a range and ends."""


def plan_of(
    source: dict[str, str],
    *,
    tables: Tables,
    course: Course,
    spark: OnSpark,
    streaming: Streaming = ONCE,
) -> "Plan":
    """Return what a pipeline is told.

    Raises:
        ConfigError: A value cannot be used, or Spark is not installed.
    """
    need_spark()
    from braidmq.spark.pipelines.runs.runs import Plan
    from braidmq.spark.pipelines.runs.triggers import parse_trigger
    from braidmq.spark.pipelines.tables.tables import check_format
    from braidmq.spark.sessions import MASTER

    check_format(tables.format_)
    checkpoint = course.checkpoint
    return Plan(
        source=source | streaming.source(),
        out=tables.out.absolute(),
        checkpoint=None if checkpoint is None else checkpoint.absolute(),
        trigger=parse_trigger(course.trigger),
        format=tables.format_,
        master=spark.master or MASTER,
        config=dict(map(_setting, spark.conf or ())),
        compact=streaming.compact,
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


def _said(**options: object) -> dict[str, str]:
    return {name: str(value) for name, value in options.items() if value is not None}
