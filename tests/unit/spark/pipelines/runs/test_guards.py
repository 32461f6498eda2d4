"""Guards of a run: its directory, its errors, its jobs and its broker."""

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
from tests.unit.spark.running import CLOSED_ENDPOINT, KEY, Running


def test_a_directory_is_held_by_one_run(tmp_path: Path) -> None:
    """A second run is refused, and the error names the option; later it is free again."""
    directory = tmp_path / "new" / "out"
    refused = pytest.raises(ConfigError, match=f"--out: {directory} is being used")
    with held(directory, "--out"), refused, held(directory, "--out"):
        pass
    with held(directory, "--out"):
        assert directory.is_dir()


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
def test_errors_become_one_line(case: str) -> None:
    """Ours stay as they are; Spark's are reported like those of a query."""
    error, kind, text = ERRORS[case]

    with pytest.raises(kind, match=text), plain_errors("report"):
        raise error


def test_jobs_are_cancelled_only_once_a_run_is_stopping() -> None:
    """Again and again: another job may have begun after the first call."""
    calls: SimpleQueue[str] = SimpleQueue()
    context = SimpleNamespace(cancelAllJobs=lambda: calls.put("cancelled"))
    spark, stopping = SimpleNamespace(sparkContext=context), Event()
    with cancelling(spark, stopping):  # type: ignore[arg-type]  # a fake Spark
        pass
    assert calls.empty()
    with cancelling(spark, stopping):  # type: ignore[arg-type]  # as above
        stopping.set()
        assert ["cancelled", "cancelled"] == [calls.get(timeout=10) for _ in range(2)]


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "ANSWER_S_MAX", 0.0)


def test_a_broker_that_answers_is_enough(broker: Running) -> None:
    """Found by its address or by its directory."""
    check_broker("archive", {"endpoint": broker.address, "apiKey": KEY}, needed=False)
    check_broker("replay", {"path": str(broker.path), "apiKey": KEY}, needed=True)


def test_a_broker_that_never_answers_is_reported_with_likely_causes() -> None:
    """In one line, without gRPC's own noise."""
    with pytest.raises(QueryFailedError) as caught:
        check_broker("archive", {"endpoint": CLOSED_ENDPOINT, "apiKey": KEY}, needed=False)

    assert str(caught.value) == (
        f"archive: {CLOSED_ENDPOINT}: Failed to connect to remote host: Connection refused; "
        "is the broker running, is [flight] enabled, and is this its port?"
    )


def test_a_wrong_key_is_reported_with_where_it_is_set(broker: Running) -> None:
    """At once: waiting would not make it right."""
    with pytest.raises(QueryFailedError, match=r"not known; the key is given in --api-key or"):
        check_broker("archive", {"endpoint": broker.address, "apiKey": "wrong"}, needed=False)


def test_a_directory_needs_a_broker_only_where_one_is_required(tmp_path: Path) -> None:
    """Its files can be read without one; a new cursor and the sink need one."""
    given = {"path": str(tmp_path), "apiKey": KEY}
    check_broker("archive", given, needed=False)
    with pytest.raises(QueryFailedError, match=r"archive: no broker runs on .*: start it"):
        check_broker("archive", given, needed=True)
    (tmp_path / "run.json").write_text(json.dumps({"flight": CLOSED_ENDPOINT}))
    with pytest.raises(QueryFailedError, match="Connection refused"):
        check_broker("archive", given, needed=True)


def test_a_missing_key_and_a_malformed_address_are_not_tried() -> None:
    """The source reports the missing option itself."""
    check_broker("archive", {"endpoint": CLOSED_ENDPOINT}, needed=True)
    with pytest.raises(ConfigError, match="endpoint: 'x' is not grpc://host:port"):
        check_broker("archive", {"endpoint": "x", "apiKey": KEY}, needed=True)
