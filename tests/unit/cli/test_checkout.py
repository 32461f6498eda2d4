"""In a clone make adds what a command lacks; elsewhere a line says what to type."""

import sys
from pathlib import Path

import pytest

from braidmq.base.extras import MissingExtraError, how_to_get
from braidmq.cli import checkout

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps that make was asked for; the first of them brings Spark."""
    steps: list[str] = []
    monkeypatch.setattr(checkout, "_make", lambda _root, step: steps.append(step))
    monkeypatch.setattr(checkout, "find_spec", lambda name: name if steps else None)
    return steps


def test_in_a_clone_make_adds_spark_before_the_command_goes_on(
    made: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a line that says why; what make itself prints says what."""
    monkeypatch.setattr(checkout, "clone", lambda: ROOT)
    checkout.require_spark("a pipeline")

    assert [".venv/spark"] == made
    assert "\n.venv/spark: requirements-spark.lock " in (ROOT / "Makefile").read_text("utf-8")
    assert ("", "a pipeline needs Apache Spark\n") == capsys.readouterr()
    checkout.require_spark("a pipeline")
    assert [".venv/spark"] == made


def test_elsewhere_the_error_says_what_to_type(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is installed into an environment that is not the clone's own."""
    monkeypatch.setattr(checkout, "clone", lambda: None)
    with pytest.raises(MissingExtraError) as caught:
        checkout.require_spark("a pipeline")

    assert f"a pipeline needs pyspark: {how_to_get('spark')}" == str(caught.value)
    assert [] == made


def test_a_make_that_fails_ends_in_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of a network, perhaps; make has said why."""
    monkeypatch.setattr(checkout, "clone", lambda: ROOT)
    monkeypatch.setattr(checkout, "_make", lambda _root, _step: None)
    monkeypatch.setattr(checkout, "find_spec", lambda _name: None)

    with pytest.raises(MissingExtraError):
        checkout.require_spark("a pipeline")


def test_a_clone_is_known_by_its_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another environment that has the clone installed is its owner's."""
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    assert ROOT == checkout.clone()
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert None is checkout.clone()
