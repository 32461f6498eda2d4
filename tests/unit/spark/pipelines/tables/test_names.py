"""Names of strangers as names of directories."""

from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.spark.pipelines.tables.names import MARK, NAME_CHARS_MAX, hashed_name, plain_name

GOLDEN = {
    "sensors/temp": "sensors%2Ftemp~",
    "": "~",
    "..": "..~",
    "a=b/c": "a%3Db%2Fc~",
    "ß": "%C3%9F~",
    "x~y": "x%7Ey~",
    "\x00\n": "%00%0A~",
}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def test_what_is_not_safe_is_escaped() -> None:
    """The readable part, on record."""
    found = {text: hashed_name(text)[: -len("0123456789abcdef")] for text in GOLDEN}

    assert GOLDEN == found


@given(texts)
def test_a_name_is_bounded_and_begins_as_the_text_does(text: str) -> None:
    """However it is cut, what is left of it is whole characters."""
    name = hashed_name(text)
    readable, _, digest = name.rpartition(MARK)

    assert len(name) <= NAME_CHARS_MAX
    assert name.isascii()
    assert "/" not in name
    assert text.startswith(unquote(readable, errors="strict"))
    assert len(digest) == 16


def test_the_longest_topics_are_told_apart_by_their_ends() -> None:
    """A name is cut, its hash is of the whole."""
    longest = "t" * (TOPIC_BYTES_MAX - 1)

    assert hashed_name(longest + "a") != hashed_name(longest + "b")


@given(texts, texts)
def test_two_texts_have_two_names(one: str, other: str) -> None:
    """Plain or hashed, and one of each."""
    ones, others = ({plain_name(text), hashed_name(text)} for text in (one, other))

    assert (one == other) == bool(ones & others)


def test_a_name_that_can_be_a_directory_stays() -> None:
    """Unless a directory of that name is there for something else, or it would be hidden."""
    kept = ["sensor.Temperature", "a-b_c", "7"]

    assert kept == list(map(plain_name, kept))
    for text in ("quarantine", "_x", ".x", "a b", "http://x/y", "x" * 121):
        assert MARK in plain_name(text)
