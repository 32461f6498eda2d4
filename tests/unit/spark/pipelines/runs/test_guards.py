"""Guards of a run: its directory, and its words."""

import json
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from types import SimpleNamespace

import pytest

from braidmq.base.errors import BraidError, ConfigError
from braidmq.spark.pipelines.runs import guards
from braidmq.spark.pipelines.runs.failures import JavaGoneError, QueryFailedError
from braidmq.spark.pipelines.runs.guards import cancelling, check_broker, held, plain_errors
from braidmq.spark.reading.offsets import LostOffsetsError
from tests.unit.spark.running import KEY, NOBODY, Running


def test_a_directory_is_held_by_one_run(tmp_path: Path) -> None:
    """A second one is refused, with the option to change; afterwards it is free again."""
    place = tmp_path / "new" / "out"
    refused = pytest.raises(ConfigError, match=f"--out: {place} is being used")
    with held(place, "--out"), refused, held(place, "--out"):
        pass
    with held(place, "--out"):
        assert place.is_dir()


ERRORS: dict[str, tuple[Exception, type[BraidError], str]] = {
    "ours": (ConfigError("--rate", "no"), ConfigError, "--rate: no"),
    "a dead JVM": (EOFError(), JavaGoneError, "Java process has ended"),
    "a lost connection": (ConnectionRefusedError(), JavaGoneError, "run it again"),
    "lost offsets": (
        LostOffsetsError("data", "gone"),
        QueryFailedError,
        "report: data: gone; use --no-fail-on-data-loss to continue",
    ),
    "another": (ValueError("a\nb"), QueryFailedError, "report: a"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_end_in_one_line(case: str) -> None:
    """Ours stay as they are; Spark's are told as a query's are."""
    error, kind, text = ERRORS[case]

    with pytest.raises(kind, match=text), plain_errors("report"):
        raise error


def test_jobs_are_cancelled_when_a_run_is_to_end_and_not_before() -> None:
    """Again and again: the next one may have begun behind the first time."""
    calls: SimpleQueue[str] = SimpleQueue()
    context = SimpleNamespace(cancelAllJobs=lambda: calls.put("cancelled"))
    spark, stopping = SimpleNamespace(sparkContext=context), Event()
    with cancelling(spark, stopping):  # type: ignore[arg-type]  # a Spark that is played
        pass
    assert calls.empty()
    with cancelling(spark, stopping):  # type: ignore[arg-type]  # as above
        stopping.set()
        assert ["cancelled", "cancelled"] == [calls.get(timeout=10) for _ in range(2)]


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "ANSWER_S_MAX", 0.0)


def test_a_broker_that_answers_is_all_that_is_wanted(broker: Running) -> None:
    """By its address, or by its directory."""
    check_broker("archive", {"endpoint": broker.address, "apiKey": KEY}, needed=False)
    check_broker("replay", {"path": str(broker.path), "apiKey": KEY}, needed=True)


def test_an_address_that_never_answered_is_told_with_what_may_be_wrong() -> None:
    """In one line, without the noise of the library."""
    with pytest.raises(QueryFailedError) as caught:
        check_broker("archive", {"endpoint": NOBODY, "apiKey": KEY}, needed=False)

    assert str(caught.value) == (
        f"archive: {NOBODY}: Failed to connect to remote host: Connection refused; "
        "is the broker running, is [flight] enabled, and is this its port?"
    )


def test_a_wrong_key_is_told_with_the_place_of_it(broker: Running) -> None:
    """At once: it will not be right later."""
    with pytest.raises(QueryFailedError, match=r"not known; the key is given in --api-key or"):
        check_broker("archive", {"endpoint": broker.address, "apiKey": "wrong"}, needed=False)


def test_a_directory_needs_no_broker_unless_it_does(tmp_path: Path) -> None:
    """Its files are there without; a new cursor and the sink are not."""
    given = {"path": str(tmp_path), "apiKey": KEY}
    check_broker("archive", given, needed=False)
    with pytest.raises(QueryFailedError, match=r"archive: no broker runs on .*: start it"):
        check_broker("archive", given, needed=True)
    (tmp_path / "run.json").write_text(json.dumps({"flight": NOBODY}))
    with pytest.raises(QueryFailedError, match="Connection refused"):
        check_broker("archive", given, needed=True)


def test_what_is_missing_or_no_address_is_not_asked() -> None:
    """The source says which option is missing."""
    check_broker("archive", {"endpoint": NOBODY}, needed=True)
    with pytest.raises(ConfigError, match="endpoint: 'x' is not grpc://host:port"):
        check_broker("archive", {"endpoint": "x", "apiKey": KEY}, needed=True)
