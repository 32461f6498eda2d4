"""Text of other users on its way to a terminal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.printable import printable, printable_json, visible_json

HIDDEN = [chr(n) for n in (*range(32), *range(0x7F, 0xA0), 0x200B, 0x200E, 0x2028, 0x202E)]
HIDDEN += ["\u2066", "\ufeff", "\u061c"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain ü", "plain ü"), ("\x00\u202e", "\\x00\\u202e"), ("\ud800", "\\ud800")],
)
def test_what_is_not_printable_is_escaped(text: str, shown: str) -> None:
    """Including control characters, text direction and lone surrogates."""
    assert shown == printable(text)


@given(st.text())
def test_json_for_a_terminal_is_printable_and_has_the_same_value(text: str) -> None:
    """JSON by itself escapes only what is below U+0020."""
    shown = printable_json(json.dumps({text: text}, ensure_ascii=False))

    assert shown.isprintable()
    assert {text: text} == json.loads(shown)


@given(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(HIDDEN))))
def test_json_of_the_api_hides_nothing_and_has_the_same_value(text: str) -> None:
    """It is looked at with `curl`, too."""
    shown = visible_json(json.dumps([text, "ü"], ensure_ascii=False).encode())

    assert not set(HIDDEN) & set(shown.decode())
    assert [text, "ü"] == json.loads(shown)
