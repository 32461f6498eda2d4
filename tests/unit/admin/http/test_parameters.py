"""Query parameters: parsed, refused, described."""

from urllib.parse import quote

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from braidmq.admin.http.parameters import (
    FROM,
    LIMIT,
    Name,
    choice,
    iso,
    moment,
    text,
    whole,
    whole_number,
)

SORT = choice("sort", "How.", ("name", "size"))
TIME = moment("time", "When.")


def request_with(query: str = "") -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": []})


def test_a_page_has_a_default_and_bounds() -> None:
    """1 to 1,000 rows, from the first offset on."""
    assert [100, 1, 1000] == [LIMIT.of(request_with(q)) for q in ("", "limit=1", "limit=1000")]
    assert [1, 7, 2**64 - 1] == [
        FROM.of(request_with(q)) for q in ("", "from=7", f"from={2**64 - 1}")
    ]


NOT_NUMBERS = ["0", "-1", "x", "", "1.5", "\u0663", "\u00b2", "1e3", "+1", " 1", 5000 * "9"]


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_anything_but_a_number_is_refused(text: str) -> None:
    """400, with what is expected."""
    with pytest.raises(HTTPException, match="limit must be a whole number from 1 to 1000"):
        LIMIT.of(request_with(f"limit={quote(text)}"))
    with pytest.raises(HTTPException, match="from must be an offset"):
        FROM.of(request_with(f"from={quote(text)}"))


def test_a_number_beyond_its_bound_is_refused() -> None:
    """Even by one, and with as many digits as the bound."""
    for digits in ("1001", "9999"):
        with pytest.raises(HTTPException, match="limit must be a whole number from 1 to 1000"):
            LIMIT.of(request_with(f"limit={digits}"))
    with pytest.raises(HTTPException, match="from must be an offset"):
        FROM.of(request_with(f"from={2**64}"))


def test_a_choice_is_one_of_its_words() -> None:
    """The first is the default; no other word is accepted."""
    assert ["name", "size"] == [SORT.of(request_with(q)) for q in ("", "sort=size")]
    with pytest.raises(HTTPException, match="sort must be one of name, size"):
        SORT.of(request_with("sort=Name"))


@pytest.mark.parametrize(
    ("text", "moment_us"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T00:00:00.000001%2B00:00", 1),
        ("1970-01-01T01:00:00+01:00", 0),  # the plus sign arrives as a space
        ("1970-01-02", 86_400_000_000),
        ("1969-01-01T00:00:00Z", 0),
        ("0001-01-01T00:00:00%2B23:59", 0),
        ("9999-12-31T23:59:59-23:59", 253_402_387_139_000_000),
    ],
)
def test_a_time_is_iso_8601(text: str, moment_us: int) -> None:
    """In microseconds, with and without a zone; a time before 1970 becomes 0."""
    assert moment_us == TIME.given(request_with(f"time={text}"))


NOT_TIMES = ["", "noon", "1", "2026-13-01", "9999-12-31T23:59:59-23:59x"]
NOT_TIMES += ["1970-01-01T00:00:00." + 60 * "0"]  # longer than any valid time


@pytest.mark.parametrize("text", NOT_TIMES)
def test_anything_but_a_time_is_refused(text: str) -> None:
    """400, with an example."""
    with pytest.raises(HTTPException, match="time must be a time such as"):
        TIME.given(request_with(f"time={text}"))


def test_an_absent_parameter_is_none() -> None:
    """Where there is no default."""
    number = whole("n", "How many.", 9, None, "a digit")

    assert [None, None, None] == [
        number.given(request_with()),
        TIME.given(request_with()),
        text("q", "Which.", default=None).given(request_with()),
    ]


def test_each_parameter_describes_its_values() -> None:
    """In JSON Schema, with the bounds that it enforces."""
    assert {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100} == LIMIT.schema
    assert {"type": "string", "enum": ["name", "size"], "default": "name"} == SORT.schema
    assert {"type": "string", "format": "date-time"} == TIME.schema
    assert {"type": "string", "minLength": 1} == Name("n", "A name.").schema
    assert "integer" == Name("n", "A number.", whole=True).schema["type"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("10", 10), ("11", None), ("0", None), ("007", None), (5000 * "9", None)]
    + [(text, None) for text in ("", "-1", "1.0", "\u0663", "\u00b2", " 1")],
)
def test_a_number_is_plain_digits_within_its_bound(text: str, number: int | None) -> None:
    """Five thousand digits are not one: Python refuses them with an error of its own."""
    assert number == whole_number(text, 10)


def test_a_moment_is_shown_in_utc() -> None:
    """To the microsecond, and with a Z."""
    assert "1970-01-01T00:00:01.500000Z" == iso(1_500_000)
