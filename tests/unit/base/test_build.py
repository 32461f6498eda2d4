"""Which modules are hot, and whether they run compiled."""

import os

import pytest

import setup
from braidmq.base import build

HOT = [
    "braidmq.base.strict_json",
    "braidmq.broker.delivery.settling",
    "braidmq.server.strands.blip",
    "braidmq.server.engine.connection",
    "braidmq.server.strands.qumbed.stream",
    "braidmq.server.strands.qumbed.deliveries",
    "braidmq.server.strands.vibe.connection",
    "braidmq.wal.format",
    "braidmq.wire.blip.frames",
    "braidmq.wire.blip.messages",
    "braidmq.wire.qumbed.messages",
    "braidmq.wire.qumbed.session",
    "braidmq.wire.vibe.messages",
]
COLD = [
    "braidmq.broker",
    "braidmq.broker.deeper.settling",
    "braidmq.daemon.daemon",
    "braidmq.server.strands.qumbed.listener",
    "braidmq.wal.disk",
    "braidmq.wire.errors",
    "braidmq.wire.frames",
    "braidmq.wire.vibe.compression",
]


@pytest.mark.parametrize("module", HOT)
def test_modules_that_handle_every_message_are_hot(module: str) -> None:
    """Frames, sessions, the broker, the log's format and the connection are hot."""
    assert build.is_hot(module)


@pytest.mark.parametrize("module", COLD)
def test_other_modules_are_not_hot(module: str) -> None:
    """A star in a pattern stands for one name, not for a path."""
    assert not build.is_hot(module)


def test_the_installed_hot_modules_match_those_of_the_build() -> None:
    """The running program and setup.py read the same list and find the same modules."""
    sources = [".".join(p.relative_to(setup.SOURCES).parts) for p in setup.hot_sources()]

    assert sorted(name.removesuffix(".py") for name in sources) == build.hot_modules()


def test_the_running_modules_match_the_last_build() -> None:
    """All hot modules are compiled after a compiled build, and none in a pure run."""
    pure = os.environ.get("BRAIDMQ_PURE") == "1" or not setup.STATE_FILE.exists()
    expected = [] if pure else setup.read_state().modules

    assert expected == build.compiled_modules()


def test_a_partly_compiled_program_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One interpreted hot module is enough."""
    monkeypatch.setattr(build, "hot_modules", lambda: ["a", "b"])
    monkeypatch.setattr(build, "compiled_modules", lambda: ["a"])

    assert not build.is_compiled()


def test_a_program_without_hot_modules_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list of modules does not count as fully compiled."""
    monkeypatch.setattr(build, "hot_modules", list)
    monkeypatch.setattr(build, "compiled_modules", list)

    assert not build.is_compiled()
