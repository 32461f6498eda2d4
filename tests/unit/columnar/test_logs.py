"""A log, wherever it is."""

from pathlib import Path

import pytest

from braidmq import columnar
from braidmq.base.errors import ConfigError
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.logs import DirectoryLog, Log, open_log
from tests.unit.columnar.endpoints import read
from tests.unit.columnar.logs import message, write_log


def test_a_directory_answers_as_the_functions_do(tmp_path: Path) -> None:
    """It is another way to read the same log."""
    write_log(tmp_path, [message(f"t{n % 3}", bytes(n), n) for n in range(90)])
    log: Log = open_log(tmp_path)

    assert str(tmp_path) == log.address
    assert columnar.offsets(tmp_path) == log.offsets()
    assert 41 == log.offset_at(40)
    assert columnar.topic_counts(tmp_path, start=5) == log.topic_counts(start=5)
    assert columnar.cut(tmp_path, 3, 80, topics=["t1"], target_bytes=900) == log.cut(
        3, 80, topics=["t1"], target_bytes=900
    )
    assert columnar.advance(tmp_path, 3, pattern="t[12]", messages=9) == log.advance(
        3, pattern="t[12]", messages=9
    )
    assert columnar.read(tmp_path, start=7, end=70, pattern="t0", headers=True) == read(
        log, start=7, end=70, pattern="t0", headers=True
    )


def test_an_endpoint_is_a_log_too() -> None:
    """Only open_log decides which of the two it is."""
    log: Log = open_log(endpoint="grpc://127.0.0.1:1", api_key="key")

    assert isinstance(log, Endpoint)
    assert "grpc://127.0.0.1:1" == log.address
    assert "DirectoryLog('data')" == repr(open_log("data"))
    assert isinstance(open_log(Path("data")), DirectoryLog)


@pytest.mark.parametrize(
    ("path", "endpoint", "api_key", "problem"),
    [
        (None, None, "k", "exactly one of path and endpoint"),
        ("data", "grpc://h:1", "k", "exactly one of path and endpoint"),
        (None, "grpc://h:1", None, "api_key: is missing"),
        (None, "http://h:1", "k", "endpoint: 'http://h:1' is not grpc://"),
    ],
)
def test_arguments_that_name_no_log_are_refused(
    path: str | None, endpoint: str | None, api_key: str | None, problem: str
) -> None:
    """Either a path or an endpoint must be given, and an endpoint needs a key."""
    with pytest.raises(ConfigError, match=problem):
        open_log(path, endpoint, api_key)
