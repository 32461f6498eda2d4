"""Index rows rebuilt from records, so that the records' own checksums cover them.

If only a few rows of many are wanted, this is faster than verifying the index blocks around
them.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from braidmq.columnar.segments.verifying import Copy, copies
from braidmq.columnar.segments.layout import (
    HEADERS_AT,
    MESSAGE_HEAD,
    ROW,
    TOPIC_LENGTH_BYTES,
    Numbers,
    Rows,
)
from braidmq.wal.format import TYPE_MASK


class RecordRows(NamedTuple):
    """The rows of records, and the copy of the records if they fit into a single one."""

    rows: Rows
    copy: Copy | None


def rows_of_records(
    buffer: pa.Buffer,
    starts: Numbers,
    ends: Numbers,
    *,
    ids: Numbers,
    topics: NDArray[np.unsignedinteger[Any]],
    name_bytes: Numbers,
) -> RecordRows | None:
    """Return the verified rows of the messages at starts..ends of a segment.

    *name_bytes* are the lengths of the topic names by number. None if any of these is not an
    intact message with its id: index and segment disagree.
    """
    rows = np.empty(len(starts), ROW)
    rows["id"] = ids
    rows["topic"] = topics
    only: Copy | None = None
    if np.any(ends - starts < MESSAGE_HEAD.itemsize):
        return None
    for found in copies(buffer, ids, starts, ends):
        if found is None:
            return None
        group, copy = found
        if not _describe(rows[group], copy, starts[group], ends[group], name_bytes):
            return None
        only = copy if group == slice(0, len(starts)) else None
    return RecordRows(rows, only)


def _describe(
    rows: Rows, copy: Copy, starts: Numbers, ends: Numbers, name_bytes: Numbers
) -> bool:
    """Fill in *rows*, whose ids and topics are known; tell whether all are messages."""
    heads = copy.message_heads()
    kinds = heads["kind"] & TYPE_MASK
    headers_at = HEADERS_AT[kinds]
    payloads_at = starts + headers_at + heads["headers_bytes"] + TOPIC_LENGTH_BYTES
    payloads_at += name_bytes[rows["topic"]]
    if not (np.all(headers_at > 0) and np.all(payloads_at <= ends)):
        return False
    for name in ("timestamp_us", "qos", "priority", "origin"):
        rows[name] = heads[name]
    rows["kind"] = kinds
    rows["payload_at"] = payloads_at
    rows["payload_bytes"] = ends - payloads_at
    return True


def rows_of_sizes(ids: Numbers, sizes: NDArray[np.uint32]) -> Rows:
    """Return rows that hold only these ids and payload lengths."""
    rows = np.zeros(len(ids), ROW)
    rows["id"] = ids
    rows["payload_bytes"] = sizes
    return rows
