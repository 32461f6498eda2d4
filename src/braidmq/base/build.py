"""Which modules are hot, and whether they run compiled.

The list is kept once: setup.py reads it to know what to compile, and the running program reads
it to report what it runs. This module compiles nothing.
"""

import importlib.util
import pkgutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

HOT_MODULES: Final = (
    "braidmq.base.records",
    "braidmq.base.strict_json",
    "braidmq.wire.*.frames",
    "braidmq.wire.*.session",
    "braidmq.wire.blip.messages",
    "braidmq.wire.vibe.messages",
    "braidmq.wire.qumbed.messages",
    "braidmq.broker.*",
    "braidmq.broker.delivery.*",
    "braidmq.wal.format",
    "braidmq.server.engine.connection",
    "braidmq.server.engine.engine",
    "braidmq.server.engine.rates",
    "braidmq.server.strands.blip",
    "braidmq.server.strands.qumbed.deliveries",
    "braidmq.server.strands.qumbed.link",
    "braidmq.server.strands.qumbed.stream",
    "braidmq.server.strands.vibe.connection",
    "braidmq.server.strands.vibe.deliveries",
    "braidmq.server.strands.vibe.gate",
    "braidmq.server.strands.vibe.queues",
)
"""Patterns of the modules that handle every message. A `*` stands for one name, not a path."""

_PACKAGE: Final = "braidmq"


def is_hot(module: str) -> bool:
    """Tell whether the module of this dotted name handles every message."""
    return any(
        module.count(".") == pattern.count(".") and fnmatchcase(module, pattern)
        for pattern in HOT_MODULES
    )


def hot_modules() -> list[str]:
    """Return the names of the hot modules in this installation, sorted."""
    return sorted(name for name in _modules(_PACKAGE) if is_hot(name))


def compiled_modules() -> list[str]:
    """Return the names of the hot modules that run compiled, sorted."""
    return [name for name in hot_modules() if _is_extension(name)]


def is_compiled() -> bool:
    """Tell whether every hot module runs compiled; a half-compiled program does not count."""
    return bool(hot_modules()) and hot_modules() == compiled_modules()


def _modules(package: str) -> Iterator[str]:
    # Only open packages that a pattern leads through. Finding a module imports the packages
    # above it, and a question about the build must not import half the program.
    spec = importlib.util.find_spec(package)
    assert spec is not None
    for module in pkgutil.iter_modules(spec.submodule_search_locations):
        name = f"{package}.{module.name}"
        if not module.ispkg:
            yield name
        elif any(_leads_to(name, pattern) for pattern in HOT_MODULES):
            yield from _modules(name)


def _leads_to(package: str, pattern: str) -> bool:
    depth = package.count(".") + 1
    return fnmatchcase(package, ".".join(pattern.split(".")[:depth]))


def _is_extension(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))
