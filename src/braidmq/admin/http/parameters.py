"""Parameters of requests: how each is read, refused and described.

Nothing here answers a request: a value that is not valid raises an HTTPException.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from braidmq.base.ids import ID_MAX

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000
"""Rows on one page; the next page is requested with `after` or `from`."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_MOMENT_CHARS_MAX: Final = 64
_US: Final = timedelta(microseconds=1)


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

    def schema(self) -> Mapping[str, object]:
        """Return the JSON Schema of its values."""
        if self.whole:
            return {"type": "integer", "minimum": 1, "maximum": ID_MAX}
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class Text:
    """Any text; empty by default."""

    name: str
    summary: str

    def of(self, request: Request) -> str:
        """Return the value, or an empty string."""
        return request.query_params.get(self.name, "")

    def given(self, request: Request) -> str | None:
        """Return the value, or None."""
        return request.query_params.get(self.name)

    def schema(self) -> Mapping[str, object]:
        """Return the JSON Schema of its values."""
        return {"type": "string"}


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from 1 on, with a default or None."""

    name: str
    summary: str
    most: int
    default: int | None
    rule: str  # completes the error: "NAME must be ..."

    def of(self, request: Request) -> int:
        """Return the number, or the default, which must not be None.

        Raises:
            HTTPException: 400, the value is not valid.
        """
        number = self.given(request)
        assert number is not None
        return number

    def given(self, request: Request) -> int | None:
        """Return the number or the default.

        Raises:
            HTTPException: 400, the value is not valid.
        """
        text = request.query_params.get(self.name)
        if text is None:
            return self.default
        number = whole_number(text, self.most)
        if number is None:
            raise HTTPException(400, f"{self.name} must be {self.rule}")
        return number

    def schema(self) -> Mapping[str, object]:
        """Return the JSON Schema of its values."""
        schema: dict[str, object] = {"type": "integer", "minimum": 1, "maximum": self.most}
        return schema if self.default is None else {**schema, "default": self.default}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words; the first is the default."""

    name: str
    summary: str
    words: tuple[str, ...]

    def of(self, request: Request) -> str:
        """Return the word.

        Raises:
            HTTPException: 400, it is not one of them.
        """
        word = request.query_params.get(self.name, self.words[0])
        if word not in self.words:
            raise HTTPException(400, f"{self.name} must be one of {', '.join(self.words)}")
        return word

    def schema(self) -> Mapping[str, object]:
        """Return the JSON Schema of its values."""
        return {"type": "string", "enum": list(self.words), "default": self.words[0]}


@dataclass(frozen=True, slots=True)
class Moment:
    """A time in ISO 8601; UTC when it names no zone."""

    name: str
    summary: str

    def given(self, request: Request) -> int | None:
        """Return the microseconds since 1970, or None.

        Raises:
            HTTPException: 400, it is not a time.
        """
        text = request.query_params.get(self.name)
        if text is None:
            return None
        problem = HTTPException(400, f"{self.name} must be a time such as 2026-01-31T12:00:00Z")
        if len(text) > _MOMENT_CHARS_MAX:
            raise problem
        try:
            # A plus sign that was not encoded arrives as a space.
            moment = datetime.fromisoformat(text.replace(" 0", "+0"))
        except ValueError:
            raise problem from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0, (moment - EPOCH) // _US)

    def schema(self) -> Mapping[str, object]:
        """Return the JSON Schema of its values."""
        return {"type": "string", "format": "date-time"}


Parameter = Text | Whole | Choice | Moment
"""A parameter of a query."""

AFTER: Final = Text("after", "Continue after this; the `next` of the previous page.")
SEARCH: Final = Text("search", "Show only names that contain this text, in any case.")
TOPIC: Final = Name("topic", "The topic's name.")
LIMIT: Final = Whole(
    "limit",
    "The maximum number of rows.",
    PAGE_MAX,
    PAGE_DEFAULT,
    f"a whole number from 1 to {PAGE_MAX}",
)
FROM: Final = Whole(
    "from", "The offset to begin with.", ID_MAX, 1, "an offset, a whole number from 1 on"
)


def whole_number(text: str, most: int) -> int | None:
    """Return the number that *text* writes, None if it is not one from 1 to *most*."""
    # The length is checked first: converting very long digits would block the event loop.
    if text.isascii() and text.isdigit() and len(text) <= len(str(most)):
        number = int(text)
        return number if 1 <= number <= most else None
    return None


def iso(moment_us: int) -> str:
    """Return a time as ISO 8601 in UTC."""
    return (EPOCH + _US * moment_us).isoformat().replace("+00:00", "Z")
