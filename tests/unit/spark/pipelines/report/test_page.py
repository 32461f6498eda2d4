"""The report's page: correct numbers, names as text, nothing fetched from elsewhere."""

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.spark.pipelines.report.page import (
    TOP_COUNT,
    Findings,
    TopicFit,
    TopicVolume,
    page,
)

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
VOID = {"meta"}
HOSTILE = (
    "<script>alert(1)</script>",
    "</title></style></svg><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "<!-- ]]> --> &lt;b&gt; &#60;b&#62;",
    "a\x00b\x1b[31m\u202edcba\u2066",
    "\ud800 " + "<b>" * 500,
)


class Seen(HTMLParser):
    """A page as a browser parses it: its tags, their attributes, its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: set[tuple[str, str | None]] = set()
        self.comments: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= set(attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= set(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open.pop()

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def volume(topic: str, messages: int = 1, size: int = 100) -> TopicVolume:
    later = NOON + timedelta(hours=2)
    return TopicVolume(topic, messages, messages * size, size, size, size, NOON, later)


def everything(name: str) -> Findings:
    """Findings in which *name* stands wherever a publisher chooses the text."""
    return Findings(
        source=name,
        volumes=[volume(name, 3), volume("dlq." + name)],
        hours=[(NOON, 4)],
        deaths=[("dlq." + name, name, 1)],
        fits=[TopicFit(name, name, 3, 1, 5.0, 9.0, 12)],
        delays=[("below 1 s", 2)],
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_text(name: str) -> None:
    """The page has the same tags and attributes as one with harmless names."""
    plain, hostile = Seen(page(everything("a"))), Seen(page(everything(name)))

    assert plain.tags == hostile.tags
    assert {attribute for attribute, _ in plain.attributes} == {
        attribute for attribute, _ in hostile.attributes
    }
    assert [] == hostile.comments
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(hostile.tags)
    assert all(character.isprintable() or character == "\n" for character in hostile.text)
    page(everything(name)).encode()  # fails if a lone surrogate is left


@given(st.text(max_size=60))
def test_no_name_becomes_markup(name: str) -> None:
    """Any text at all, printable or not."""
    assert Seen(page(everything("a"))).tags == Seen(page(everything(name))).tags


def test_nothing_is_fetched_and_nothing_runs() -> None:
    """The page is one file, and its policy forbids anything else."""
    text = page(everything("a"))
    seen = Seen(text)
    names = {name for name, _ in seen.attributes}

    assert not {"src", "href", "srcset", "style", "data", "action"} & names
    assert not any(name.startswith("on") for name in names)
    assert "url(" not in text
    assert "@import" not in text
    assert "http:" not in text.replace("http-equiv", "")
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in seen.attributes


def test_every_chart_has_a_description_and_a_table() -> None:
    """Screen readers read the one, and the other has the exact numbers."""
    seen = Seen(page(everything("a")))

    assert ["title", *["svg", "title", "desc"] * 6] == [
        tag for tag in seen.tags if tag in {"svg", "title", "desc"}
    ]
    assert seen.tags.count("figure") == seen.tags.count("figcaption") == 6
    assert 6 <= seen.tags.count("table") == seen.tags.count("caption")
    assert "prefers-color-scheme:dark" in page(everything("a"))
    assert ("content", "width=device-width, initial-scale=1") in seen.attributes


def test_ten_thousand_topics_are_shown_as_the_top_and_the_rest() -> None:
    """The page stays small, and its totals cover all topics."""
    volumes = [volume(f"topic {number}", number + 1) for number in range(10_000)]
    text = page(Findings("data", volumes))
    seen = Seen(text)
    top = sum(range(10_000, 10_000 - TOP_COUNT, -1))

    assert len(text) < 60_000
    assert "50,005,000" in seen.text
    assert "the other 9,980 topics" in seen.text
    assert f"{50_005_000 - top:,}" in seen.text
    assert "topic 9999" in seen.text
    assert "topic 9979\n" not in seen.text


def test_an_empty_log_has_a_page_too() -> None:
    """It says that there is nothing to show."""
    seen = Seen(page(Findings("data")))

    assert "There are none." in seen.text
    assert "No topic was read with a schema." in seen.text


def test_numbers_are_written_for_people() -> None:
    """With thousands separators, units of bytes, hours in UTC and shares in percent."""
    found = Findings(
        "data",
        [volume("a", 1_234_567, 2048), volume("b", 1, 10)],
        hours=[(NOON, 7), (NOON + timedelta(days=1), 3), (NOON + timedelta(hours=1), 9)],
        deaths=[("dlq.a", "expired", 1_000)],
        fits=[TopicFit("a", "sensor.Humidity", 2_000, 1, 1_500.4, 2_000.0, 86_400_000)],
        delays=[("below 10 s", 2_000)],
    )
    lines = Seen(page(found)).text.split("\n")

    for expected in (
        "1,234,567",
        "100.0 %",
        "below 0.1 %",
        "2.4 GiB",
        "2.0 KiB",
        "10 B",
        "2026-11-16 13:00 UTC",
        "12:00",
        "1,000",
        "expired",
        "1,500 ms",
        "86,400,000 ms",
    ):
        assert expected in lines
