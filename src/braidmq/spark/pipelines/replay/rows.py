"""Turn rows that were messages into messages again: a plain function from frame to frame.

    row of                     goes to
    any topic                  its own topic
    a topic of dead letters    the topic or queue that dead-lettered it
    either, with a target      the target

The headers about its dead-lettering are dropped: the sink does not accept headers that only the
broker may set.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users give it

from braidmq.broker.dead_letters import PREFIX, QUEUE_HEADER

COLUMNS: Final[Sequence[str]] = ("value", "topic", "key", "headers", "priority")
"""The columns that are used; all but the first may be missing."""


def header(name: str) -> Column:
    """Return the value of a row's header as text; null if it has none of that name."""
    named = F.filter("headers", lambda one: one["key"] == name)
    return F.try_element_at(named, F.lit(1))["value"].cast("string")


def outgoing(rows: DataFrame, to_topic: str | None = None) -> DataFrame:
    """Return rows as the sink takes them; rows without a topic need *to_topic*."""
    names = [name for name in COLUMNS if name in rows.columns]
    target = _target(names, to_topic).alias("topic")
    return rows.select(target, *(name for name in names if name != "topic"))


def _target(names: Sequence[str], to_topic: str | None) -> Column:
    if to_topic is not None:
        return F.lit(to_topic)
    own = F.col("topic")
    if "headers" not in names:
        return own
    died_in = F.when(own.startswith(PREFIX), header(QUEUE_HEADER))
    return F.coalesce(died_in, own)
