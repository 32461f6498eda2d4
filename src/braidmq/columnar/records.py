"""Index rows made of records: what they say is then as good as the records' own checksums.

For few rows of many that is quicker than to verify the blocks of the index that have them.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from braidmq.columnar.checksums import bodies_add_up
from braidmq.columnar.layout import (
    HEADERS_AT,
    MESSAGE_HEAD,
    ROW,
    TOPIC_LENGTH_BYTES,
    Numbers,
    Rows,
    gather_structs,
)
from braidmq.wal.format import RECORD_HEADER_BYTES, TYPE_MASK


def rows_of_records(
    buffer: pa.Buffer, starts: Numbers, *, ids: Numbers, topics: Numbers, name_bytes: Numbers
) -> Rows | None:
    """Return the rows of the messages that begin at *starts* of a segment, verified.

    *name_bytes* are the lengths of the topics' names by their numbers. None is returned when
    there are no intact messages with these ids there.
    """
    if np.any(starts > buffer.size - MESSAGE_HEAD.itemsize):
        return None
    heads = gather_structs(buffer, starts, MESSAGE_HEAD)
    ends = starts + RECORD_HEADER_BYTES + heads["length"]
    kinds = heads["kind"] & TYPE_MASK
    names_at = starts + HEADERS_AT[kinds] + heads["headers_bytes"] + TOPIC_LENGTH_BYTES
    payloads_at = names_at + name_bytes[topics]
    if not (
        np.array_equal(heads["id"], ids)
        and np.all(HEADERS_AT[kinds] > 0)
        and np.all(payloads_at <= ends)
        and np.all(ends <= buffer.size)
        and bodies_add_up(buffer, starts, ends, heads["crc"].copy())
    ):
        return None
    rows = np.empty(len(starts), ROW)
    for name in ("id", "timestamp_us", "qos", "priority", "origin"):
        rows[name] = heads[name]
    rows["kind"] = kinds
    rows["topic"] = topics
    rows["payload_at"] = payloads_at
    rows["payload_bytes"] = ends - payloads_at
    return rows


def rows_of_sizes(ids: Numbers, sizes: NDArray[np.uint32]) -> Rows:
    """Return rows that say nothing but these ids and lengths of payloads."""
    rows = np.zeros(len(ids), ROW)
    rows["id"] = ids
    rows["payload_bytes"] = sizes
    return rows
