"""Tables in the format of Delta Lake, through the library `deltalake`: no Spark package.

A batch is one commit that carries (query id, batch id) as an application transaction. The
library does not refuse a transaction that the table already has, so callers check first.
Readers do not see files that no commit names; a repeat of the batch overwrites them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from braidmq.spark.pipelines.tables.batches import file_name
from braidmq.spark.pipelines.tables.layouts import Key
from braidmq.spark.pipelines.tables.staging import StagedFile
from braidmq.wal.disk import Disk

LOG: Final = "_delta_log"


def has_batch(root: Path, query_id: str, batch_id: int) -> bool:
    """Tell whether a batch of a query, or a later one, is in the table at *root*."""
    if not (root / LOG).exists():
        return False
    version = DeltaTable(root).transaction_version(query_id)
    return version is not None and version >= batch_id


def append(
    root: Path,
    stage: Path,
    files: Sequence[StagedFile],
    *,
    keys: Mapping[str, pa.DataType],
    query_id: str,
    batch_id: int,
    name: str = "",
) -> None:
    """Move staged files into the table at *root*, and commit them with their transaction.

    *keys* are the columns that only directory names hold, with their types.
    """
    if not files:
        return
    schema = pq.read_schema(stage / files[0].staged).remove_metadata()
    for column, kind in keys.items():
        schema = schema.append(pa.field(column, kind))
    delta_schema = Schema.from_arrow(schema)
    actions = _placed(root, stage, files, batch_id, name)
    transaction = CommitProperties(app_transactions=[Transaction(query_id, batch_id)])
    if (root / LOG).exists():
        DeltaTable(root).create_write_transaction(
            [*actions], "append", delta_schema, list(keys), commit_properties=transaction
        )
    else:
        create_table_with_add_actions(
            str(root),
            delta_schema,
            actions,
            partition_by=list(keys),
            commit_properties=transaction,
        )


def _placed(
    root: Path, stage: Path, files: Sequence[StagedFile], batch_id: int, name: str
) -> list[AddAction]:
    disk = Disk(root)
    actions = []
    for number, file in enumerate(files):
        directory = "/".join(f"{key}={value}" for key, value in file.values.items())
        path = f"{directory}/{file_name(batch_id, name, number)}".lstrip("/")
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (stage / file.staged).replace(target)
        disk.sync_dir(directory)  # before the commit names the file
        changed_ms = int(target.stat().st_mtime * 1000)
        stats = msgspec.json.encode({"numRecords": file.rows}).decode()
        actions.append(AddAction(path, file.bytes, file.values, changed_ms, True, stats))  # noqa: FBT003 - "data change"
    return actions


def key_types(keys: Sequence[Key], schema: StructType) -> dict[str, pa.DataType]:
    """Return the types of the columns that only directory names hold."""
    dropped = [key.column for key in keys if not key.kept]
    return {name: to_arrow_type(schema[name].dataType, timezone="UTC") for name in dropped}


def compact(root: Path) -> None:
    """Merge small files by a commit of the library's own."""
    if (root / LOG).exists():
        DeltaTable(root).optimize.compact()
