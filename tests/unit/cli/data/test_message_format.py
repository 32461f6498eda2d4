"""`subscribe --format`: templates, their fields, and text that must not reach a terminal."""

from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime

import pytest

from braidmq.base.errors import ConfigError
from braidmq.cli.data.message_format import parse, shown
from braidmq.client import Message


class Sample(Message):
    """A message with a value in every field."""

    strand = "vibe"

    def __init__(self, payload: bytes = b"hello", topic: str = "orders") -> None:
        self.topic, self.payload, self.id, self.qos = topic, payload, 7, 1

    @property
    def attempt(self) -> int:
        return 2

    @property
    def timestamp(self) -> datetime:
        return datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)

    @property
    def headers(self) -> Mapping[str, str]:
        return {"kind": "a\x1b[2J", "n": "1"}

    @property
    def sender(self) -> bytes:
        return b"\xab\xcd"

    @property
    def schema(self) -> str:
        return "sensor"

    def _ack(self, *, confirmed: bool) -> Awaitable[None]:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{topic} {payload}", "orders hello"),
        ("{id},{qos},{attempt},{size}", "7,1,2,5"),
        ("{timestamp}", "2026-01-02T03:04:05.006000+00:00"),
        ("{sender} {schema}", "abcd sensor"),
        ("{header.n}{header.absent}", "1"),
        ("{{{topic}}}", "{orders}"),
        (r"a\tb\nc\\d\x", "a\tb\nc\\d\\x"),
        ("", ""),
    ],
)
def test_a_template_is_filled(template: str, expected: str) -> None:
    """Fields in braces, and what else there is as it is; a field without a value is empty."""
    assert expected == shown(parse(template), Sample())


def test_text_of_others_is_escaped() -> None:
    """Neither a topic, a payload nor a header moves the cursor or makes a second line."""
    message = Sample(b"\x1b[2J\xff\n", "a\nb\u202e")

    assert r"a\nb\u202e \x1b[2J\xff\n" == shown(parse("{topic} {payload}"), message)
    assert r'a\x1b[2J {"kind": "a\u001b[2J", "n": "1"}' == shown(
        parse("{header.kind} {headers}"), message
    )


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{nope}", "there is no field 'nope'; the fields are topic, payload, id, qos,"),
        ("{topic.__class__}", "there is no field 'topic.__class__'"),
        ("{}", "there is no field ''"),
        ("{topic", "has a single {; write {{ for a brace"),
        ("topic}", "has a single }; write }} for a brace"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(template: str, problem: str) -> None:
    """Before anything is subscribed to, with the fields that there are."""
    with pytest.raises(ConfigError) as caught:
        parse(template)

    assert f"--format: {problem}" in str(caught.value)
