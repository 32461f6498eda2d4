"""Errors that cross the network."""

import json
from pathlib import Path

import pytest

from braidmq.base.errors import (
    BraidError,
    ConfigError,
    CursorError,
    DamagedLogError,
    DamagedStageError,
    LogFullError,
    LogPoisonedError,
    NotAllowedError,
    RefusedRowError,
    UnknownStageError,
)
from braidmq.columnar.flight.failures import (
    TEXT_CHARS_MAX,
    BrokenStreamError,
    EndpointFailedError,
    UnauthenticatedError,
    UnavailableError,
    decode_failure,
    encode_failure,
)
from braidmq.columnar.flight.requests import BadRequestError
from braidmq.columnar.loss import RETAINED, DataLossError, Loss

ADDRESS = "grpc://h:1"
ERRORS: list[BraidError] = [
    ConfigError("start", "ids are not negative"),
    ConfigError("", "no key"),
    CursorError("c", "there is none of that name"),
    DamagedLogError("1.wal", offset=3, first_id=1, last_id=2, reason="torn"),
    DamagedStageError("ab", "torn"),
    NotAllowedError("subscribe", "a/ü"),
    RefusedRowError(17, "value is null"),
    UnknownStageError("ab"),
    LogFullError("full"),
    BadRequestError("is not one"),
    UnauthenticatedError("who are you"),
    UnavailableError("later"),
    BrokenStreamError("broke off"),
    EndpointFailedError("ouch"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_it_was_raised(error: BraidError) -> None:
    """Its class, its text and its data are the same on the other side."""
    found = decode_failure(encode_failure(error), ADDRESS)

    assert found is not None
    assert type(error) is type(found)
    assert str(error) == str(found)
    assert vars(error) == vars(found)


def test_a_loss_names_the_endpoint_instead_of_the_brokers_directory() -> None:
    """A remote reader does not know the directory, and need not."""
    loss = Loss(3, 9, RETAINED)
    found = decode_failure(encode_failure(DataLossError("/srv/data", loss)), ADDRESS)

    assert isinstance(found, DataLossError)
    assert (ADDRESS, loss) == (found.path, found.loss)
    assert b"srv" not in encode_failure(DataLossError("/srv/data", loss))


def test_the_documentation_names_every_kind_with_its_fields() -> None:
    """docs/protocols/flight.md cannot fall behind the errors."""
    document = Path(__file__).parents[4] / "docs" / "protocols" / "flight.md"
    table = document.read_text("utf-8").partition("## Errors")[2].partition("## Limits")[0]
    for error in [*ERRORS, DataLossError("x", Loss(1, 2, RETAINED))]:
        fields = json.loads(encode_failure(error))
        kind = fields.pop("error")
        (row,) = (line for line in table.splitlines() if f"`{kind}`" in line)

        assert [] == [name for name in fields if f"`{name}`" not in row]


def test_an_error_that_clients_do_not_know_is_the_endpoints_failure() -> None:
    """There is nothing that a reader could do about a poisoned log."""
    found = decode_failure(encode_failure(LogPoisonedError("write", "EIO")), ADDRESS)

    assert isinstance(found, EndpointFailedError)
    assert "log poisoned: write failed: EIO" == str(found)


def test_a_long_text_is_truncated_and_a_strange_one_made_harmless() -> None:
    """An error is sent in headers, which are short, and which no text may break."""
    found = decode_failure(encode_failure(NotAllowedError("subscribe", "ü" * 65_535)), ADDRESS)
    strange = decode_failure(encode_failure(BadRequestError("\ud800")), ADDRESS)

    assert isinstance(found, NotAllowedError)
    assert "ü" * (TEXT_CHARS_MAX - 1) + "…" == found.name
    assert "?" == str(strange)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"\xff", b'{"error":"colour"}', b'{"error":"config"}'),
        *(b'{"error":{}}', b'{"error":"config","key":1,"problem":2,"more":3}'),
        *(b'{"text":"x"}', b'{"error":"unavailable"}', b'{"error":"data_loss","first_id":1}'),
    ],
)
def test_data_that_is_no_error_of_ours_is_ignored(data: bytes) -> None:
    """A proxy, a library or another version may send anything."""
    assert None is decode_failure(data, ADDRESS)
