"""Split the rows of an Arrow table by the directory that they belong to. Touches no disk.

    <branch>/<key>=<value>/<key>=<value>/

A branch is a table of its own below the root, with columns of its own; one column of the rows
names the branch. Without branches there is one table, at the root.

A value that cannot be a directory name is escaped and bounded, and stays distinct:

    sensors/temp   ->   sensors%2Ftemp~9f2c41d07a35be18     readable, then a hash of the whole

Readers that take `key=value` for a column undo the escapes, so a long value is never cut in the
middle of an escaped character.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

NULL_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
"""How Hive-style readers spell null in a directory name."""

READABLE_CHARS_MAX: Final = 120
HASH_CHARS: Final = 16
NAME_CHARS_MAX: Final = READABLE_CHARS_MAX + 1 + HASH_CHARS
FILE_NAME_BYTES_MAX: Final = 255
"""The limit of common file systems; ours leave room for `topic_dir=` or `batch-…`."""

assert NAME_CHARS_MAX <= FILE_NAME_BYTES_MAX - 64

MARK: Final = "~"
"""Separates name and hash. Names escape it, so no plain name equals a hashed one."""

RESERVED: Final = frozenset({"quarantine"})
"""Names of directories beside the tables of schemas."""

_ESCAPED_MARK: Final = "%7E"
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Key:
    """A level of directories, `label=value`: one for each value of a column.

    Readers take the column from the directory name, so it is not in the files. Texts that
    cannot be directory names are hashed; then the column is *kept* in the files, and the
    directory needs a *label* of its own: a reader that finds one name in both places fails, or
    uses the hash.
    """

    column: str
    label: str = ""
    kept: bool = False

    def __post_init__(self) -> None:
        assert self.kept == (self.label not in {"", self.column})

    @property
    def name(self) -> str:
        """The part before the `=`."""
        return self.label or self.column

    def spelled(self, value: Any) -> str | None:  # noqa: ANN401 - whatever a column holds
        """Return a value as the part after the `=`."""
        if value is None:
            return None
        if isinstance(value, date):
            return value.isoformat()
        if isinstance(value, int):
            return str(value)
        assert self.kept, "the value cannot be recovered from its hash"
        return hashed_name(str(value))


class TablePartition(NamedTuple):
    """Rows of one directory; `values` are the columns that only the directory name holds."""

    branch: str
    directory: str
    values: dict[str, str | None]
    rows: pa.Table


@dataclass(frozen=True)
class Layout:
    """The keys of a table, and its branches.

    For each branch: its directory, and its columns with their names in the rows.
    """

    keys: tuple[Key, ...] = ()
    branch_column: str = ""
    branches: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return it as JSON, to be passed as an option."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "Layout":
        """Return the layout that `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)

    @property
    def dropped(self) -> list[str]:
        """The columns that only directory names hold."""
        return [key.column for key in self.keys if not key.kept]

    def partitions(self, table: pa.Table) -> Iterator[TablePartition]:
        """Yield the rows of each directory, in their original order."""
        if not len(table):
            return
        columns = [self.branch_column] if self.branch_column else []
        columns += [key.column for key in self.keys]
        groups = _groups(table.select(columns))
        sizes = np.bincount(groups).tolist()
        if len(sizes) == 1:
            yield self._partition(table)
            return
        order = np.argsort(groups, kind="stable")
        ordered = table.combine_chunks().take(pa.array(order))
        start = 0
        for size in sizes:
            yield self._partition(ordered.slice(start, size))
            start += size

    def _partition(self, rows: pa.Table) -> TablePartition:
        """Return *rows*, which all belong to one directory."""
        branch = ""
        names = []
        if self.branch_column:
            branch = str(rows.column(self.branch_column)[0].as_py())
            names.append(branch)
        values: dict[str, str | None] = {}
        for key in self.keys:
            spelled = key.spelled(rows.column(key.column)[0].as_py())
            names.append(f"{key.name}={NULL_NAME if spelled is None else spelled}")
            if not key.kept:
                values[key.name] = spelled
        return TablePartition(branch, "/".join(names), values, self._chosen(branch, rows))

    def _chosen(self, branch: str, rows: pa.Table) -> pa.Table:
        if not self.branch_column:
            return rows.drop_columns(self.dropped)
        chosen = self.branches[branch]
        return rows.select(list(chosen.values())).rename_columns(list(chosen))


def _groups(keys: pa.Table) -> NDArray[np.int64]:
    """Return a group number for each row: equal rows share one, and there are no gaps."""
    found = np.zeros(len(keys), np.int64)
    for column in keys.columns:
        codes = column.combine_chunks().dictionary_encode().indices
        own = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        if own.min() == own.max():
            continue
        # Renumbered at each level, so the products stay small however many levels there are.
        _, found = np.unique(found * (int(own.max()) + 1) + own, return_inverse=True)
    return found


def hashed_name(text: str) -> str:
    """Return a directory name for *text* that no other text has."""
    data = text.encode("utf-8", "surrogatepass")
    return f"{_readable(text)}{MARK}{sha256(data).hexdigest()[:HASH_CHARS]}"


def plain_name(text: str) -> str:
    """Return *text* itself if it can be a directory name, else a hashed one."""
    fits = len(text) <= READABLE_CHARS_MAX and text not in RESERVED
    return text if fits and _PLAIN.fullmatch(text) else hashed_name(text)


def _readable(text: str) -> str:
    found = ""
    for character in text[:READABLE_CHARS_MAX]:
        escaped = quote(character, safe="", errors="replace").replace(MARK, _ESCAPED_MARK)
        if len(found) + len(escaped) > READABLE_CHARS_MAX:
            break
        found += escaped
    return found
