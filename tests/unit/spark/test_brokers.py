"""From options to a log and to a broker's endpoint."""

import json
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.failures import UnavailableError
from braidmq.columnar.logs import DirectoryLog
from braidmq.columnar.segments.held import HeldSegments
from braidmq.spark import brokers
from braidmq.spark.brokers import endpoint_of, log_of, patiently, running_at
from braidmq.spark.options import ReadOptions, WriteOptions
from tests.unit.spark.running import KEY, Running


def test_a_path_is_a_directory_log_and_an_address_an_endpoint() -> None:
    """Nothing is opened or connected yet."""
    directory = log_of(ReadOptions(path=Path("/data")))
    remote = log_of(ReadOptions(endpoint="grpc://broker:1", api_key=KEY))

    assert isinstance(directory, DirectoryLog)
    assert isinstance(remote, Endpoint)
    assert ["/data", "grpc://broker:1"] == [directory.address, remote.address]


@pytest.mark.usefixtures("forked")
def test_a_spark_process_reuses_the_log_of_its_last_query() -> None:
    """Its open segments serve the next query."""
    options = ReadOptions(path=Path("/data"))
    last = log_of(options)
    same = log_of(ReadOptions(path=Path("/data")))
    other = log_of(ReadOptions(path=Path("/other")))

    assert last is same
    assert "/other" == other.address
    assert last is not log_of(options)


def test_each_call_outside_spark_has_its_own_log() -> None:
    """The caller closes it."""
    options = ReadOptions(path=Path("/data"))

    assert log_of(options) is not log_of(options)


@pytest.mark.usefixtures("forked")
def test_what_a_spark_process_holds_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a task on a cluster it may hold nothing."""
    bounds: list[int] = []
    monkeypatch.setattr(HeldSegments, "__init__", lambda _, most: bounds.append(most))
    for most in (7, 0, 8):
        monkeypatch.setattr(brokers, "hold_bytes", lambda most=most: most)
        log_of(ReadOptions(path=tmp_path))

    assert [7, 8] == bounds


def test_the_broker_on_a_directory_is_found(broker: Running) -> None:
    """It writes its address into the directory."""
    options = WriteOptions(path=broker.path, api_key=KEY)

    assert broker.address == running_at(broker.path)
    assert broker.address == endpoint_of(options).address
    assert 1 <= endpoint_of(options).offsets().latest


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("127.0.0.1:8815", "grpc://127.0.0.1:8815"),
        ("0.0.0.0:8815", "grpc://127.0.0.1:8815"),
        ("[::]:8815", "grpc://[::1]:8815"),
        ("grpc+tls://broker:8815", "grpc+tls://broker:8815"),
    ],
)
def test_an_address_to_listen_on_becomes_one_to_connect_to(
    tmp_path: Path, written: str, address: str
) -> None:
    """A wildcard becomes the loopback address; a scheme other than the plain one is kept."""
    (tmp_path / "run.json").write_text(json.dumps({"flight": written, "pid": 1}))

    assert address == running_at(tmp_path)


def test_a_broker_that_is_not_running_may_start_soon(tmp_path: Path) -> None:
    """So a retry is worthwhile; for a broker without the endpoint it is not."""
    with pytest.raises(UnavailableError, match=f"no broker runs on {tmp_path}"):
        running_at(tmp_path)
    (tmp_path / "run.json").write_text('{"flight": null}')
    with pytest.raises(ConfigError, match=r"no Flight endpoint; switch \[flight\] on"):
        running_at(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json cannot be read"):
        running_at(tmp_path)


class Broker:
    """A fake broker that answers after some failures."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls = 0

    def answer(self) -> int:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return 17


GONE = UnavailableError("gone")


def test_an_unavailable_broker_is_asked_again() -> None:
    """Until it answers."""
    broker = Broker(GONE, GONE)

    assert 17 == patiently(broker.answer)
    assert 3 == broker.calls


def test_patience_ends() -> None:
    """With the error of the last call; there is at least one call."""
    broker = Broker(GONE, GONE)
    with pytest.raises(UnavailableError, match="gone"):
        patiently(broker.answer, 0)

    assert 1 == broker.calls


def test_a_refusal_is_final() -> None:
    """To ask again would not change it."""
    broker = Broker(ConfigError("topic", "is none"))
    with pytest.raises(ConfigError):
        patiently(broker.answer)

    assert 1 == broker.calls
