"""Pack messages for the way from Spark to a Python task, and unpack them there.

Every column costs time for every row that Spark hands to Python, and a list costs most: Spark
asks for its size repeatedly, in time that grows with the rows before it. So headers travel as
text, and columns that are the same for every message do not travel at all.
"""

from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from braidmq.columnar.decoding.columns import LOG_APPEND_TIME, TYPES
from braidmq.columnar.decoding.headers import HEADERS_TYPE

HEADERS: Final = "headers"
PACKED: Final = "_headers"
"""The column that holds headers as JSON; its presence marks a packed table."""

SAME: Final = {"partition": 0, "timestampType": LOG_APPEND_TIME}
"""Columns with the same value in every message."""


class Header(msgspec.Struct):
    """One header; JSON has its value in base64."""

    key: str
    value: bytes


_decode: Final = msgspec.json.Decoder(list[Header]).decode


def packed(messages: DataFrame) -> DataFrame:
    """Return *messages* without what `unpacked` can restore."""
    text = F.to_json(HEADERS).alias(PACKED)
    names = [name for name in messages.columns if name not in SAME]
    return messages.select([text if name == HEADERS else name for name in names])


def unpacked(rows: pa.Table) -> pa.Table:
    """Return the columns of packed messages as the source has them; other tables unchanged."""
    if PACKED not in rows.column_names:
        return rows
    columns = {name: rows.column(name) for name in rows.column_names if name != PACKED}
    columns[HEADERS] = _lists(rows.column(PACKED))
    for name, value in SAME.items():
        columns[name] = pa.array(np.full(len(rows), value, np.int32))
    known = [name for name in TYPES if name in columns]
    others = [name for name in columns if name not in TYPES]
    return pa.table({name: columns[name] for name in [*known, *others]})


def _lists(texts: pa.ChunkedArray) -> pa.Array:
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), HEADERS_TYPE)
    return pa.array(map(_list, texts.to_pylist()), HEADERS_TYPE)


def _list(text: str | None) -> list[dict[str, str | bytes]] | None:
    if text is None:
        return None
    return [{"key": header.key, "value": header.value} for header in _decode(text)]
