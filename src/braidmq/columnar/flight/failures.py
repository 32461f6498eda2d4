"""Errors on their way from the endpoint to its clients: an exception, as JSON, and back.

    {"error": "data_loss", "first_id": 17, "last_id": 40, "reason": "retention deleted them"}

The client raises the exception that the broker raised, or that the same read of a directory
would raise. Errors that only an endpoint can have are defined here:

    EndpointError
    |-- UnauthenticatedError   no API key, or an unknown one
    |-- UnavailableError       it cannot be reached, is busy, or is shutting down: try again
    |   `-- BrokenStreamError  a stream ended early
    `-- EndpointFailedError    the endpoint itself has failed

TooManyTopicsError is a ConfigError, and is raised before anything is sent.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from braidmq.base.errors import (
    BraidError,
    ConfigError,
    CursorError,
    DamagedLogError,
    DamagedStageError,
    LogFullError,
    NotAllowedError,
    QuotaError,
    RefusedRowError,
    UnknownStageError,
)
from braidmq.columnar.flight.requests import BadRequestError
from braidmq.columnar.loss import DataLossError, Loss

_INTERNAL: Final = "internal"

TEXT_CHARS_MAX: Final = 200
"""The longest text of an error: it travels in gRPC headers, which must be short."""


class EndpointError(BraidError):
    """The base of the errors that only an endpoint can have."""


class UnauthenticatedError(EndpointError):
    """The API key is missing or unknown."""


class UnavailableError(EndpointError):
    """The endpoint cannot be reached, or takes no calls now; a retry may succeed."""


class BrokenStreamError(UnavailableError):
    """A stream ended before its end mark."""


class EndpointFailedError(EndpointError):
    """The endpoint has failed; its log says more."""


class TooManyTopicsError(ConfigError):
    """The names of the wanted topics do not fit into a request; the client finds out itself."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "wants more topics than fit into a request; read all, and filter")


_TEXTS: Final[dict[str, type[BraidError]]] = {
    "bad_request": BadRequestError,
    "unauthenticated": UnauthenticatedError,
    "broken_stream": BrokenStreamError,
    "unavailable": UnavailableError,
    "log_full": LogFullError,
    "quota": QuotaError,
    _INTERNAL: EndpointFailedError,
}
"""Errors that consist of a text. A subclass stands before its base: the first match counts."""

_FIELDS: Final[dict[str, tuple[type[BraidError], tuple[str, ...]]]] = {
    "config": (ConfigError, ("key", "problem")),
    "cursor": (CursorError, ("name", "problem")),
    "damaged_log": (DamagedLogError, ("segment", "offset", "first_id", "last_id", "reason")),
    "damaged_stage": (DamagedStageError, ("stage", "reason")),
    "not_allowed": (NotAllowedError, ("operation", "name")),
    "refused_row": (RefusedRowError, ("row", "reason")),
    "unknown_stage": (UnknownStageError, ("stage",)),
}
"""Errors that are rebuilt from their fields."""

_DATA_LOSS: Final = "data_loss"


def encode_failure(error: BraidError) -> bytes:
    """Return the JSON of an error; one that clients do not know becomes `internal`."""
    fields = {
        name: shortened(value) if isinstance(value, str) else value
        for name, value in _fields_of(error).items()
    }
    return msgspec.json.encode(fields)


def shortened(text: str) -> str:
    """Return a text that an error can carry: not too long, without lone surrogates."""
    plain = text.encode(errors="replace").decode()
    return plain if len(plain) <= TEXT_CHARS_MAX else plain[: TEXT_CHARS_MAX - 1] + "…"


def _fields_of(error: BraidError) -> dict[str, Any]:
    if isinstance(error, DataLossError):
        return {"error": _DATA_LOSS, **error.loss._asdict()}
    for kind, (known, fields) in _FIELDS.items():
        if isinstance(error, known):
            return {"error": kind, **{name: getattr(error, name) for name in fields}}
    for kind, known in _TEXTS.items():
        if isinstance(error, known):
            return {"error": kind, "text": str(error)}
    return {"error": _INTERNAL, "text": str(error)}


def decode_failure(data: bytes, address: str) -> BraidError | None:
    """Return the error that the endpoint at *address* sent, or None if it sent none."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(data, type=dict[str, str | int])
        kind = str(fields.pop("error"))
        if kind == _DATA_LOSS:
            return DataLossError(address, Loss(**fields))
        if kind in _TEXTS:
            return _TEXTS[kind](str(fields["text"]))
        known: Callable[..., BraidError] = _FIELDS[kind][0]
        return known(**fields)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        return None
