"""The first contact with a broker that a pipeline needs."""

import json
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.runs import contacts
from braidmq.spark.pipelines.runs.contacts import meet
from braidmq.spark.pipelines.runs.failures import QueryFailedError
from tests.unit.spark.running import KEY, NOBODY, Running


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contacts, "ANSWER_S_MAX", 0.0)


def test_a_broker_that_answers_is_all_that_is_wanted(broker: Running) -> None:
    """By its address, or by its directory."""
    meet("archive", {"endpoint": broker.address, "apiKey": KEY}, needed=False)
    meet("replay", {"path": str(broker.path), "apiKey": KEY}, needed=True)


def test_an_address_that_never_answered_is_told_with_what_may_be_wrong() -> None:
    """In one line, without the noise of the library."""
    with pytest.raises(QueryFailedError) as caught:
        meet("archive", {"endpoint": NOBODY, "apiKey": KEY}, needed=False)

    assert str(caught.value) == (
        f"archive: {NOBODY}: Failed to connect to remote host: Connection refused; "
        "is the broker running, is [flight] enabled, and is this its port?"
    )


def test_a_wrong_key_is_told_with_the_place_of_it(broker: Running) -> None:
    """At once: it will not be right later."""
    with pytest.raises(QueryFailedError, match=r"not known; the key is given in --api-key or"):
        meet("archive", {"endpoint": broker.address, "apiKey": "wrong"}, needed=False)


def test_a_directory_needs_no_broker_unless_it_does(tmp_path: Path) -> None:
    """Its files are there without; a new cursor and the sink are not."""
    given = {"path": str(tmp_path), "apiKey": KEY}
    meet("archive", given, needed=False)
    with pytest.raises(QueryFailedError, match=r"archive: no broker runs on .*: start it"):
        meet("archive", given, needed=True)
    (tmp_path / "run.json").write_text(json.dumps({"flight": NOBODY}))
    with pytest.raises(QueryFailedError, match="Connection refused"):
        meet("archive", given, needed=True)


def test_what_is_missing_or_no_address_is_not_asked() -> None:
    """The source says which option is missing."""
    meet("archive", {"endpoint": NOBODY}, needed=True)
    with pytest.raises(ConfigError, match="endpoint: 'x' is not grpc://host:port"):
        meet("archive", {"endpoint": "x", "apiKey": KEY}, needed=True)
