"""Parameters of requests: how each is read, refused and described.

Nothing here answers a request: a value that is not valid raises an HTTPException.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from braidmq.base.ids import ID_MAX

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000
"""Rows on one page; the next page is requested with `after` or `from`."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_MOMENT_CHARS_MAX: Final = 64
_US: Final = timedelta(microseconds=1)

Schema = Mapping[str, object]
"""A JSON Schema."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Name:
    """A parameter in a path: a name of any characters, or a whole number."""

    name: str
    summary: str
    whole: bool = False

    @property
    def description(self) -> str:
        """Its meaning, and how to send it."""
        if self.whole:
            return self.summary
        return f"{self.summary} Send the names `.` and `..` as `%FF.` and `%FF..`."

    @property
    def schema(self) -> Schema:
        """The JSON Schema of its values."""
        if self.whole:
            return {"type": "integer", "minimum": 1, "maximum": ID_MAX}
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class Parameter(Generic[T]):
    """A parameter of a query, with a default or None."""

    name: str
    description: str
    schema: Schema  # of its values
    read: Callable[[str], T | None]  # None: the text is not valid
    rule: str  # completes the error: "NAME must be ..."
    default: T | None

    def given(self, request: Request) -> T | None:
        """Return the value or the default.

        Raises:
            HTTPException: 400, the value is not valid.
        """
        text = request.query_params.get(self.name)
        if text is None:
            return self.default
        value = self.read(text)
        if value is None:
            raise HTTPException(400, f"{self.name} must be {self.rule}")
        return value

    def of(self, request: Request) -> T:
        """Return the value, or the default, which must not be None.

        Raises:
            HTTPException: 400, the value is not valid.
        """
        value = self.given(request)
        assert value is not None
        return value


def text(name: str, summary: str, default: str | None = "") -> Parameter[str]:
    """Return a parameter that may be any text."""
    return Parameter(name, summary, {"type": "string"}, str, "text", default)


def whole(name: str, summary: str, most: int, default: int | None, rule: str) -> Parameter[int]:
    """Return a parameter that is a whole number from 1 to *most*."""
    schema: dict[str, object] = {"type": "integer", "minimum": 1, "maximum": most}
    if default is not None:
        schema["default"] = default
    return Parameter(name, summary, schema, lambda it: whole_number(it, most), rule, default)


def choice(name: str, summary: str, words: Sequence[str]) -> Parameter[str]:
    """Return a parameter that is one of *words*; the first is the default."""
    schema = {"type": "string", "enum": list(words), "default": words[0]}
    rule = f"one of {', '.join(words)}"
    return Parameter(
        name, summary, schema, lambda it: it if it in words else None, rule, words[0]
    )


def moment(name: str, summary: str) -> Parameter[int]:
    """Return a parameter that is a time in ISO 8601, as microseconds since 1970."""
    schema = {"type": "string", "format": "date-time"}
    rule = "a time such as 2026-01-31T12:00:00Z"
    return Parameter(name, summary, schema, moment_us, rule, None)


def whole_number(text: str, most: int) -> int | None:
    """Return the number that *text* writes, None if it is not one from 1 to *most*."""
    # The length is checked first: converting very long digits would block the event loop.
    if text.isascii() and text.isdigit() and len(text) <= len(str(most)):
        number = int(text)
        return number if 1 <= number <= most else None
    return None


def moment_us(text: str) -> int | None:
    """Return a time in ISO 8601, UTC unless it names a zone, in microseconds since 1970."""
    if len(text) > _MOMENT_CHARS_MAX:
        return None
    try:
        # A plus sign that was not encoded arrives as a space.
        found = datetime.fromisoformat(text.replace(" 0", "+0"))
    except ValueError:
        return None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return max(0, (found - EPOCH) // _US)


def iso(moment_us: int) -> str:
    """Return a time as ISO 8601 in UTC."""
    return (EPOCH + _US * moment_us).isoformat().replace("+00:00", "Z")


AFTER: Final = text("after", "Continue after this; the `next` of the previous page.")
SEARCH: Final = text("search", "Show only names that contain this text, in any case.")
TOPIC: Final = Name("topic", "The topic's name.")
LIMIT: Final = whole(
    "limit",
    "The maximum number of rows.",
    PAGE_MAX,
    PAGE_DEFAULT,
    f"a whole number from 1 to {PAGE_MAX}",
)
FROM: Final = whole(
    "from", "The offset to begin with.", ID_MAX, 1, "an offset, a whole number from 1 on"
)
