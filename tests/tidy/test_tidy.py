"""The style is a test: it reads the tree, and knows nothing of what the code does.

Each rule is a function from a file to its findings, so that the rules are tested as well: a
rule that finds nothing in a bad example would find nothing anywhere. Imports between rooms are
kept by import-linter (`make check`), and what ruff can see is left to ruff.
"""

import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]

FUNCTION_LINES_MAX: Final = 60
MODULE_LINES_MAX: Final = 500

MEANINGLESS_NAMES: Final = frozenset(
    {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
)

# Made by tools, or not ours to word.
UNREAD_DIRECTORIES: Final = frozenset(
    {".git", ".hypothesis", ".venv", "__pycache__", "build", "dist", "node_modules"}
)
UNREAD_PATHS: Final = frozenset({"data", "tests/data"})  # what a broker has written
TEXT_SUFFIXES: Final = frozenset(
    {"", ".cfg", ".css", ".html", ".js", ".json", ".lock", ".md", ".py", ".sh", ".toml"}
    | {".service", ".svg", ".txt", ".yaml", ".yml"}
)


@dataclass(frozen=True)
class Ban:
    """A name that source code does not use, and what it uses instead."""

    names: tuple[str, ...]
    instead: str
    allowed: tuple[str, ...] = ()


NEVER_POLLING: Final = (
    "src/braidmq/base/*",
    "src/braidmq/cli/*",  # people watch it; demos and loads have their pace
    "src/braidmq/client/*",  # the pause before it connects again
    "src/braidmq/columnar/*",
    "src/braidmq/spark/*",
    "src/braidmq/testing/*",
    "src/braidmq/admin/queues.py",  # lets others run between two chunks
    "src/braidmq/server/sink/sink.py",  # the hourly look at the stages
    "src/braidmq/server/strands/qumbed/mdns.py",  # the pause between two announcements
)

BANS: Final = (
    Ban(
        ("print",),
        "log through structlog; only the command line prints",
        allowed=("src/braidmq/cli/*",),
    ),
    Ban(
        ("time.time", "time.time_ns", "time.sleep", "datetime.datetime.now"),
        "take `now` as an argument; the shell's ticker reads the clock and wakes you",
        allowed=(
            "src/braidmq/cli/*",
            "src/braidmq/client/*",
            "src/braidmq/server/engine/ticker.py",
            "src/braidmq/testing/*",
            "src/braidmq/transport/*",
        ),
    ),
    Ban(
        ("asyncio.sleep",),
        "wait in server/engine/requests.py: the engine wakes you, and nothing polls",
        allowed=NEVER_POLLING,
    ),
    Ban(
        ("open", "io.open", "os.open", "os.fdatasync", "os.fsync", "os.sync"),
        "go through wal/disk.py's Protocol, so that the fake disk can stand in",
        allowed=(
            "src/braidmq/wal/disk.py",
            "src/braidmq/cli/*",  # payloads and configuration that an operator names
            "src/braidmq/server/config/sources.py",  # the configuration file, read once
        ),
    ),
    Ban(("pickle", "marshal", "shelve"), "write the bytes down: struct, JSON or msgspec"),
    Ban(("eval", "exec"), "a table from names to functions"),
)

# Source modules whose facts are tested in another module's tests, each with the reason.
TESTED_ELSEWHERE: Final[dict[str, str]] = {
    "base/errors.py": "data without decisions; every room tests the errors that it raises",
    "base/ids.py": "constants; the log's tests meet them",
    "base/limits.py": "constants; their relations are asserted where they are defined",
}


@dataclass(frozen=True)
class File:
    """One file of the tree, as the rules see it."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def imports(self) -> dict[str, str]:
        """What imported names stand for: after `from time import sleep as s`, s: time.sleep."""
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    names[alias.asname or name] = name
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return names

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def is_in(self, *patterns: str) -> bool:
        return any(fnmatchcase(self.path, pattern) for pattern in patterns)


Rule = Callable[[File], Iterator[str]]


def modules_have_docstrings(file: File) -> Iterator[str]:
    """Every module says what it is."""
    if not ast.get_docstring(file.tree):
        yield "no module docstring: say what the module is, and what it is not"


def modules_are_short(file: File) -> Iterator[str]:
    """A module is read in one sitting."""
    lines = len(file.text.splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{lines} lines, at most {MODULE_LINES_MAX}: which noun is hiding in it?"


def functions_are_short(file: File) -> Iterator[str]:
    """A function fits on a screen."""
    for function in file.functions():
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            where = f"{function.lineno}: {function.name}"
            yield f"{where} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def names_have_meaning(file: File) -> Iterator[str]:
    """Files are the nouns of the manual."""
    for part in Path(file.path).with_suffix("").parts:
        if not MEANINGLESS_NAMES.isdisjoint(part.split("_")):
            yield f"{part!r} says nothing: name the module after what it knows"


def banned_names_are_not_used(file: File) -> Iterator[str]:
    """Clocks, disks and printers are reached in their own rooms only."""
    if not file.is_in("src/*"):
        return
    used = sorted(set(_used_names(file)), reverse=True)
    for ban in BANS:
        if not file.is_in(*ban.allowed):
            found = {line: name for line, name in used if _is_below(name, ban.names)}
            yield from (f"{line}: {name}: {ban.instead}" for line, name in found.items())


def exceptions_to_the_linters_have_reasons(file: File) -> Iterator[str]:
    """Whoever silences a tool says why, on the line."""
    for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
        if token.type == tokenize.COMMENT and DIRECTIVE.search(token.string):
            reason = DIRECTIVE.sub("", token.string).strip("#-: ")
            if len(reason.split()) < REASON_WORDS_MIN:
                yield f"{token.start[0]}: {token.string}: say why, behind it"


def every_test_states_its_rule(file: File) -> Iterator[str]:
    """A test's name is a sentence, its docstring the rule."""
    if not file.is_in("tests/*"):
        return
    for function in file.functions():
        if function.name.startswith("test_") and not ast.get_docstring(function):
            yield f"{function.lineno}: {function.name} has no docstring: which rule is it?"


def no_machine_or_registry_is_named(file: File) -> Iterator[str]:
    """The tree works anywhere: no path of one machine, no host that packages come from."""
    for number, line in enumerate(file.text.splitlines(), 1):
        if found := MACHINE_PATH.search(line):
            yield f"{number}: {found.group()!r} is a path of one machine"
        if found := REGISTRY.search(line):
            yield f"{number}: {found.group()!r} names where packages come from"


def asserts_are_never_switched_off(file: File) -> Iterator[str]:
    """`python -O` would remove the asserts that stop a broken broker."""
    for number, line in enumerate(file.text.splitlines(), 1):
        if OPTIMIZED.search(line):
            yield f"{number}: runs Python without asserts"


# The examples that these must not match are themselves: hence the brackets.
DIRECTIVE: Final = re.compile(
    r"(type: ignor[e](\[[\w, -]+\])?|noq[a](: ?[A-Z]+\d+(, ?[A-Z]+\d+)*)?|pragma: no cove[r])"
)
REASON_WORDS_MIN: Final = 2
MACHINE_PATH: Final = re.compile(r"(?<![\w.~-])/(wor[k]|hom[e]|roo[t]|User[s])/\w*")
REGISTRY: Final = re.compile(
    r"pypi\.or[g]|pythonhosted\.or[g]|(?<!emit-)index-ur[l]|npmjs\.(com|or[g])|crates\.i[o]"
    r"|maven\.or[g]|docker\.i[o]|ghcr\.i[o]|quay\.i[o]"
)
OPTIMIZED: Final = re.compile(r"(?<!`)python[\d.]* (-\w+ )*-O{1,2}\b|PYTHONOPTIMIZ[E]")

PYTHON_RULES: Final[tuple[Rule, ...]] = (
    modules_have_docstrings,
    modules_are_short,
    functions_are_short,
    names_have_meaning,
    banned_names_are_not_used,
    exceptions_to_the_linters_have_reasons,
    every_test_states_its_rule,
)
TEXT_RULES: Final[tuple[Rule, ...]] = (
    no_machine_or_registry_is_named,
    asserts_are_never_switched_off,
)


def _is_below(name: str, banned: tuple[str, ...]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in banned)


def _used_names(file: File) -> Iterator[tuple[int, str]]:
    """Yield line and full dotted name of each outside name or builtin that is used."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Name | ast.Attribute):
            root, _, rest = ast.unparse(node).partition(".")
            if root in file.imports:
                yield node.lineno, ".".join(filter(None, (file.imports[root], rest)))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield node.lineno, node.id


def _tree() -> Iterator[File]:
    for directory, names, files in os.walk(ROOT):
        names[:] = [
            name
            for name in names
            if name not in UNREAD_DIRECTORIES
            and not name.endswith(("_cache", ".egg-info"))
            and Path(directory, name).relative_to(ROOT).as_posix() not in UNREAD_PATHS
        ]
        for name in files:
            path = Path(directory, name)
            if path.suffix in TEXT_SUFFIXES:
                yield File(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))


@pytest.fixture(scope="module")
def tree() -> list[File]:
    return sorted(_tree(), key=lambda file: file.path)


def _findings(rule: Rule, files: list[File]) -> str:
    return "\n".join(f"{file.path}:{finding}" for file in files for finding in rule(file))


@pytest.mark.parametrize("rule", PYTHON_RULES, ids=lambda rule: str(rule.__name__))
def test_python_files_keep(rule: Rule, tree: list[File]) -> None:
    """Each rule holds in every Python file of the tree."""
    assert "" == _findings(rule, [file for file in tree if file.path.endswith(".py")])


@pytest.mark.parametrize("rule", TEXT_RULES, ids=lambda rule: str(rule.__name__))
def test_text_files_keep(rule: Rule, tree: list[File]) -> None:
    """Each rule holds in every text file of the tree."""
    assert "" == _findings(rule, tree)


def _test_module(source: str) -> str:
    room, _, name = source.rpartition("/")
    return "/".join(filter(None, ("tests/unit", room, f"test_{name}")))


def test_every_source_module_has_its_test_module(tree: list[File]) -> None:
    """The tests of src/braidmq/<room>/<name>.py are in tests/unit/<room>/test_<name>.py."""
    paths = {file.path for file in tree}
    sources = {
        path.removeprefix("src/braidmq/")
        for path in paths
        if path.startswith("src/braidmq/") and path.endswith(".py")
    }
    alone = {s for s in sources if not s.endswith("__.py") and _test_module(s) not in paths}

    assert "" == "\n".join(_test_module(s) for s in sorted(alone - set(TESTED_ELSEWHERE)))


def test_no_exception_outlives_its_cause(tree: list[File]) -> None:
    """A module in TESTED_ELSEWHERE exists, has no test module of its own, and has a reason."""
    paths = {file.path for file in tree}

    for source, reason in TESTED_ELSEWHERE.items():
        assert f"src/braidmq/{source}" in paths
        assert _test_module(source) not in paths
        assert len(reason.split()) >= REASON_WORDS_MIN


def test_the_license_is_there() -> None:
    """The package is under the Apache License, and says whose it is."""
    text = (ROOT / "LICENSE").read_text()

    assert "Apache License" in text
    assert "The BraidMQ authors" in text


def test_asserts_are_on() -> None:
    """The suite itself runs with asserts: it would prove little without them."""
    assert sys.flags.optimize == 0


DOC: Final = '"""A module."""\n'
BAD: Final[list[tuple[Rule, str, str]]] = [
    (modules_have_docstrings, "src/braidmq/a.py", "x = 1\n"),
    (modules_are_short, "src/braidmq/a.py", DOC + "x = 1\n" * MODULE_LINES_MAX),
    (functions_are_short, "bench/a.py", "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    (functions_are_short, "a.py", "async def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    (names_have_meaning, "src/braidmq/wire/utils.py", DOC),
    (names_have_meaning, "tests/unit/common/test_a.py", DOC),
    (names_have_meaning, "src/braidmq/server/queue_manager.py", DOC),
    (banned_names_are_not_used, "src/braidmq/broker/a.py", "print(1)\n"),
    (banned_names_are_not_used, "src/braidmq/server/a.py", "import time\ntime.time()\n"),
    (banned_names_are_not_used, "src/braidmq/server/a.py", "import time\nclock = time.time\n"),
    (
        banned_names_are_not_used,
        "src/braidmq/admin/a.py",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n",
    ),
    (
        banned_names_are_not_used,
        "src/braidmq/server/sink/a.py",
        "from asyncio import sleep\nasync def f():\n    await sleep(0)\n",
    ),
    (banned_names_are_not_used, "src/braidmq/wal/a.py", "from os import fsync as f\nf(3)\n"),
    (banned_names_are_not_used, "src/braidmq/wal/a.py", "with open('a') as f:\n    f.read()\n"),
    (banned_names_are_not_used, "src/braidmq/cli/a.py", "import pickle\npickle.loads(b'')\n"),
    (banned_names_are_not_used, "src/braidmq/cli/a.py", "eval('1')\n"),
    (exceptions_to_the_linters_have_reasons, "a.py", "x = 1  # noq" + "a\n"),
    (exceptions_to_the_linters_have_reasons, "a.py", "x = 1  # noq" + "a: S101, E501\n"),
    (exceptions_to_the_linters_have_reasons, "a.py", "x = 1  # type: ignor" + "e[misc]\n"),
    (every_test_states_its_rule, "tests/unit/test_a.py", "def test_a():\n    assert True\n"),
    (no_machine_or_registry_is_named, "README.md", "see /hom" + "e/ada/notes"),
    (no_machine_or_registry_is_named, "Makefile", "pip install --index-ur" + "l https://x"),
    (no_machine_or_registry_is_named, "README.md", "https://pypi.or" + "g/project/x"),
    (asserts_are_never_switched_off, "Makefile", "python3 -" + "O -m braidmq"),
    (asserts_are_never_switched_off, "Dockerfile", "ENV PYTHONOPTIMIZ" + "E=1"),
]
GOOD: Final[list[tuple[Rule, str, str]]] = [
    (modules_are_short, "src/braidmq/a.py", "x = 1\n" * MODULE_LINES_MAX),
    (functions_are_short, "a.py", "def f():\n" + "    x = 1\n" * (FUNCTION_LINES_MAX - 1)),
    (banned_names_are_not_used, "src/braidmq/cli/a.py", "print(1)\n"),
    (banned_names_are_not_used, "src/braidmq/wal/a.py", "files.open('a')\n"),
    (
        banned_names_are_not_used,
        "src/braidmq/server/engine/ticker.py",
        "import time\ntime.time()\n",
    ),
    (banned_names_are_not_used, "tests/unit/test_a.py", "open('a')\n"),
    (
        banned_names_are_not_used,
        "src/braidmq/server/strands/qumbed/mdns.py",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.2)\n",
    ),
    (exceptions_to_the_linters_have_reasons, "a.py", "x = 1  # noq" + "a: S101 - a reason\n"),
    (no_machine_or_registry_is_named, "README.md", "src/wor" + "k/a.py, https://x/hom" + "e"),
    (asserts_are_never_switched_off, "Makefile", "python3 -m pytest -" + "O"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_each_rule_finds_what_it_forbids(rule: Rule, path: str, text: str) -> None:
    """One bad example gives one finding."""
    assert 1 == len(list(rule(File(path, text))))


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_each_rule_lets_the_rest_pass(rule: Rule, path: str, text: str) -> None:
    """A rule that cries at good code would soon be switched off."""
    assert [] == list(rule(File(path, text)))
