"""Scan a range of offsets: cut it into parts on the driver, read the parts on executors.

A scan is a value that is pickled into every task. The same part of it gives the same rows
wherever and whenever it is read.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from braidmq.base.errors import ConfigError
from braidmq.columnar import Decoding, Part, TypedSchema, Unsealing
from braidmq.columnar.cuts import PARTS_MAX, SIZES
from braidmq.columnar.decoding.columns import TYPES
from braidmq.columnar.decoding.decode import ERROR_COLUMN
from braidmq.columnar.flight.failures import TooManyTopicsError, UnavailableError
from braidmq.columnar.logs import Log
from braidmq.columnar.loss import DataLossError
from braidmq.spark.brokers import log_of, patiently
from braidmq.spark.options import ReadOptions
from braidmq.spark.reading.offsets import NO_LIMITS, Limits, lost_offsets
from braidmq.spark.runtime.workers import leave, settle
from braidmq.spark.values import KEY_FILE_FIX, SCHEMA_FIX, OptionError, refused_as

Answer = TypeVar("Answer")

NO_LIMIT: Final = 2**63 - 1
BATCH_ROWS: Final = 16_384
"""Small enough to fit a core's cache, and for the JVM to decode one while we make the next."""


def typed_schema(options: ReadOptions) -> TypedSchema | None:
    """Return the schema that payloads are decoded with: a built-in one, or that of a file.

    Raises:
        OptionError: There is no schema of that id, or it cannot be expressed as columns.
    """
    given = options.schema_id
    if given is None:
        return None
    with refused_as("schemaId", given, SCHEMA_FIX):
        is_file = given.endswith(".json")
        found = TypedSchema.from_file(given) if is_file else TypedSchema.built_in(given)
        Decoding(found)  # checks the names of its fields
    return found


def full_schema(options: ReadOptions) -> pa.Schema:
    """Return every column of a read, in order.

    Raises:
        OptionError: The schema of the payloads cannot be used.
    """
    names = [name for name in TYPES if options.headers or name != "headers"]
    own = pa.schema([(name, TYPES[name]) for name in names])
    typed = typed_schema(options)
    if typed is not None:
        return Decoding(typed).schema_behind(own)
    if options.key_file is not None:
        return pa.schema([*own, pa.field(ERROR_COLUMN, pa.string())])
    return own


@dataclass
class Scan:
    """A read of the columns *names*, of the topics of the options or fewer.

    With *pattern_only_helps*, the pattern only makes the read smaller: rows of other topics may
    come too, and Spark filters them. Every method that reads the log raises LostOffsetsError if
    offsets are lost and failOnDataLoss is set, and DamagedLogError if the log is damaged.
    """

    options: ReadOptions
    names: list[str]
    topics: frozenset[str] | None = None
    pattern: str | None = None
    pattern_only_helps: bool = False
    schema: TypedSchema | None = field(init=False)

    @classmethod
    def of(cls, options: ReadOptions, names: list[str]) -> Self:
        """Return the scan of every topic that *options* select."""
        topics = None if options.topics is None else frozenset(options.topics)
        return cls(options, names, topics, options.pattern)

    def __post_init__(self) -> None:
        """Load what payloads are decoded with.

        Runs on the driver. The schema is shipped to every task, because its file may change, or
        not exist on the executors. A private key is never shipped; tasks read its file.

        Raises:
            OptionError: The schema or the key cannot be used.
        """
        decoded = any(name not in TYPES for name in self.names)
        self.schema = typed_schema(self.options) if decoded else None
        key_file = self.options.key_file
        # Executors on other machines may have a key file that the driver does not have. Where
        # the driver can read it, a bad key is reported now and not by every task.
        if key_file is not None and (
            self.options.path is not None or os.access(key_file, os.R_OK)
        ):
            self._unsealing()

    @cached_property
    def log(self) -> Log:
        """The log, opened once per process and never pickled."""
        return log_of(self.options)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "log"}

    def cut(self, start: int, end: int) -> list[Part]:
        """Cut a range into parts of the size that the options ask for; on the driver.

        Parts without a wanted message are left out.
        """
        parts = self._cut(start, end, self.options.partition_bytes, None)
        least = self.options.partitions_min
        if least is not None and 0 < len(parts) < least:
            parts = self._cut(start, end, None, least)
        return parts

    def _cut(
        self, start: int, end: int, target_bytes: int | None, count: int | None
    ) -> list[Part]:
        cut = partial(self.log.cut, start, end, target_bytes=target_bytes, parts=count)
        try:
            found = self._asked(cut)
        except ConfigError as error:
            if error.key != SIZES:
                raise
            raise _too_many_parts(target_bytes, count) from None
        return [part for part in found if part.messages]

    def has_messages(self, start: int, end: int) -> bool:
        """Tell whether a range has any message, wanted or not; on the driver."""
        try:
            whole = self.log.cut(
                start, end, parts=1, fail_on_data_loss=self.options.fail_on_data_loss
            )
        except DataLossError as error:
            raise lost_offsets(error) from None
        return any(part.messages for part in whole)

    def advance(self, start: int, *, messages: int = NO_LIMIT, size: int = NO_LIMIT) -> int:
        """Return the offset after that many wanted messages or payload bytes; on the driver."""
        return self._asked(
            partial(self.log.advance, start, messages=messages, payload_bytes=size)
        )

    def read(
        self, start: int, end: int, limits: Limits = NO_LIMITS
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, in order, except those that *limits* exclude; on executors.

        Raises:
            ConfigError: The key or the schema cannot be used.
            EndpointError: The endpoint refuses the read, or cannot be reached.
        """
        settle()
        try:
            yield from self._read(start, end, limits)
        except GeneratorExit as given_up:
            leave(given_up)
            raise
        except DataLossError as error:
            raise lost_offsets(error) from None
        except UnavailableError:
            # Spark retries the task at once and gives up after a few attempts, which a restart
            # of the broker would outlast; so wait here until the broker is back.
            with suppress(UnavailableError):
                patiently(self.log.offsets)
            raise

    def _read(self, start: int, end: int, limits: Limits) -> Iterator[pa.RecordBatch]:
        limited = limits.within(start, end) != NO_LIMITS
        own = [name for name in self.names if name in TYPES]
        if limited:
            needed = (
                ("topic", "offset", "timestamp") if limits.are_timed else ("topic", "offset")
            )
            own += [name for name in needed if name not in own]
        batches = partial(
            self.log.batches,
            start=start,
            end=end,
            columns=own,
            decoding=self._decoding(),
            batch_rows=BATCH_ROWS,
        )
        found = self._asked(batches)
        exact = found.schema.names == self.names
        for batch in found:
            wanted = batch.filter(_within(batch, limits)) if limited else batch
            yield wanted if exact else _chosen(wanted, self.names)

    def _asked(self, query: Callable[..., Answer]) -> Answer:
        """Ask for the wanted topics; for all, if they are too many and Spark filters anyway."""
        ask = partial(
            query, topics=self.topics, fail_on_data_loss=self.options.fail_on_data_loss
        )
        try:
            try:
                return ask(pattern=self.pattern)
            except TooManyTopicsError:
                if not self.pattern_only_helps:
                    raise self._too_many_topics() from None
                return ask(pattern=None)
        except DataLossError as error:
            raise lost_offsets(error) from None

    def _too_many_topics(self) -> OptionError:
        option, value = "subscribePattern", self.pattern
        if value is None:
            option, value = "subscribe", ",".join(sorted(self.topics or ()))
        problem = "wants more topics than fit into a request to the endpoint"
        fix = "choose fewer, or read all topics and filter the rows"
        return OptionError(option, value, problem, fix)

    def _decoding(self) -> Decoding | None:
        unsealing = self._unsealing()
        if self.schema is None and unsealing is None:
            return None
        return Decoding(self.schema, unsealing)

    def _unsealing(self) -> Unsealing | None:
        """Return what decrypts payloads, or None if no payload is wanted."""
        given = self.options.key_file
        if given is None or all(name in TYPES and name != "value" for name in self.names):
            return None
        with refused_as("privateKeyFile", str(given), KEY_FILE_FIX):
            return Unsealing.from_file(given, trusted=self.options.trusted)


def _too_many_parts(target_bytes: int | None, count: int | None) -> OptionError:
    problem = f"would be more than {PARTS_MAX} parts"
    if target_bytes is None:
        return OptionError("minPartitions", str(count), problem, "give a smaller number")
    return OptionError("targetPartitionBytes", str(target_bytes), problem, "give more bytes")


def _within(batch: pa.RecordBatch, limits: Limits) -> pa.Array:
    topics, offsets = batch.column("topic"), batch.column("offset")
    outside = pa.array(np.zeros(len(batch), np.bool_))
    for topic, floor in limits.floors.items():
        below = pc.and_(pc.equal(topics, topic), pc.less(offsets, floor))
        outside = pc.or_(outside, below)
    for topic, ceiling in limits.ceilings.items():
        above = pc.and_(pc.equal(topics, topic), pc.greater_equal(offsets, ceiling))
        outside = pc.or_(outside, above)
    inside = pc.invert(outside)
    if limits.since_us is not None:
        inside = pc.and_(inside, pc.greater_equal(_times_us(batch), limits.since_us))
    if limits.before_us is not None:
        inside = pc.and_(inside, pc.less(_times_us(batch), limits.before_us))
    return inside


def _times_us(batch: pa.RecordBatch) -> pa.Array:
    times = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC"))
    return times.cast(pa.int64())


def _chosen(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    if names:
        return batch.select(names)
    # Selecting no columns would lose the number of rows, which count() needs.
    nothing = pa.StructArray.from_buffers(pa.struct([]), len(batch), [None])
    return pa.RecordBatch.from_struct_array(nothing)
