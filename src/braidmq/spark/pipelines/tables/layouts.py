"""Split the rows of an Arrow table by the directory that they belong to. Touches no disk.

    <branch>/<key>=<value>/<key>=<value>/

A branch is a table of its own below the root, with columns of its own; one column of the rows
names the branch. Without branches there is one table, at the root.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from braidmq.spark.pipelines.tables.names import hashed_name

NULL_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
"""How Hive-style readers spell null in a directory name."""


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


class Piece(NamedTuple):
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
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Layout":
        """Return the layout that `to_json` wrote."""
        content = json.loads(text)
        keys = tuple(Key(**key) for key in content["keys"])
        return cls(keys, content["branch_column"], content["branches"])

    @property
    def dropped(self) -> list[str]:
        """The columns that only directory names hold."""
        return [key.column for key in self.keys if not key.kept]

    def pieces(self, table: pa.Table) -> Iterator[Piece]:
        """Yield the rows of each directory, in their original order."""
        if not len(table):
            return
        columns = [self.branch_column] if self.branch_column else []
        columns += [key.column for key in self.keys]
        groups = _groups(table.select(columns))
        sizes = np.bincount(groups).tolist()
        if len(sizes) == 1:
            yield self._piece(table)
            return
        order = np.argsort(groups, kind="stable")
        ordered = table.combine_chunks().take(pa.array(order))
        start = 0
        for size in sizes:
            yield self._piece(ordered.slice(start, size))
            start += size

    def _piece(self, rows: pa.Table) -> Piece:
        """Return *rows*, which all belong to one directory, as its piece."""
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
        return Piece(branch, "/".join(names), values, self._chosen(branch, rows))

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
