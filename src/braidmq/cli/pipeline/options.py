"""Options of the pipelines, in groups, and their translation for source, sink and Spark."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from braidmq.base.errors import ConfigError

if TYPE_CHECKING:  # pyspark takes a second, and --help does not need it
    from braidmq.spark.pipelines.runs.runs import Plan


@dataclass(frozen=True, kw_only=True)
class FromLog:
    """Where the log is, and which of its topics to read."""

    path: Annotated[
        Path | None,
        Option(metavar="DIR", help="Broker's data directory, on this machine."),
    ] = None
    endpoint: Annotated[
        str | None,
        Option(metavar="URL", help="Instead of --path: Flight address, grpc://HOST:8815."),
    ] = None
    api_key: Annotated[
        str | None,
        Option(metavar="KEY", help="API key for --endpoint; also BRAIDMQ_API_KEY."),
    ] = None
    subscribe: Annotated[
        str | None,
        Option(metavar="TOPICS", help="Topics to read, comma-separated; default: all."),
    ] = None
    subscribe_pattern: Annotated[
        str | None,
        Option(
            metavar="REGEX", help="Instead of --subscribe: topics whose whole name matches."
        ),
    ] = None
    fail_on_data_loss: Annotated[
        bool,
        Option(
            "--fail-on-data-loss/--no-fail-on-data-loss",
            help="Fail if retention removed unread messages; otherwise skip them.",
        ),
    ] = True

    def source(self, group: str | None = None, *, beside_sink: bool = False) -> dict[str, str]:
        """Return the options of the source; committing for a *group* needs the API key, too.

        Reading files needs no key, so *beside_sink* a key that was given is the sink's alone.

        Raises:
            ConfigError: Neither or both of --path and --endpoint.
        """
        if (self.path is None) == (self.endpoint is None):
            raise ConfigError("--path", "give either --path or --endpoint")
        needs_key = self.endpoint is not None or group is not None
        api_key = None if beside_sink and not needs_key else self.api_key
        if api_key is None and needs_key:
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

    def sink(self) -> dict[str, str]:
        """Return the options of the sink."""
        key = self.api_key or os.environ.get("BRAIDMQ_API_KEY")
        return _said(path=self.path, endpoint=self.endpoint, apiKey=key)


@dataclass(frozen=True, kw_only=True)
class Times:
    """A range of time."""

    since: Annotated[
        str | None,
        Option("--from", metavar="WHEN", help="Start time: ISO 8601, or milliseconds."),
    ] = None
    until: Annotated[
        str | None, Option("--to", metavar="WHEN", help="End time, exclusive; as --from.")
    ] = None

    def source(self) -> dict[str, str]:
        """Return the range as options of the source.

        Raises:
            ConfigError: One of them is not a time.
        """
        from braidmq.spark.pipelines.times import moment_ms

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
    """How encrypted payloads are decrypted."""

    private_key: Annotated[
        Path | None,
        Option(metavar="FILE", help="Decrypt payloads with this private key (Qumbed)."),
    ] = None
    trust: Annotated[
        list[str] | None,
        Option(metavar="HEX", help="Accept only payloads from this public key; repeatable."),
    ] = None

    def source(self) -> dict[str, str]:
        """Return the options of the source for encrypted payloads."""
        key = None if self.private_key is None else self.private_key.absolute()
        return _said(privateKeyFile=key, trustedKeys=",".join(self.trust or ()) or None)


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Where tables are written, and in which format."""

    out: Annotated[Path, Option(metavar="DIR", help="Directory for the tables.")]
    format_: Annotated[
        str, Option("--format", metavar="FORMAT", help="Table format: parquet or delta.")
    ] = "parquet"


@dataclass(frozen=True, kw_only=True)
class Running:
    """When a pipeline reads, where it keeps its checkpoint, and where Spark runs."""

    checkpoint: Annotated[
        Path | None,
        Option(metavar="DIR", help="Checkpoint directory; default: inside --out."),
    ] = None
    trigger: Annotated[
        str,
        Option(
            metavar="WHEN", help="available-now, or an interval such as 10s (not for replay)."
        ),
    ] = "available-now"
    master: Annotated[
        str | None, Option(metavar="URL", help="Spark master; default: this machine.")
    ] = None
    conf: Annotated[
        list[str] | None,
        Option(metavar="KEY=VALUE", help="Spark setting; may be repeated."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Streaming:
    """How a query reads the log, batch by batch."""

    starting_offsets: Annotated[
        str | None,
        Option(metavar="WHERE", help='Start: earliest, a number, or {"topic": {"0": number}}.'),
    ] = None
    max_offsets: Annotated[
        int | None,
        Option(
            "--max-offsets-per-trigger",
            min=1,
            metavar="COUNT",
            help="Maximum number of messages in a micro-batch.",
        ),
    ] = None
    compact: Annotated[
        bool, Option("--compact", help="Merge small files into larger ones.")
    ] = False

    def source(self) -> dict[str, str]:
        """Return the options of the source for batches."""
        return _said(
            startingOffsets=self.starting_offsets, maxOffsetsPerTrigger=self.max_offsets
        )


def plan_of(
    source: dict[str, str], tables: Tables, running: Running, streaming: Streaming | None = None
) -> "Plan":
    """Return the plan of a pipeline; without *streaming* it reads a range once.

    Raises:
        ConfigError: A value is invalid.
        MissingExtraError: Spark is not installed.
    """
    from braidmq.cli.checkout import require_spark

    require_spark("a pipeline")
    from braidmq.spark.pipelines.runs.runs import Plan
    from braidmq.spark.pipelines.tables.tables import check_format
    from braidmq.spark.pipelines.times import parse_trigger
    from braidmq.spark.sessions import MASTER

    check_format(tables.format_)
    checkpoint = running.checkpoint
    streaming = streaming or Streaming()
    return Plan(
        source=source | streaming.source(),
        out=tables.out.absolute(),
        checkpoint=None if checkpoint is None else checkpoint.absolute(),
        trigger=parse_trigger(running.trigger),
        format=tables.format_,
        master=running.master or MASTER,
        config=dict(map(_setting, running.conf or ())),
        compact=streaming.compact,
    )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError("--conf", f"{text!r} must be KEY=VALUE")
    return name, value


def _said(**options: object) -> dict[str, str]:
    return {name: str(value) for name, value in options.items() if value is not None}
