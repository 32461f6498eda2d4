"""The floor plan as a test: folders, names and the size of whole classes.

Slicing a class into a chain of base classes would satisfy a limit on the lines of a module. So
these rules look at flattened classes: how deep they inherit, and how many methods and
attributes they have together with all bases.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]

INHERITANCE_DEPTH_MAX: Final = 2
METHODS_MAX: Final = 40
BROKER_ATTRIBUTES_MAX: Final = 15
MODULES_IN_FOLDER_MAX: Final = 20
EXCEPTIONS_MAX: Final = 5

# Siblings share names: each protocol has `frames`, `messages`, `session`, each client
# `connection`, `publishing`, `subscription`. A reader who knows one strand knows them all.
STRANDS: Final = frozenset({"blip", "vibe", "qumbed"})

EXCEPTIONS: Final[dict[str, str]] = {}
"""Classes that may exceed the limits, each with its reason; currently none."""


@dataclass
class Class:
    """A class as written, with the names of its bases."""

    name: str
    bases: list[str]
    methods: set[str]
    attributes: set[str]


@dataclass
class Classes:
    """All classes of a tree, by their full names."""

    by_name: dict[str, Class] = field(default_factory=dict)

    def bases(self, name: str) -> list[str]:
        return [base for base in self.by_name[name].bases if base in self.by_name]

    def depth(self, name: str) -> int:
        """Count the steps to the farthest base that is ours."""
        return max((1 + self.depth(base) for base in self.bases(name)), default=0)

    def methods(self, name: str) -> set[str]:
        return self.by_name[name].methods.union(*map(self.methods, self.bases(name)))

    def attributes(self, name: str) -> set[str]:
        return self.by_name[name].attributes.union(*map(self.attributes, self.bases(name)))

    def is_exception(self, name: str) -> bool:
        # An exception tree classifies errors; its members hold data, and users catch them by
        # their bases, so its depth is part of the public interface, not slicing.
        if any(base.endswith(("Error", "Exception")) for base in self.by_name[name].bases):
            return True
        return any(map(self.is_exception, self.bases(name)))


def read_classes(sources: Mapping[str, str]) -> Classes:
    """Read the classes of modules, given as dotted name and text."""
    classes = Classes()
    for module, text in sources.items():
        tree = ast.parse(text)
        imported = _imported(tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                name = f"{module}.{node.name}"
                bases = [_full_name(base, module, imported) for base in node.bases]
                classes.by_name[name] = Class(name, bases, _methods(node), _attributes(node))
    return classes


def _imported(tree: ast.Module) -> dict[str, str]:
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _full_name(base: ast.expr, module: str, imported: dict[str, str]) -> str:
    if isinstance(base, ast.Subscript):  # Generic[...] and other parameters
        base = base.value
    root, dot, rest = ast.unparse(base).partition(".")
    return imported.get(root, root if dot else f"{module}.{root}") + dot + rest


def _methods(node: ast.ClassDef) -> set[str]:
    return {
        item.name
        for item in node.body
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _attributes(node: ast.ClassDef) -> set[str]:
    found = {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    for item in ast.walk(node):
        targets: list[ast.expr] = []
        if isinstance(item, ast.Assign):
            targets = item.targets
        elif isinstance(item, ast.AnnAssign | ast.AugAssign):
            targets = [item.target]
        found.update(
            target.attr
            for target in targets
            if isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        )
    return found


def large_classes(classes: Classes) -> Iterator[tuple[str, str]]:
    """Yield each class that breaks a rule, and how."""
    for name in sorted(classes.by_name):
        depth = classes.depth(name)
        if depth > INHERITANCE_DEPTH_MAX and not classes.is_exception(name):
            yield name, f"inherits {depth} deep, at most {INHERITANCE_DEPTH_MAX}: compose it"
        methods = len(classes.methods(name))
        if methods > METHODS_MAX:
            yield name, f"{methods} methods with its bases, at most {METHODS_MAX}"
        attributes = len(classes.attributes(name))
        if attributes > BROKER_ATTRIBUTES_MAX and name.startswith("braidmq.broker."):
            yield name, f"{attributes} attributes, at most {BROKER_ATTRIBUTES_MAX}"


def crowded_folders(paths: list[str]) -> Iterator[str]:
    """Yield each folder with more modules than a reader can take in at a glance."""
    folders = Counter(
        path.rpartition("/")[0] for path in paths if not path.endswith("__init__.py")
    )
    for folder, count in sorted(folders.items()):
        if count > MODULES_IN_FOLDER_MAX:
            yield f"{folder}: {count} modules, at most {MODULES_IN_FOLDER_MAX}"


def ambiguous_stems(paths: list[str]) -> Iterator[str]:
    """Yield modules of one package with the same name, except those of the strands."""
    seen: dict[tuple[str, str], str] = {}
    for path in sorted(paths):
        *folders, file = path.removeprefix("src/braidmq/").split("/")
        package = folders[0] if folders else ""
        if file == "__init__.py" or not STRANDS.isdisjoint(folders):
            continue
        other = seen.setdefault((package, file), path)
        if other != path:
            yield f"{other} and {path} have the same name in one package"


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Every module of the package, by its path."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in sorted((ROOT / "src/braidmq").rglob("*.py"))
    }


def _dotted(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").replace("/", ".")


def test_no_flattened_class_is_too_large(sources: dict[str, str]) -> None:
    """Depth, methods and attributes count with all bases, so slicing does not help.

    The list of exceptions stays short and has no stale entries.
    """
    classes = read_classes({_dotted(path): text for path, text in sources.items()})
    large = list(large_classes(classes))

    assert "" == "\n".join(f"{n}: {why}" for n, why in large if n not in EXCEPTIONS)
    assert len(EXCEPTIONS) <= EXCEPTIONS_MAX
    assert set() == set(EXCEPTIONS) - {name for name, _ in large}


def test_no_folder_is_crowded(sources: dict[str, str]) -> None:
    """A folder holds at most twenty modules."""
    assert "" == "\n".join(crowded_folders(list(sources)))


def test_no_two_modules_of_a_package_share_a_name(sources: dict[str, str]) -> None:
    """ "The sink module of the server" must be one file."""
    assert "" == "\n".join(ambiguous_stems(list(sources)))


CHAIN: Final = "class A: ...\nclass B(A): ...\nclass C(B): ...\nclass D(C): ...\n"
METHODS: Final = "".join(f"    def m{n}(self): ...\n" for n in range(METHODS_MAX // 2))
SLICES: Final = (
    f"class A:\n{METHODS}class B(A):\n{METHODS.replace('m', 'n')}    def one_more(self): ...\n"
)
ATTRIBUTES: Final = "class A:\n    def __init__(self):\n" + "".join(
    f"        self.a{n}: int = 0\n" for n in range(BROKER_ATTRIBUTES_MAX + 1)
)
ERRORS: Final = "class A(ValueError): ...\nclass B(A): ...\nclass C(B): ...\nclass D(C): ...\n"


@pytest.mark.parametrize(
    ("module", "text", "large"),
    [
        ("braidmq.server.a", CHAIN, ["braidmq.server.a.D"]),
        ("braidmq.server.a", ERRORS, []),
        ("braidmq.server.a", SLICES, ["braidmq.server.a.B"]),
        ("braidmq.broker.a", ATTRIBUTES, ["braidmq.broker.a.A"]),
        ("braidmq.server.a", ATTRIBUTES, []),
    ],
    ids=["a chain", "an exception tree", "two slices", "a broker class", "elsewhere"],
)
def test_the_rules_find_a_sliced_class(module: str, text: str, large: list[str]) -> None:
    """A class that is cut into bases is still as large as before."""
    assert large == [name for name, _ in large_classes(read_classes({module: text}))]


def test_bases_are_followed_into_other_modules() -> None:
    """A slice in another file counts, too."""
    first = "class A: ...\nclass B(A): ...\n"
    second = "from braidmq.x.a import B as Base\nclass C(Base): ...\nclass D(C): ...\n"
    classes = read_classes({"braidmq.x.a": first, "braidmq.x.b": second})

    assert ["braidmq.x.b.D"] == [name for name, _ in large_classes(classes)]


def test_the_rules_find_crowded_folders_and_ambiguous_names() -> None:
    """One module too many in a folder, and one name twice in a package."""
    crowd = [f"src/braidmq/a/m{n}.py" for n in range(MODULES_IN_FOLDER_MAX + 1)]
    namesakes = ["src/braidmq/a/b/sink.py", "src/braidmq/a/c/sink.py"]
    strands = ["src/braidmq/wire/blip/frames.py", "src/braidmq/wire/vibe/frames.py"]

    assert 1 == len(list(crowded_folders(crowd)))
    assert [] == list(crowded_folders(crowd[1:]))
    assert 1 == len(list(ambiguous_stems(namesakes)))
    assert [] == list(ambiguous_stems(strands))
